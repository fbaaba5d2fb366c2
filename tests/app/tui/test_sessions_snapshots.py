"""How the sessions screen looks: sizes, themes, states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.screens.sessions import SessionsScreen
from edgeinfer.app.tui.widgets.text_fields import EntryLine
from tests.app.tui.flows import wait_until
from tests.app.tui.sessions_app import Bare

SIZES = [(40, 12), (80, 24), (120, 40)]
THEMES = ["textual-dark", "textual-light", "ansi-dark"]
NOW_S = 1_700_000_000.0
CHATS = (
    ("How do readers and writers share a file in SQLite, and who waits for whom?", "With a write-ahead log, nobody."),
    ("日本語の質問です。とても長い題名なので、ここで切れるはずです", "はい。"),
    ("What is [bold]this[/]?", "Text, not markup: it says so in the log of the ship."),
    ("Pack for a week in the hills", "A log book, boots, rope."),
)


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(self, app: App[None], *, terminal_size: tuple[int, int], run_before: object) -> bool: ...


class Clock:
    """Some hours between one chat and the next, up to now."""

    def __init__(self) -> None:
        self.now_s = NOW_S - 100 * 3600

    def __call__(self) -> float:
        self.now_s += 6 * 3600
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db", Clock()) as opened:
        for question, answer in CHATS:
            chat = opened.create(None, None).number
            first = opened.add(chat, None, "user", question)
            opened.add(chat, first.number, "assistant", answer, model="SmolLM2-135M-Instruct-Q8_0")
        yield opened


def screen(store: SessionStore, query: str = "") -> SessionsScreen:
    return SessionsScreen(store, 2, query, clock=lambda: NOW_S)


async def listed(pilot: Pilot[None]) -> None:
    """The list has come."""
    app = pilot.app
    assert isinstance(app, Bare)
    await wait_until(pilot, lambda: app.listed.rows)


async def deleted(pilot: Pilot[None]) -> None:
    """A chat is deleted."""
    await listed(pilot)
    await pilot.press("delete")
    app = pilot.app
    assert isinstance(app, Bare)
    await wait_until(pilot, lambda: len(app.listed.rows) == len(CHATS) - 1)


async def renaming(pilot: Pilot[None]) -> None:
    """A title is asked for."""
    await listed(pilot)
    app = pilot.app
    assert isinstance(app, Bare)
    await pilot.press("tab", "r")
    await wait_until(pilot, lambda: app.sessions.query_one(EntryLine).is_open)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_list(snap_compare: Compare, store: SessionStore, size: tuple[int, int], theme: str) -> None:
    assert snap_compare(Bare(screen(store), theme), terminal_size=size, run_before=listed)


@pytest.mark.parametrize("size", SIZES)
def test_search(snap_compare: Compare, store: SessionStore, size: tuple[int, int]) -> None:
    assert snap_compare(Bare(screen(store, "log")), terminal_size=size, run_before=listed)


@pytest.mark.parametrize("size", SIZES[:1])
def test_deleted(snap_compare: Compare, store: SessionStore, size: tuple[int, int]) -> None:
    assert snap_compare(Bare(screen(store)), terminal_size=size, run_before=deleted)


@pytest.mark.parametrize("theme", THEMES)
def test_renaming(snap_compare: Compare, store: SessionStore, theme: str) -> None:
    assert snap_compare(Bare(screen(store), theme), terminal_size=(40, 12), run_before=renaming)


def test_without_colour(snap_compare: Compare, store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(Bare(screen(store)), terminal_size=(80, 24), run_before=listed)
