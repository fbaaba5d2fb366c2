"""NO_COLOR: no colour is written, and what is chosen is seen all the same."""

from __future__ import annotations

import pytest
from rich.color import ColorType
from rich.style import Style
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Input, OptionList, TextArea, Tree

from edgeinfer.app.tui.app import NO_COLOUR_CSS, ansi_colour


class Bare(App[None]):
    """One widget of each kind that has a cursor."""

    CSS = NO_COLOUR_CSS + "\nOptionList, Tree, DataTable, TextArea { height: 4; }"

    def compose(self) -> ComposeResult:
        yield OptionList("one", "chosen")
        yield Input("typed")
        yield TextArea("written", id="area")
        tree: Tree[None] = Tree("root")
        tree.root.expand()
        tree.root.add_leaf("leaf")
        yield tree
        table: DataTable[str] = DataTable(cursor_type="row")
        table.add_column("heading")
        table.add_row("cell")
        yield table


def styles_of(app: App[None], text: str) -> list[Style]:
    """The styles in which pieces of text with these words are drawn."""
    strips = app.screen._compositor.render_strips()
    return [piece.style for strip in strips for piece in strip if text in piece.text and piece.style is not None]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
@pytest.mark.parametrize(
    ("kind", "keys", "seen"),
    [
        (OptionList, ["down"], "chosen"),
        (Input, ["home", "shift+end"], "typed"),
        (TextArea, ["ctrl+a", "shift+end"], "written"),
        (Tree, ["down"], "leaf"),
        (DataTable, [], "cell"),
    ],
)
async def test_the_cursor_is_seen(
    monkeypatch: pytest.MonkeyPatch, theme: str, kind: type[OptionList], keys: list[str], seen: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Bare(ansi_color=ansi_colour({"NO_COLOR": "1"}))
    async with app.run_test(size=(40, 24)) as pilot:
        app.theme = theme
        app.query_one(kind).focus()
        await pilot.press(*keys)
        await pilot.pause()
        drawn = styles_of(app, seen)
        assert drawn
        assert any(style.reverse or style.underline for style in drawn)


@pytest.mark.parametrize("theme", ["textual-dark", "ansi-light"])
async def test_widgets_of_textual_write_no_colour(monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    app = Bare(ansi_color=ansi_colour({"NO_COLOR": ""}))
    async with app.run_test(size=(40, 24)) as pilot:
        app.theme = theme
        await pilot.pause()
        colours = {
            colour.type
            for strip in app.screen._compositor.render_strips()
            for piece in strip
            if piece.style is not None
            for colour in (piece.style.color, piece.style.bgcolor)
            if colour is not None
        }
        assert colours <= {ColorType.DEFAULT}


def test_with_colours_the_theme_decides() -> None:
    assert ansi_colour({}) is None
