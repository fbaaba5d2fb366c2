"""Lines of files that are nested too deeply, or that mix names and numbers: refused with their number, or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.batch_files import answered, digest, read_entries
from edgeinfer.app.commands.detokenize import read_ids
from edgeinfer.app.commands.score import _task
from edgeinfer.app.server.llama_presets import tables_of
from edgeinfer.errors import BadSetting, EdgeInferError

DEEP = "[" * 99_999

pytestmark = pytest.mark.usefixtures("uncollected")


def test_scales_by_name_and_by_number_have_one_digest() -> None:
    (one,), (other,) = (
        read_entries([line], None)
        for line in ('{"prompt": "a", "lora": {"0": 0.5, "b": 1}}', '{"prompt": "a", "lora": {"b": 1, "0": 0.5}}')
    )
    assert digest(one) == digest(other)


@pytest.mark.parametrize("line", [DEEP, '{"index": ' + DEEP, "[]", "5", '{"index": "a"}'])
def test_answers_of_another_kind_are_no_answers_of_a_batch(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers"
    path.write_text(line + "\n")
    with pytest.raises(EdgeInferError, match="does not have answers of this batch"):
        answered(path, read_entries(["a"], None))
    assert path.read_text() == line + "\n"


def test_a_task_that_is_nested_too_deeply() -> None:
    with pytest.raises(BadSetting, match="line 3 is no task"):
        _task(3, DEEP)


@pytest.mark.parametrize("tokens", [DEEP, "[1e999]", "[null]", "5"])
def test_ids_that_are_none(tokens: str) -> None:
    with pytest.raises(EdgeInferError, match="token ids looks like"):
        read_ids(f'{{"tokens": {tokens}}}')


def test_variables_of_a_template_that_are_nested_too_deeply() -> None:
    with pytest.raises(BadSetting, match="edgeinfer keeps enable_thinking"):
        tables_of(f"[small]\nmodel = a\nchat-template-kwargs = {DEEP}\n", "presets.ini")
