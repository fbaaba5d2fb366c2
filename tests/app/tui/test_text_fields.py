"""Text fields: signs that join others are typed like all others, in lines and areas."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.events import Key
from textual.widgets import Input, TextArea

from edgeinfer.app.tui.widgets.text_fields import Area, DraftInput, Field
from tests.app.tui.composer_app import ComposerApp
from tests.app.tui.flows import wait_until

FAMILY = "👨\u200d👩\u200d👧\u200d👦"


class Fields(App[None]):
    def compose(self) -> ComposeResult:
        yield Field()
        yield Area()
        yield Area(read_only=True)


def type_into(app: App[None], text: str) -> None:
    """As a terminal without bracketed paste, or an input method, sends it: sign by sign, all at once."""
    for sign in text:
        app.post_message(Key(sign, sign))


async def test_a_family_stays_together_in_every_field() -> None:
    app = Fields()
    async with app.run_test() as pilot:
        field, area, closed = app.query_one(Field), *app.query(Area)
        type_into(app, f"a{FAMILY}b")
        await wait_until(pilot, lambda: field.value == f"a{FAMILY}b")
        area.focus()
        await pilot.pause()
        type_into(app, f"a{FAMILY}b")
        await wait_until(pilot, lambda: area.text == f"a{FAMILY}b")
        closed.focus()
        await pilot.pause()
        type_into(app, FAMILY)
        await pilot.pause()
        assert closed.text == ""


async def test_no_cursor_blinks(tmp_path: Path) -> None:
    """Each blink would draw, and keep the processor from resting."""
    for app in (Fields(), ComposerApp(tmp_path)):
        async with app.run_test():
            fields = [*app.query(Input), *app.query(TextArea)]
            assert fields
            assert not any(field.cursor_blink for field in fields)


async def test_a_family_that_is_typed_is_sent(tmp_path: Path) -> None:
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        type_into(app, f"a{FAMILY}b")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent[0].text == f"a{FAMILY}b"


async def test_other_invisible_signs_are_not_typed(tmp_path: Path) -> None:
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        type_into(app, "a\u202e\x1b\u200bb")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent[0].text == "ab"


def press(app: App[None], text: str) -> None:
    """Keys as a terminal without bracketed paste sends what is pasted."""
    for sign in text:
        app.post_message(Key("enter", "\r") if sign == "\n" else Key(sign, sign))


PASTED = [
    "\n".join(f"line {number} of thirty" for number in range(30)),
    f"これは一行目です。\n{FAMILY} と 🇯🇵 の二行目\n三行目",
    "one\n\n\ntwo\n",
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields count as used for a while from the beginning."""
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.STARTING_S", 0)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("text", PASTED)
async def test_line_ends_of_a_paste_without_marks_send_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.PASTED_S", 10.0)
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.JUST_NOW_S", 10.0)
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        press(app, text)
        await wait_until(pilot, lambda: app.text == text)
        assert not app.sent
        monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.JUST_NOW_S", -1.0)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert [draft.text for draft in app.sent] == [text.strip("\n")]


async def test_lines_that_waited_while_the_app_started_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.PASTED_S", 10.0)
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.JUST_NOW_S", 10.0)
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.STARTING_S", 60.0)
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        press(app, "one\ntwo\nthree\n")
        await wait_until(pilot, lambda: len(app.sent) == 3)
        assert [draft.text for draft in app.sent] == ["one", "two", "three"]


@pytest.mark.usefixtures("started")
async def test_a_line_that_is_pasted_with_its_end_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.PASTED_S", 0.05)
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.JUST_NOW_S", 10.0)
    app = ComposerApp(tmp_path)
    async with app.run_test() as pilot:
        press(app, "hello\n")
        await wait_until(pilot, lambda: app.sent)
        assert [draft.text for draft in app.sent] == ["hello"]


async def test_a_paste_of_wide_signs_is_edited_by_words(tmp_path: Path) -> None:
    lines = ["これは 一行目 です", f"{FAMILY} と 🇯🇵 の", "三行目"]
    app = ComposerApp(tmp_path)
    async with app.run_test(size=(40, 20)) as pilot:
        app.paste("\n".join(lines))
        await wait_until(pilot, lambda: app.text == "\n".join(lines))
        assert not app.sent
        field = app.query_one(DraftInput)
        assert field.cursor_location == (2, 3)
        assert app.cursor_position.x - field.content_region.x == 6  # three signs, two cells wide each
        await pilot.press("ctrl+w")
        assert app.text == "\n".join([*lines[:2], ""])
        await pilot.press("up", "home", "backspace")
        assert app.text == f"{lines[0]}{lines[1]}\n"
        await pilot.resize_terminal(30, 12)
        await pilot.press("enter")
        assert [draft.text for draft in app.sent] == [f"{lines[0]}{lines[1]}"]
