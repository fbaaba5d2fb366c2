"""JSON and TOML that are nested too deeply, in files and lines that others wrote: what is told of any other damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.bench.request import read_questions
from edgeinfer.app.commands.detokenize import read_ids
from edgeinfer.app.commands.score import _task
from edgeinfer.app.mcp.servers import read_servers
from edgeinfer.app.server.llama_presets import _plain, _variables
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.file_lock import is_held
from edgeinfer.jit.cpu import _kept
from edgeinfer.models.store_files import read_manifest
from edgeinfer.models.unfinished import unfinished_in

pytestmark = pytest.mark.usefixtures("uncollected")
LISTS, RECORDS = "[" * 100_000, '{"a":' * 100_000


@pytest.mark.parametrize("text", [LISTS, RECORDS])
def test_notes_of_ours_count_as_none(tmp_path: Path, text: str) -> None:
    for name in ("model.json", "cpu.json", "lock", ".source.pull"):
        (tmp_path / name).write_text(text[:60_000])  # longer ones are not read at all
    assert read_manifest(tmp_path / "model.json") is None
    assert _kept(tmp_path / "cpu.json") is None
    assert not is_held(tmp_path / "lock")
    assert unfinished_in(tmp_path) == ()


@pytest.mark.parametrize("text", [LISTS, RECORDS])
def test_what_users_give_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given"
    path.write_text(f"a = {text}")
    with pytest.raises(BadSetting, match="not valid TOML"):
        read_servers(path)
    path.write_text(text)
    with pytest.raises(BadSetting, match="line 1"):
        read_questions(path)
    with pytest.raises(BadSetting, match="line 3 is no task"):
        _task(3, text)
    with pytest.raises(BadSetting, match="as JSON"):
        _variables(text, "here")
    assert _plain(text) == text


def test_tokens_in_a_record() -> None:
    with pytest.raises(EdgeInferError, match="looks like"):
        read_ids(RECORDS)
