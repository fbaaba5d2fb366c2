"""The composer: every way to write a message, by keyboard, and what it tells the app."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.chat.enclosures import MessageDraft
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.widgets import composer
from edgeinfer.app.tui.widgets.sending import WaitingLine
from edgeinfer.app.tui.widgets.text_fields import DraftInput
from tests.app.tui.composer_app import ComposerApp
from tests.app.tui.flows import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.txt", "my file.md", "src/main.py", "src/other.py", "pic.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0" if name == "pic.png" else f"text of {name}".encode())
    return tmp_path


async def test_enter_sends_and_other_keys_begin_a_line(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press("enter", *"one", "ctrl+j", *"two", "shift+enter", *"three", "alt+enter", *"four")
        assert app.text == "one\ntwo\nthree\nfour"
        await pilot.press("enter")
        assert app.sent == [MessageDraft("one\ntwo\nthree\nfour")]
        assert app.text == ""


async def test_it_grows_to_a_third_of_the_screen(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test(size=(40, 12)) as pilot:
        area = app.query_one(DraftInput)
        assert area.size.height == 1
        await pilot.press("ctrl+j")
        await wait_until(pilot, lambda: area.size.height == 2)
        await pilot.press(*["ctrl+j"] * 8)
        await wait_until(pilot, lambda: area.size.height == 3)
        assert app.composer.region.bottom == 12
        app.composer.clear()
        await wait_until(pilot, lambda: area.size.height == 1)


async def test_commands_are_told_apart_from_messages(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"/temp 0.2", "enter")
        await pilot.press(*"//not one", "enter")
        assert app.told == ["/temp 0.2"]
        assert app.sent == [MessageDraft("/not one")]
        app.composer.put(app.sent[0].text)  # and it is none when it is edited
        await pilot.press("enter")
        assert app.told == ["/temp 0.2"]
        assert app.sent == [MessageDraft("/not one")] * 2


async def test_commands_complete(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press("slash")
        assert app.rows.is_open
        assert app.rows.region.bottom == app.query_one(DraftInput).region.y
        await pilot.press("down", "tab")
        assert app.text == "/model "
        assert not app.rows.is_open
        app.composer.clear()
        await pilot.press(*"/he", "enter")  # one that takes no argument is run at once
        assert app.told == ["/help"]
        await pilot.press(*"/model", "enter")  # one that is there in full has nothing to complete
        assert app.told == ["/help", "/model"]


async def test_history_with_the_draft_kept(folder: Path) -> None:
    app = ComposerApp(folder, past=["older", "two\nlines"])
    async with app.run_test() as pilot:
        await pilot.press(*"draft", "up")
        assert app.text == "two\nlines"
        await pilot.press("up")  # within the text first
        assert app.text == "two\nlines"
        await pilot.press("up")
        assert app.text == "older"
        await pilot.press("up")
        assert app.text == "older"
        await pilot.press("down", "down")
        assert app.text == "draft"
        await pilot.press("up", "x", "down")  # an old input that was changed is a draft
        assert app.text == "two\nlinesx"
        await pilot.press("enter", "up")
        assert app.text == "two\nlinesx"


async def test_escape_closes_the_list_for_what_is_being_typed(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@no")
        await wait_until(pilot, lambda: app.rows.is_open)
        await pilot.press("escape", "t")
        await pilot.pause(0.1)
        assert not app.rows.is_open
        await pilot.press(*" @n")
        await wait_until(pilot, lambda: app.rows.is_open)


async def test_pastes_are_harmless(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.paste("one\r\ntwo\rthree\x1b[31m\x07\tend\x9b")
        await wait_until(pilot, lambda: app.text)
        assert app.text == "one\ntwo\nthree[31m\tend"
        assert app.sent == []


async def test_editing_an_old_message_and_leaving_it(folder: Path) -> None:
    app = ComposerApp(folder)
    old = (Attachment("notes.txt", "as it was"),)
    async with app.run_test() as pilot:
        await pilot.press(*"draft")
        app.composer.put("ask @notes.txt", old, mode="edit message 3")
        await pilot.pause()
        assert "edit message 3: Escape cancels" in str(app.query_one("#composer-mode").render())
        await pilot.press("escape")
        assert app.told == ["Cancelled"]
        assert app.text == "draft"
        assert app.names == []
        app.composer.put("ask @notes.txt", old, mode="edit message 3")
        await pilot.press("space", "x", "enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent == [MessageDraft("ask @notes.txt x", old)]
        assert app.text == "draft"
        assert app.composer.draft == MessageDraft("draft")
        app.composer.clear()
        assert app.text == ""


async def test_queued_prompts_are_shown_and_taken_back(folder: Path) -> None:
    app = ComposerApp(folder, past=["old"])
    async with app.run_test() as pilot:
        app.composer.queued(["first", "second\nline\x1b[0m"])
        await pilot.pause()
        line = app.query_one(WaitingLine)
        assert str(line.render()) == "2 wait (Up takes back): second line\u241b[0m"
        await pilot.press("up")
        assert app.told == ["TakeBack"]
        app.composer.queued([])
        await pilot.press("up")
        assert app.text == "old"
        assert not line.display


async def test_edits_are_told_once_they_have_settled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        monkeypatch.setattr(composer, "SETTLED_S", 600)  # however long the machine takes for each key
        await pilot.press(*"hell")
        monkeypatch.setattr(composer, "SETTLED_S", 0.3)
        await pilot.press("o")
        await wait_until(pilot, lambda: app.edits)
        assert app.edits == [MessageDraft("hello")]
        monkeypatch.setattr(composer, "SETTLED_S", 600)
        await pilot.press("left", "x")
        monkeypatch.setattr(composer, "SETTLED_S", 0.3)
        await pilot.press("backspace")
        await pilot.pause(0.5)
        assert app.edits == [MessageDraft("hello")]


async def test_keys_can_be_remapped(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.set_keymap({"composer.send": "ctrl+s", "composer.newline": "enter"})
        await pilot.press("a", "enter", "b", "ctrl+s")
        assert app.sent == [MessageDraft("a\nb")]


async def test_what_was_typed_before_comes_before_what_stands_there(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"later")
        app.composer.type_ahead("")
        await pilot.pause()
        assert app.text == "later"
        app.composer.type_ahead("one\n/help\n\nthe ")
        await wait_until(pilot, lambda: app.sent and app.told)
        assert app.sent == [MessageDraft("one")]
        assert app.told == ["/help"]
        await wait_until(pilot, lambda: app.text == "the later")
        app.composer.clear()
        app.composer.type_ahead("see @notes.txt\n")  # it is not sent unseen
        await pilot.pause()
        assert (app.text, len(app.sent)) == ("see @notes.txt\n", 1)


async def test_a_draft_that_is_left_comes_back_with_up(tmp_path: Path) -> None:
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press(*"half a thought")
        app.composer.keep_draft()
        app.composer.clear()
        await pilot.press("up")
        assert app.composer.draft.text == "half a thought"
