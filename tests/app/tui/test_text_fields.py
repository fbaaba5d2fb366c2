"""Text fields: signs that join others are typed like all others, in lines and areas."""

from __future__ import annotations

from pathlib import Path

from textual.app import App, ComposeResult
from textual.events import Key

from edgeinfer.app.tui.widgets.text_fields import Area, Field
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
