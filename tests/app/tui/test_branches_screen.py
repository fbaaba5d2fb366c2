"""The branches screen: the whole tree of a chat; the branch that is chosen is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import TextArea, Tree
from textual.widgets.tree import TreeNode

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.branches import HEADING, BranchesScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]
SIZE = (100, 40)


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


async def say(app: ChatApp, pilot: Pilot[int], text: str) -> None:
    """Send a line, and wait until it is done with."""
    area = app.chat_screen.query_one(TextArea)
    area.clear()
    area.insert(text)
    await pilot.pause()
    await pilot.press("enter")
    await wait_until(pilot, lambda: app.chat_screen.writing is None and not app.chat_screen.prompted)


async def with_siblings(app: ChatApp, pilot: Pilot[int]) -> None:
    """A question with two answers; the second is followed by a question and its answer."""
    await say(app, pilot, "Name one")
    await say(app, pilot, "/regen")
    await say(app, pilot, "And then?")


async def opened(app: ChatApp, pilot: Pilot[int]) -> Tree[int]:
    await pilot.press("ctrl+t")
    await wait_until(pilot, lambda: isinstance(app.screen, BranchesScreen))
    await pilot.pause()
    found: Tree[int] = app.screen.query_one(Tree)
    return found


def shape(node: TreeNode[int]) -> list[object]:
    """Labels, with those below as lists."""
    found: list[object] = []
    for child in node.children:
        found.append(str(child.label))
        if child.children:
            found.append(shape(child))
    return found


def shown(app: ChatApp) -> list[str]:
    return [message.text for message in app.chat_screen.chat.branch]


def bold(node: TreeNode[int]) -> set[str]:
    """Labels of the branch that is shown."""
    here = {str(child.label) for child in node.children if "bold" in str(getattr(child.label, "style", ""))}
    return here.union(*(bold(child) for child in node.children))


async def test_the_tree_has_every_message_and_the_branch_shown_in_bold(make: Make) -> None:
    app = make(Script("apple", "pear", "plum"))
    async with app.run_test(size=SIZE) as pilot:
        await with_siblings(app, pilot)
        tree = await opened(app, pilot)
        assert shape(tree.root) == ["● > Name one", ["  1/2 apple", "● 2/2 pear", ["● > And then?", "● plum"]]]
        assert bold(tree.root) == {"● > Name one", "● 2/2 pear", "● > And then?", "● plum"}
        assert str(tree.root.label) == HEADING
        await wait_until(pilot, lambda: tree.cursor_node is not None and str(tree.cursor_node.label) == "● plum")


async def test_the_answer_to_an_edited_question_stands_under_it_and_is_no_alternative(make: Make) -> None:
    app = make(Script("apple", "Paris", "pear"))
    async with app.run_test(size=SIZE) as pilot:
        await say(app, pilot, "Name one")
        await say(app, pilot, "/edit")
        await say(app, pilot, "Name a city")
        tree = await opened(app, pilot)
        assert shape(tree.root) == ["  1/2 > Name one", ["  apple"], "● 2/2 > Name a city", ["● Paris"]]
        await pilot.press("escape")
        await say(app, pilot, "/regen")
        tree = await opened(app, pilot)
        assert shape(tree.root)[2:] == ["● 2/2 > Name a city", ["  1/2 Paris", "● 2/2 pear"]]


async def test_what_follows_one_of_several_answers_is_told_apart(make: Make) -> None:
    app = make(Script("apple", "pear", "plum", "quince"))
    async with app.run_test(size=SIZE) as pilot:
        await with_siblings(app, pilot)
        await say(app, pilot, "/edit")
        await say(app, pilot, "And before?")
        tree = await opened(app, pilot)
        assert shape(tree.root) == [
            "● > Name one",
            ["  1/2 apple", "● 2/2 pear", ["  1/2 > And then?", ["  plum"], "● 2/2 > And before?", ["● quince"]]],
        ]


async def test_the_branch_of_the_message_chosen_is_shown(make: Make) -> None:
    app = make(Script("apple", "pear", "plum"))
    async with app.run_test(size=SIZE) as pilot:
        await with_siblings(app, pilot)
        assert shown(app) == ["Name one", "pear", "And then?", "plum"]
        tree = await opened(app, pilot)
        await pilot.press("home", "down", "down")
        assert str(getattr(tree.cursor_node, "label", "")) == "  1/2 apple"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat_screen and shown(app) == ["Name one", "apple"])
        assert app.chat_screen.transcript.last_answer.source == "apple"
        assert (app.chat_screen.chat.places[-1].index, app.chat_screen.chat.places[-1].n_siblings) == (1, 2)


async def test_escape_changes_nothing(make: Make) -> None:
    app = make(Script("apple", "pear", "plum"))
    async with app.run_test(size=SIZE) as pilot:
        await with_siblings(app, pilot)
        before = shown(app)
        await opened(app, pilot)
        await pilot.press("up", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert shown(app) == before


async def test_the_heading_is_no_branch(make: Make) -> None:
    app = make(Script("apple"))
    async with app.run_test(size=SIZE) as pilot:
        await say(app, pilot, "Name one")
        await opened(app, pilot)
        await pilot.press("home", "enter")
        await pilot.pause()
        assert isinstance(app.screen, BranchesScreen)


async def test_an_empty_chat_has_none(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert app.screen is app.chat_screen


async def test_what_messages_hold_is_only_text(make: Make) -> None:
    app = make(Script("[red]a[/]\x1b[31m\nb" + "x" * 500))
    async with app.run_test(size=SIZE) as pilot:
        await say(app, pilot, "Hi")
        tree = await opened(app, pilot)
        label = str(tree.root.children[-1].label)
        assert label.startswith("● [red]a[/]")
        assert "\x1b" not in label
        assert "\n" not in label
        assert len(label) <= 200
