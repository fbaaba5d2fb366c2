"""The viewer: a text as it is, scrolled by keys and copied whole; what it holds cannot reach the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Static, TextArea

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens import viewer
from edgeinfer.app.tui.screens.viewer import ViewerScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


class Around(App[None]):
    """An app with nothing but the viewer."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._view = ViewerScreen(title, text)
        self.left = False

    def on_mount(self) -> None:
        self.push_screen(self._view, self._leave)

    def _leave(self, _: None) -> None:
        self.left = True


def shown(app: App[None], id: str) -> str:
    return str(app.screen.query_one(f"#viewer-{id}", Static).content)


async def test_markup_is_text_and_control_characters_are_signs() -> None:
    app = Around("a [b]title[/]", "x [red]y[/] \x1b[31mz\a\n\tend")
    async with app.run_test(size=(80, 24)):
        assert shown(app, "title") == "a [b]title[/]"
        text = shown(app, "text")
        assert "[red]y[/]" in text
        assert "\x1b" not in text
        assert "\a" not in text
        assert "end" in text


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_keys_leave_it(key: str) -> None:
    app = Around("title", "text")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await wait_until(pilot, lambda: app.left)


async def test_long_texts_are_scrolled_by_keys() -> None:
    app = Around("title", "\n".join(f"line {n} " + "word " * 30 for n in range(100)))
    async with app.run_test(size=(40, 12)) as pilot:
        scroll = app.screen.query_one(VerticalScroll)
        await wait_until(pilot, lambda: scroll.max_scroll_y > 100)  # lines are folded, not cut
        assert scroll.max_scroll_x == 0
        await pilot.press("end")
        await wait_until(pilot, lambda: scroll.scroll_y == scroll.max_scroll_y)


@pytest.mark.parametrize("key", ["y", "ctrl+y"])
async def test_the_whole_text_is_copied_as_it_is(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    from edgeinfer.app.tui.clipboard import Copied

    copied: list[str] = []

    async def copy(app: App[None], text: str) -> Copied:
        copied.append(text)
        return Copied("copied")

    monkeypatch.setattr(viewer, "copy", copy)
    app = Around("title", "x\x1b[31m\ny\n")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await wait_until(pilot, lambda: copied == ["x\x1b[31m\ny\n"])


async def test_the_prompt_is_shown_as_the_model_is_given_it(make: Make) -> None:
    app = make(Script("Hello"), system="Be brief.")
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        area = app.chat_screen.query_one(TextArea)
        for line in ("Hi", "/prompt"):
            area.insert(line)
            await pilot.pause()
            await pilot.press("enter")
            await wait_until(pilot, lambda: app.chat_screen.writing is None)
        await wait_until(pilot, lambda: isinstance(app.screen, ViewerScreen))
        await pilot.pause()
        text = str(app.screen.query_one("#viewer-text", Static).content)
        assert text == "<|system|> Be brief.\n<|user|> Hi\n<|assistant|> Hello\n"
