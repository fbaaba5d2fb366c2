"""How the chat screen looks: empty, with a conversation, while an answer is written; sizes and themes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import TextArea

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.widgets.chips import Chips
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script, ScriptedModel
from tests.app.tui.snapshots import LARGE, NORMAL, SMALL, Compare, chat_of, counted, opened, say, send
from tests.pictures import picture_file

Make = Callable[..., ChatApp]
ANSWER = """<think>
Lists are mutable, tuples are not. A table shows that.
</think>
A **list** can be changed, a *tuple* cannot:

| type  | literal  | changes |
|-------|----------|---------|
| list  | `[1, 2]` | yes     |
| tuple | `(1, 2)` | no      |

```python
def first(items: list[int]) -> int:
    \"\"\"The one at the front.\"\"\"
    return items[0]  # raises for an empty list
```

1. Use a list for what grows.
2. Use a tuple for what belongs together.

> Both keep their order.
"""
QUESTION = "What is the difference between a list and a tuple? [b]Briefly[/b], 日本語 too."


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def script() -> Script:
    return Script("Lists change.", ANSWER)


async def conversed(pilot: Pilot[int]) -> None:
    """A question, and the second answer to it."""
    await opened(pilot)
    await say(pilot, QUESTION)
    await say(pilot, "/regen")
    await counted(pilot)


N_COUNTED = 83
"""Tokens of the draft and its attachment."""


class Written:
    """An answer is being written, up to the middle of its code fence; a question waits, and one is being typed."""

    def __init__(self, script: Script, note: Path | None = None) -> None:
        self._script = script
        self._note = note

    async def __call__(self, pilot: Pilot[int]) -> None:
        screen = chat_of(pilot).chat_screen
        await opened(pilot)
        self._script.hold()
        await send(pilot, QUESTION)
        self._script.step(ANSWER[: ANSWER.index("The one")].count(" ") + 2)
        await wait_until(pilot, lambda: screen.transcript.last_answer.source.endswith("The one "))
        if self._note is not None:
            await send(pilot, "And what of sets?")
            screen.composer.attach(self._note)
            await wait_until(pilot, lambda: screen.composer.draft.attachments)
            screen.query_one(TextArea).insert("Sum this up")
            await wait_until(pilot, lambda: screen.query_one(Chips).n_tokens == N_COUNTED)
        screen.metered_s = 0.0
        screen.meter_answer()
        await pilot.pause()


def test_empty(snap_compare: Compare, make: Make) -> None:
    assert snap_compare(make(Script()), terminal_size=NORMAL, run_before=opened)


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
@pytest.mark.parametrize("size", [SMALL, NORMAL, LARGE])
def test_conversation(snap_compare: Compare, make: Make, size: tuple[int, int], theme: str) -> None:
    assert snap_compare(make(script(), theme=theme), terminal_size=size, run_before=conversed)


@pytest.mark.parametrize("size", [SMALL, NORMAL])
def test_conversation_without_colour(
    snap_compare: Compare, make: Make, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make(script()), terminal_size=size, run_before=conversed)


@pytest.mark.parametrize("size", [SMALL, NORMAL])
def test_while_an_answer_is_written(snap_compare: Compare, make: Make, size: tuple[int, int]) -> None:
    writing = Script(ANSWER)
    assert snap_compare(make(writing), terminal_size=size, run_before=Written(writing))


@pytest.mark.parametrize("size", [SMALL, NORMAL])
def test_with_an_image(snap_compare: Compare, make: Make, tmp_path: Path, size: tuple[int, int]) -> None:
    """One was answered, and another one is about to be sent."""
    path, answers = picture_file(tmp_path / "sea.png", 640, 480), Script("The sea, and a red sun over it.")

    async def sent(pilot: Pilot[int]) -> None:
        composer = chat_of(pilot).chat_screen.composer
        await opened(pilot)
        composer.attach(path)
        await wait_until(pilot, lambda: composer.draft.attachments)
        await say(pilot, "What is this?")
        composer.attach(path)
        await wait_until(pilot, lambda: composer.n_tokens is not None and composer.draft.attachments)
        await counted(pilot)

    seeing = make(answers, lambda settings, face: LoadedModel(ScriptedModel(answers, reads_images=True)))
    assert snap_compare(seeing, terminal_size=size, run_before=sent)


@pytest.mark.parametrize("size", [SMALL, NORMAL])
def test_with_a_queued_question_and_an_attachment(
    snap_compare: Compare, make: Make, tmp_path: Path, size: tuple[int, int]
) -> None:
    note = tmp_path / "notes.txt"
    note.write_text("one two three four\n" * 20)
    writing = Script(ANSWER)
    assert snap_compare(make(writing), terminal_size=size, run_before=Written(writing, note))
