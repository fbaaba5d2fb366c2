"""The sessions screen: lists, searches, opens, renames, deletes and brings back, exports and imports."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.screens.sessions import ChosenChat, SessionsScreen
from edgeinfer.app.tui.widgets.text_fields import EntryLine
from tests.app.tui.flows import wait_until
from tests.app.tui.sessions_app import Bare

SIZES = [(40, 12), (80, 24), (200, 60)]
NOW_S = 1_700_000_000.0


class Clock:
    """Goes on by an hour with each look, so that the order of changes is known."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        self.now_s += 3600
        return self.now_s


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionStore]:
    """Three chats: about Rome, about tea, about a hostile file."""
    monkeypatch.chdir(tmp_path)
    with SessionStore(tmp_path / "chats.db", Clock()) as opened:
        for question, answer in (
            ("When was Rome founded?", "By tradition in 753 BC, on the Palatine hill."),
            ("How long does green tea steep?", "Two minutes; longer makes it bitter."),
            ("What is [bold]this[/] \x1b[31m?", "A title that must not be markup, from Rome."),
        ):
            chat = opened.create(None, "tiny").number
            first = opened.add(chat, None, "user", question)
            opened.add(chat, first.number, "assistant", answer, model="tiny")
        yield opened


async def listed(pilot: Pilot[None], app: Bare, n: int) -> None:
    await wait_until(pilot, lambda: len(app.listed.rows) == n)


async def search(pilot: Pilot[None], app: Bare, query: str, n: int) -> None:
    app.field.focus()
    app.field.value = query
    await listed(pilot, app, n)


@pytest.mark.parametrize("size", SIZES)
async def test_chats_are_listed_newest_first_and_enter_opens(store: SessionStore, size: tuple[int, int]) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=size) as pilot:
        await listed(pilot, app, 3)
        assert [row.session for row in app.listed.rows] == [3, 2, 1]
        assert app.field.has_focus
        shown = [str(option.prompt) for option in app.listed.options]
        assert "What is [bold]this[/] [31m?"[:20] in shown[0]
        assert all(len(line) <= size[0] for line in shown)
        assert app.sessions.query_one("Footer").region.bottom == size[1]
        await pilot.press("down", "down", "up", "enter")
        assert app.answers == [ChosenChat(2, None)]


async def test_the_open_chat_is_marked_and_under_the_cursor(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, 1))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 3)
        await wait_until(pilot, lambda: app.listed.chosen is not None and app.listed.chosen.session == 1)
        marks = [str(option.prompt)[0] for option in app.listed.options]
        assert marks == [" ", " ", "•"]
        await pilot.press("escape")
        assert app.answers == [None]


async def test_a_search_goes_on_while_typing_and_opens_at_the_message(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press(*"bitt")
        await listed(pilot, app, 1)
        row = app.listed.rows[0]
        assert (row.session, row.who) == (2, "answer")
        prompt = app.listed.options[0].prompt
        assert "bitter" in str(prompt)
        assert any("bold" in str(span.style) for span in prompt.spans)  # type: ignore[union-attr]
        await pilot.press("enter")
        (chosen,) = app.answers
        assert chosen is not None
        assert next(m.text for m in store.messages(2) if m.number == chosen.message).startswith("Two minutes")


async def test_enter_before_the_search_is_done_opens_what_it_finds(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press(*"palatine", "enter")
        await wait_until(pilot, lambda: app.answers)
        assert app.answers[0] is not None
        assert app.answers[0].session == 1


async def test_a_query_may_be_given_and_may_be_anything(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None, query="rome"))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 2)
        assert {row.session for row in app.listed.rows} == {1, 3}
        await search(pilot, app, '"*) AND NEAR(', 0)
        assert "nothing has all of these words" in app.notice
        await search(pilot, app, "  ", 3)
        assert app.notice == ""


