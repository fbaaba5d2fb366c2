"""The app with the starter model: what is kept, reused, drafted, restored and summed up is what the engine says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import TextArea

from edgeinfer.app.sessions.snapshots import ENDING
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.launch import opened
from edgeinfer.app.tui.screens.viewer import ViewerScreen
from edgeinfer.engine.loading import load
from tests.app.tui.flows import wait_until

pytestmark = pytest.mark.model
SIZE = (100, 40)
QUESTION = "Write a short poem about the sea."


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models, chats or settings."""


@pytest.fixture
def options(starter_model: Path) -> dict[str, object]:
    """The starter model on the cpu, its likeliest tokens, not many of them."""
    return {"model": str(starter_model), "device": "cpu", "temp": 0.0, "max_tokens": 40, "history": False}


async def ready(app: ChatApp, pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: app.state.model is not None, 120)


async def say(app: ChatApp, pilot: Pilot[int], text: str) -> None:
    """Type a line, send it, and wait until nothing is written any more."""
    area = app.chat_screen.query_one(TextArea)
    area.clear()
    area.insert(text)
    await pilot.pause()
    await pilot.press("enter")
    await pilot.pause()
    await wait_until(pilot, lambda: app.chat_screen.writing is None, 120)


def answers(app: ChatApp) -> Iterator[str]:
    return (message.text for message in app.chat_screen.chat.branch if message.role == "assistant")


async def test_answers_are_the_engines_and_what_was_read_is_reused(options: dict[str, object]) -> None:
    with opened(options) as app:
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            await say(app, pilot, QUESTION)
            await say(app, pilot, "And another one.")
            said = list(answers(app))
            figures = app.chat_screen.chat.branch[-1].figures
            assert figures is not None
            assert figures.n_cached > 40
            answer = app.chat_screen.transcript.last_answer
            assert answer is not None
            assert sum(length for length, _ in answer.runs) == len(answer.source)
            await say(app, pilot, "/prompt")
            await wait_until(pilot, lambda: isinstance(app.screen, ViewerScreen))
            await pilot.press("escape")
    messages: list[dict[str, str]] = []
    with load(str(options["model"]), device="cpu") as llm:
        for question, answer in zip((QUESTION, "And another one."), said, strict=True):
            messages.append({"role": "user", "content": question})
            assert llm.chat(messages, temperature=0.0, max_tokens=40, repeat_penalty=1.0).read() == answer
            messages.append({"role": "assistant", "content": answer})


async def test_an_answer_that_was_cut_short_is_continued_as_if_it_had_not_been(options: dict[str, object]) -> None:
    with opened(options) as app:
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            await say(app, pilot, "/set max_tokens 15")
            await say(app, pilot, QUESTION)
            begun = next(answers(app))
            await say(app, pilot, "/set max_tokens 25")
            await say(app, pilot, "/continue")
            (whole,) = answers(app)
            assert whole.startswith(begun)
            assert len(app.chat_screen.chat.branch) == 2
    with load(str(options["model"]), device="cpu") as llm:
        chat = [{"role": "user", "content": QUESTION}]
        assert llm.chat(chat, temperature=0.0, max_tokens=40, repeat_penalty=1.0).read() == whole


LONG = "Remember this: " + " ".join(f"box {number} holds {number * 7} stones." for number in range(60))


async def begin_long_chat(options: dict[str, object]) -> int:
    """Begin a chat with a long question in a run of its own, and return its number."""
    with opened(options) as app:
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            await say(app, pilot, LONG)
            number = app.chat_screen.chat.number
            assert number is not None
            await pilot.press("ctrl+q")
            return number


@pytest.mark.parametrize("keeps_prefixes", [True, False])
async def test_a_long_chat_goes_on_at_once_in_another_run(options: dict[str, object], keeps_prefixes: bool) -> None:
    options = {**options, "prefix_cache": keeps_prefixes}
    number = await begin_long_chat(options)
    with opened(options) as app:
        told: list[str] = []
        app.chat_screen.tell = lambda text, is_error=False: told.append(text)  # type: ignore[method-assign]
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            await app.chat_screen.open_chat(number)
            n_restored = 0
            if not keeps_prefixes:
                await wait_until(pilot, lambda: any("in memory already" in text for text in told), 60)
                n_restored = int(told[-1].split()[0].replace(",", ""))
            await say(app, pilot, "How many stones?")
            figures = app.chat_screen.chat.branch[-1].figures
            assert figures is not None
            assert figures.n_cached >= max(n_restored - 1, 501)
            said = list(answers(app))
    messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": said[0]}]
    messages.append({"role": "user", "content": "How many stones?"})
    with load(str(options["model"]), device="cpu") as llm:
        assert llm.chat(messages, temperature=0.0, max_tokens=40, repeat_penalty=1.0).read() == said[1]


async def test_a_snapshot_of_an_earlier_version_is_read_once(options: dict[str, object], home: Path) -> None:
    """As of a model that kept no prefixes then, and does now."""
    number = await begin_long_chat({**options, "prefix_cache": False})
    assert len(list(home.rglob(f"*{ENDING}"))) == 1
    with opened({**options, "prefix_cache": True}) as app:
        told: list[str] = []
        app.chat_screen.tell = lambda text, is_error=False: told.append(text)  # type: ignore[method-assign]
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            await app.chat_screen.open_chat(number)
            await wait_until(pilot, lambda: any("in memory already" in text for text in told), 60)
            await say(app, pilot, "How many stones?")
            figures = app.chat_screen.chat.branch[-1].figures
            assert figures is not None
            assert figures.n_cached > 501
            await pilot.press("ctrl+q")
    assert list(home.rglob(f"*{ENDING}")) == []


async def test_a_full_context_is_summed_up_and_the_chat_goes_on(options: dict[str, object]) -> None:
    with opened({**options, "ctx": 512}) as app:
        async with app.run_test(size=SIZE) as pilot:
            await ready(app, pilot)
            for number in range(4):
                await say(app, pilot, f"Tell me about the number {number}, please, and why it matters. " * 3)
            before = app.chat_screen.chat.branch
            await say(app, pilot, "/compact")
            branch = app.chat_screen.chat.branch
            assert branch[0].role == "summary"
            assert branch[0].text
            assert len(branch) < len(before)
            assert all(app.chat_screen.chat.tree.has(message.number) for message in before)
            await say(app, pilot, "Thanks.")
            assert app.chat_screen.chat.branch[-1].text
            assert "Summary" in str(app.chat_screen.chat.prompt()[0].content)
