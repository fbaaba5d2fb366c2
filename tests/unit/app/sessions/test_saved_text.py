"""Saving text: whole or not at all, over nothing, with the suffix of its language."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edgeinfer.app.sessions import exporting as saved_text
from edgeinfer.app.sessions.exporting import fence_suffix, free_name, save_text
from edgeinfer.errors import EdgeInferError


def test_text_is_saved_as_it_is(tmp_path: Path) -> None:
    path = save_text(tmp_path / "a.md", "one\r\ntwo\n\ud800")
    assert path.read_bytes() == b"one\r\ntwo\n?"
    assert os.listdir(tmp_path) == ["a.md"]
    if os.name == "posix":
        (tmp_path / "b").write_text("")
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "b").stat().st_mode)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("mine")
    with pytest.raises(EdgeInferError, match=r"a\.md is there already; a-2\.md is free"):
        save_text(tmp_path / "a.md", "other")
    assert (tmp_path / "a.md").read_text() == "mine"
    assert free_name(tmp_path, "a", ".md") == tmp_path / "a-2.md"
    assert free_name(tmp_path, "b", ".md") == tmp_path / "b.md"


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_text.os, "fsync", full)
    with pytest.raises(EdgeInferError, match="no space left on device; name a file in another folder"):
        save_text(tmp_path / "a.md", "text")
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    with pytest.raises(EdgeInferError, match="no such file"):
        save_text(tmp_path / "gone" / "a.md", "text")
    with pytest.raises(EdgeInferError, match="cannot be written"):
        save_text(tmp_path / "a\0b", "text")


@pytest.mark.parametrize(
    ("language", "suffix"),
    [("python", ".py"), ("Rust ignore", ".rs"), ("{.sh}", ".sh"), ("c++", ".cpp"), ("", ".txt"), ("../x", ".txt")],
)
def test_suffixes_of_fences(language: str, suffix: str) -> None:
    assert fence_suffix(language) == suffix
