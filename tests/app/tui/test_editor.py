"""The user's editor: which one, what comes back, and what is said when it does not work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from edgeinfer.app.tui.editor import EditedText, edit_text, editor_command, run_editor
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.errors import EdgeInferError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake editors are shell scripts")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class EditorApp(App[None]):
    """A composer whose terminal can be given away, which a test's cannot."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.composer = Composer(base=base)
        self.away = 0

    def compose(self) -> ComposeResult:
        yield self.composer

    def on_mount(self) -> None:
        self.composer.focus()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self.away += 1
        yield
        self.away -= 1


async def test_the_draft_comes_back_from_the_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = script(
        tmp_path / "my editor", 'echo "$1 $(basename "$2")" > args; ls -l "$2" >> args; echo "and ü" >> "$2"'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{editor}' --wait")
    app = EditorApp(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press(*"draft", "ctrl+j", "ctrl+e")
        assert app.composer.draft.text == "draft\nand ü"
        assert app.away == 0
        assert (tmp_path / "args").read_text().startswith("--wait message.md\n-rw")
        await pilot.press("x")
        assert app.composer.draft.text == "draft\nand üx"


async def test_an_editor_that_fails_leaves_the_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", str(script(tmp_path / "bad", 'echo other > "$1"; exit 3')))
    app = EditorApp(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press(*"draft", "ctrl+e")
        assert app.composer.draft.text == "draft"
        (notice,) = app._notifications
        assert notice.message == f"{tmp_path}/bad ended with status 3; the draft is as it was"
        assert app.away == 0


async def test_where_no_terminal_can_be_given_away_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "true")
    app: App[object] = App()
    async with app.run_test():
        edited = edit_text(app, "draft")
    assert edited == EditedText(
        None, "no editor can be opened here; open the chat in a terminal of this machine for that"
    )


def test_which_editor(tmp_path: Path) -> None:
    assert editor_command({"VISUAL": "code --wait", "EDITOR": "vi"}) == ["code", "--wait"]
    assert editor_command({"VISUAL": " ", "EDITOR": "vi"}) == ["vi"]
    quoted = {"EDITOR": r'"C:\Program Files\ed.exe" -n'}
    assert editor_command(quoted, "win32") == [r"C:\Program Files\ed.exe", "-n"]
    script(tmp_path / "vim", "")
    assert editor_command({"PATH": str(tmp_path)}) == ["vim"]
    with pytest.raises(EdgeInferError, match="no editor is set; set \\$EDITOR"):
        editor_command({"PATH": str(tmp_path / "nothing")})
    with pytest.raises(EdgeInferError, match="no closing quotation; set \\$EDITOR"):
        editor_command({"EDITOR": "vi 'x"})


def test_what_an_editor_can_do_wrong(tmp_path: Path) -> None:
    assert "was not found" in run_editor([str(tmp_path / "gone")], "x").notice
    assert "was not found, or left no file" in run_editor([str(script(tmp_path / "rm", 'rm "$1"'))], "x").notice
    (tmp_path / "plain").write_text("not a program")
    assert "could not be run: permission denied" in run_editor([str(tmp_path / "plain")], "x").notice
    odd = script(tmp_path / "odd", "printf 'a\\377b\\r\\n' > \"$1\"")
    assert run_editor([str(odd)], "x") == EditedText("a\ufffdb")


def test_the_file_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    editor = script(
        tmp_path / "look", f'dirname "$1" > {tmp_path}/where; stat -c %a "$(dirname "$1")" > {tmp_path}/mode'
    )
    run_editor([str(editor)], "x")
    assert (tmp_path / "mode").read_text().strip() == "700"
    assert not os.path.exists((tmp_path / "where").read_text().strip())
