"""How the transcript looks: sizes, themes, states."""

from __future__ import annotations

from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.widgets.entries import AnswerEntry, ChatEntry, QuestionEntry
from tests.app.tui.flows import wait_until
from tests.app.tui.transcript_app import Shown
from tests.pictures import picture

SIZES = [(40, 12), (100, 40), (200, 60)]
THEMES = ["textual-dark", "textual-light", "ansi-dark"]
NOTE = "142 tokens, 48.3 tok/s, first after 0.21 s"
MARKDOWN = """<think>
A list, a table and some code will do.
</think>

# Reading a file

Open it with `open`, and **close** it. See [the manual](https://docs.python.org/3/).

1. Name the encoding:

   ```python
   with open(path, encoding="utf-8") as file:
       text = file.read()
   ```

2. Mind *errors*:
   - a missing file
   - a directory
3. Done

| error | when |
|---|---|
| `FileNotFoundError` | there is none |
| `IsADirectoryError` | it is a directory |

> Files are closed by `with`.

```python
def lines(path: str) -> list[str]:
    \"\"\"All lines of a file.\"\"\"
    return open(path).read().splitlines()  # 日本語
```

<b>HTML</b> and ![a picture](cat.png) stay \x1b[31mtext\x1b[0m. 👩‍🚀"""


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(self, app: App[None], *, terminal_size: tuple[int, int], run_before: object) -> bool: ...


def branch() -> list[ChatEntry]:
    question = QuestionEntry(1, "How do I read a file?", (Attachment("notes.txt", "x" * 1234),))
    answer = AnswerEntry(2, MARKDOWN, note=NOTE)
    answer.show_siblings(2, 3)
    return [question, answer]


async def quiet(pilot: Pilot[None]) -> None:
    """Everything is drawn."""
    app = pilot.app
    assert isinstance(app, Shown)
    await wait_until(pilot, lambda: app.transcript.is_drawn)


async def selected(pilot: Pilot[None]) -> None:
    """The question is selected."""
    await quiet(pilot)
    app = pilot.app
    assert isinstance(app, Shown)
    app.transcript.select_previous()
    app.transcript.select_previous()
    await quiet(pilot)


async def writing(pilot: Pilot[None]) -> None:
    """An answer is in the middle of code, its thought is over."""
    app = pilot.app
    assert isinstance(app, Shown)
    answer = AnswerEntry(3)
    await app.transcript.add(answer)
    answer.begin()
    answer.grow("<think>short</think>Here:\n\n```python\nfor n in range(3):\n    pri")
    await wait_until(pilot, lambda: "pri" in app.text)


async def thinking(pilot: Pilot[None]) -> None:
    """An answer is being thought about."""
    app = pilot.app
    assert isinstance(app, Shown)
    answer = AnswerEntry(3)
    await app.transcript.add(answer)
    answer.begin()
    answer.grow("<think>\nThe user wants to know about files.\n\nSo I sh")
    await wait_until(pilot, lambda: "So I sh" in app.text)


async def tinted(pilot: Pilot[None]) -> None:
    """What was drafted is shown."""
    app = pilot.app
    assert isinstance(app, Shown)
    answer = AnswerEntry(3, "One two three four five.", note=NOTE)
    answer.runs = ((4, None), (4, "ngram"), (6, None), (5, "copy"), (5, None))
    await app.transcript.show([answer])
    answer.toggle_tint()
    await wait_until(pilot, lambda: "drafted by" in app.text)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_branch(snap_compare: Compare, size: tuple[int, int], theme: str) -> None:
    assert snap_compare(Shown(branch(), theme), terminal_size=size, run_before=quiet)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES[:2])
def test_images(snap_compare: Compare, size: tuple[int, int], theme: str) -> None:
    images = [
        Attachment("sea.png", "", kept_image(picture(640, 480), "")),
        Attachment("tall.png", "", kept_image(picture(90, 1600), "")),
    ]
    entries = [
        QuestionEntry(1, "What is this?", images[1:] + images[:1], lambda image: 812),
        AnswerEntry(2, "The sea."),
    ]
    assert snap_compare(Shown(entries, theme), terminal_size=size, run_before=quiet)


@pytest.mark.parametrize("theme", THEMES)
def test_selected(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(Shown(branch(), theme), terminal_size=(80, 24), run_before=selected)


@pytest.mark.parametrize("theme", THEMES)
def test_tinted(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(Shown((), theme), terminal_size=(40, 12), run_before=tinted)


def test_writing(snap_compare: Compare) -> None:
    assert snap_compare(Shown(branch()), terminal_size=(80, 24), run_before=writing)


def test_thinking(snap_compare: Compare) -> None:
    assert snap_compare(Shown(branch()), terminal_size=(80, 24), run_before=thinking)


def test_without_colour(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(Shown(branch()), terminal_size=(100, 40), run_before=quiet)