async def test_delete_and_bring_back(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, 3))
    async with app.run_test(size=(40, 12)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press("delete")
        await listed(pilot, app, 2)
        assert "brings it back" in app.notice
        await pilot.press("tab", "delete")
        await listed(pilot, app, 1)
        await pilot.press("u")
        await listed(pilot, app, 2)
        await pilot.press("ctrl+z")
        await listed(pilot, app, 3)
        assert app.listed.chosen is not None
        assert app.listed.chosen.session == 3
        assert [session.number for session in store.sessions()] == [3, 2, 1]
        assert "undo" not in [active.binding.action for active in app.sessions.active_bindings.values()]
        await pilot.press("u")
        assert app.sessions.is_current


async def test_delete_within_the_search_text_deletes_text(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None, query="rome"))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 2)
        app.field.cursor_position = 0
        await pilot.press("delete")
        assert app.field.value == "ome"
        assert len(store.sessions()) == 3
        await search(pilot, app, "rome", 2)
        app.field.cursor_position = 4
        await pilot.press("delete")
        await listed(pilot, app, 1)
        assert (app.field.value, len(store.sessions())) == ("rome", 2)


async def test_rename(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(40, 12)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press("f2")
        field = app.sessions.query_one(EntryLine).query_one(Input)
        assert field.value == "What is [bold]this[/] [31m?"
        await pilot.press("ctrl+u", *"plans", "enter")
        await wait_until(pilot, lambda: "plans" in app.titles)
        assert store.session(3).title == "plans"
        assert app.listed.has_focus
        await pilot.press("r")
        await wait_until(pilot, lambda: field.has_focus)
        await pilot.press(*"x", "escape")
        assert store.session(3).title == "plans"
        assert not app.sessions.query_one(EntryLine).is_open
        assert app.answers == []


async def test_export_and_import(store: SessionStore, tmp_path: Path) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press("tab", "down", "e", "enter")
        path = tmp_path / "How long does green tea steep.md"
        await wait_until(pilot, path.exists)
        await wait_until(pilot, lambda: "exported to How long" in app.notice)
        await pilot.press("e", "ctrl+u", *"c.json", "enter")
        await wait_until(pilot, (tmp_path / "c.json").exists)
        await pilot.press("e", "ctrl+u", *"c.json", "enter")
        await wait_until(pilot, lambda: "is there already" in app.notice)
        await search(pilot, app, "rome", 2)
        await pilot.press("f6", *"c.json", "enter")
        await listed(pilot, app, 4)
        await wait_until(pilot, lambda: app.listed.chosen is not None and app.listed.chosen.session == 4)
        assert "imported" in app.notice
        assert app.field.value == ""
        await pilot.press("i", *"none", "enter")
        await wait_until(pilot, lambda: "cannot be read" in app.notice)


async def test_without_chats_it_says_so(tmp_path: Path) -> None:
    with SessionStore(tmp_path / "empty.db") as store:
        app = Bare(SessionsScreen(store, None))
        async with app.run_test(size=(40, 12)) as pilot:
            await wait_until(pilot, lambda: "no saved chats yet" in app.notice)
            await pilot.press("delete", "f2", "f5", "enter", "down", "pagedown")
            assert not app.sessions.query_one(EntryLine).is_open
            assert app.answers == []


async def test_trouble_is_told(store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.app.sessions.database.PATIENCE_MS", 10)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    store._connection.execute("PRAGMA busy_timeout = 10")
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 3)
        other.execute("BEGIN IMMEDIATE")
        await pilot.press("delete")
        await wait_until(pilot, lambda: "another program holds it locked" in app.notice)
        other.execute("ROLLBACK")
        other.close()
        await pilot.press("delete")
        await listed(pilot, app, 2)


async def test_rows_follow_the_size_of_the_screen(store: SessionStore) -> None:
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(120, 24)) as pilot:
        await listed(pilot, app, 3)
        await pilot.press("down")
        assert "tiny" in str(app.listed.options[0].prompt)
        await pilot.resize_terminal(40, 12)
        await wait_until(pilot, lambda: "tiny" not in str(app.listed.options[0].prompt))
        assert app.listed.highlighted == 1


async def test_of_very_many_chats_the_newest_are_listed_and_all_are_searched(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.app.tui.screens.sessions.MOST_ROWS", 2)
    app = Bare(SessionsScreen(store, None))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, app, 2)
        assert app.field.placeholder == "search all; the newest 2 are listed"
        await search(pilot, app, "palatine", 1)
        assert app.listed.rows[0].session == 1
