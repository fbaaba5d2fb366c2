"""What the engine's thread tells the app: one small message class each.

In: plain values and frozen records. Widgets have messages of their own beside them; these are the app's.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from edgeinfer.app.sessions.records import Figures, State
from edgeinfer.app.tui.engine import EngineModel, Runs


class ModelOpening(Message, bubble=False):
    """A model is being opened: what is done, how much of it, and how much there is (0: unknown)."""

    def __init__(self, what: str, done: int, total: int) -> None:
        super().__init__()
        self.what = what
        self.done = done
        self.total = total


class ModelChosen(Message, bubble=False):
    """The model of this name and size is about to be loaded."""

    def __init__(self, name: str, nbytes: int) -> None:
        super().__init__()
        self.name = name
        self.nbytes = nbytes


class DownloadAsked(Message, bubble=False):
    """A model that nobody named would have to be fetched; the engine's thread waits for `answer`."""

    def __init__(self, text: str, answer: Callable[[bool], None]) -> None:
        super().__init__()
        self.text = text
        self.answer = answer


class ModelOpened(Message, bubble=False):
    """A model is ready."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__()
        self.model = model


class ModelFailed(Message, bubble=False):
    """A model could not be opened. `model`: the one before, if it is still open, or open again.

    `setting`: how the settings named that one; None for the one used last.
    """

    def __init__(self, reason: str, model: EngineModel | None = None, setting: str | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.model = model
        self.setting = setting


class ChatRestored(Message, bubble=False):
    """What was read of a chat is in memory again: so many tokens."""

    def __init__(self, chat: int, n_tokens: int) -> None:
        super().__init__()
        self.chat = chat
        self.n_tokens = n_tokens


class PromptRead(Message, bubble=False):
    """So many tokens of the prompt are read."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


class Grown(Message, bubble=False):
    """There is text to take."""


class Answered(Message, bubble=False):
    """An answer is over: its whole text, how it ended, its numbers, and which of it was drafted by whom.

    `n_summarised`: messages that it is a summary of.
    """

    def __init__(
        self,
        job: int,
        text: str,
        state: State,
        figures: Figures | None,
        runs: Runs,
        notices: tuple[str, ...],
        n_summarised: int = 0,
    ) -> None:
        super().__init__()
        self.job = job
        self.text = text
        self.state = state
        self.figures = figures
        self.runs = runs
        self.notices = notices
        self.n_summarised = n_summarised


class Notified(Message, bubble=False):
    """Something the user should know."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        super().__init__()
        self.text = text
        self.is_error = is_error
