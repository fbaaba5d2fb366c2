"""Messages from the engine thread to the app, one small class each.

In: plain values and frozen records. Messages of widgets are defined next to the widgets; these belong to the app.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from edgeinfer.app.sessions.records import Figures, State
from edgeinfer.app.tui.engine import EngineModel, Runs


class ModelOpening(Message, bubble=False):
    """Progress of opening a model: the current step, how much is done, and the total (0: unknown)."""

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
    """Asks whether to download a model that the user did not name; the engine thread waits for `answer`."""

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
    """A model could not be opened. `model`: the previous one, if it is still open or open again.

    `setting`: the value of the `model` setting for that one; None for the model used last.
    """

    def __init__(self, reason: str, model: EngineModel | None = None, setting: str | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.model = model
        self.setting = setting


class ChatRestored(Message, bubble=False):
    """The KV cache of a chat, with `n_tokens` tokens, has been restored."""

    def __init__(self, chat: int, n_tokens: int) -> None:
        super().__init__()
        self.chat = chat
        self.n_tokens = n_tokens


class PromptRead(Message, bubble=False):
    """Progress of prefill: tokens of the prompt that have been processed, and their total."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


class Grown(Message, bubble=False):
    """New text is in the buffer."""


class Answered(Message, bubble=False):
    """An answer is finished: its whole text, its state, its figures, and the draft source of each run of text.

    `n_summarised`: the number of messages it summarises, for a summary.
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
    """A notice for the user."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        super().__init__()
        self.text = text
        self.is_error = is_error
