"""What passes between the app and its engine thread: jobs one way, messages and the text of answers the other.

In and out: plain values and frozen records. Setting `stopped` cancels a job. Messages of widgets are defined next to
the widgets; these belong to the app. Knows neither the engine nor the screens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual import message

from edgeinfer.app.sessions.records import Figures, MadeCall, State, ToolRound
from edgeinfer.app.step_clock import Unit
from edgeinfer.app.tui.engine import EngineModel, Runs
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.mcp.answering import Permission
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.models.text import Message


@dataclass(frozen=True, slots=True, eq=False)
class OpenModelJob:
    """Open the model of these settings, in place of the current one."""

    settings: Settings
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerJob:
    """Answer a conversation, or continue it if it ends with an answer. `number` identifies the job in its messages.

    `before`: the existing text of an answer that is continued.
    """

    number: int
    chat: int
    messages: tuple[Message, ...]
    options: Options
    before: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class MapInstruction:
    """What to do with each of many items, and the system prompt that stands before it."""

    text: str
    system: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BesideJob(AnswerJob):
    """Write several answers to a conversation and keep one, or follow an instruction for each of many items.

    `answers`: the numbers under which the text of each answer goes into the buffer; `items`: empty for several answers.
    """

    answers: tuple[int, ...] = ()
    pick: str = "vote"
    instruction: MapInstruction = MapInstruction("")
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Summarise:
    """Summarise the oldest of these messages, so that about half of the context becomes free."""

    number: int
    chat: int
    messages: tuple[Message, ...]
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class EnterChat:
    """Switch chats: save the KV cache of the current chat and restore that of the new one."""

    chat: int | None
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class CloseJob:
    """Close everything and end the thread."""

    stopped: threading.Event = field(default_factory=threading.Event)


Job = OpenModelJob | AnswerJob | BesideJob | Summarise | EnterChat | CloseJob


class ModelOpening(message.Message, bubble=False):
    """Progress of opening a model: the current step, how much is done, and the total (0: unknown).

    `rate`: per second, if it was measured.
    """

    def __init__(self, what: str, done: int, total: int, *, unit: Unit = "count", rate: float | None = None) -> None:
        super().__init__()
        self.unit: Unit = unit
        self.rate = rate
        self.what = what
        self.done = done
        self.total = total


class ModelChosen(message.Message, bubble=False):
    """The model of this name and size is about to be loaded."""

    def __init__(self, name: str, nbytes: int) -> None:
        super().__init__()
        self.name = name
        self.nbytes = nbytes


class DownloadAsked(message.Message, bubble=False):
    """Asks whether to download a model that the user did not name; the engine thread waits for `answer`."""

    def __init__(self, text: str, answer: Callable[[bool], None]) -> None:
        super().__init__()
        self.text = text
        self.answer = answer


class FirstModelAsked(message.Message, bubble=False):
    """Asks which model to begin with; the engine thread waits for `answer`: a name or a source, "" for none."""

    def __init__(self, answer: Callable[[str], None]) -> None:
        super().__init__()
        self.answer = answer


class ModelOpened(message.Message, bubble=False):
    """A model is ready."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__()
        self.model = model


class ModelFailed(message.Message, bubble=False):
    """A model could not be opened. `model`: the previous one, if it is still open or open again.

    `setting`: the value of the `model` setting for that one; None for the model used last.
    """

    def __init__(self, reason: str, model: EngineModel | None = None, setting: str | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.model = model
        self.setting = setting


class ChatRestored(message.Message, bubble=False):
    """The KV cache of a chat, with `n_tokens` tokens, has been restored."""

    def __init__(self, chat: int, n_tokens: int) -> None:
        super().__init__()
        self.chat = chat
        self.n_tokens = n_tokens


class PromptRead(message.Message, bubble=False):
    """Progress of prefill: tokens of the prompt that have been processed, and their total."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


class ImagesRead(message.Message, bubble=False):
    """Progress of reading the images and sounds of a prompt: the parts of them that are encoded, and their total.

    `is_sound`: whether the part that is read next is of a sound.
    """

    def __init__(self, job: int, done: int, total: int, *, is_sound: bool = False) -> None:
        super().__init__()
        self.job = job
        self.done = done
        self.total = total
        self.is_sound = is_sound


class Grown(message.Message, bubble=False):
    """New text is in the buffer."""


class Answered(message.Message, bubble=False):
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


@dataclass(frozen=True, slots=True)
class BesideEnd:
    """How one of several answers ended. `early`: because it could not be chosen any more; `says`: what votes count."""

    text: str
    state: State
    figures: Figures | None = None
    runs: Runs = ()
    early: bool = False
    says: str = ""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The place of the answer that is kept, from 0 on, and why."""

    number: int
    reason: str


class BesideAnswered(message.Message, bubble=False):
    """Answers that were written side by side are finished. `kept`: None if that is open, or all are (parts)."""

    def __init__(
        self, job: int, ends: tuple[BesideEnd, ...], kept: KeptAnswer | None, notices: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.job = job
        self.ends = ends
        self.kept = kept
        self.notices = notices


class RoundBegun(message.Message, bubble=False):
    """An answer calls tools after the text of this round, which has no calls yet.

    `n_shown`: characters that the buffer got of the round, since the answer or its last round began.
    """

    def __init__(self, job: int, begun: ToolRound, n_shown: int) -> None:
        super().__init__()
        self.job = job
        self.begun = begun
        self.n_shown = n_shown


class CallBegun(message.Message, bubble=False):
    """An answer is about to call a tool, or to ask whether it may."""

    def __init__(self, job: int, name: str) -> None:
        super().__init__()
        self.job = job
        self.name = name


class CallAsked(message.Message, bubble=False):
    """Asks whether a tool may be called; the engine thread waits for `answer`.

    `server`, `tool`: by the server's own names; `arguments`: the text of a JSON object.
    """

    def __init__(self, job: int, server: str, tool: str, arguments: str, answer: Callable[[Permission], None]) -> None:
        super().__init__()
        self.job = job
        self.server = server
        self.tool = tool
        self.arguments = arguments
        self.answer = answer


class CallMade(message.Message, bubble=False):
    """A tool was called, or was not allowed to be; the call belongs to the last round of the answer."""

    def __init__(self, job: int, call: MadeCall) -> None:
        super().__init__()
        self.job = job
        self.call = call


class Notified(message.Message, bubble=False):
    """A notice for the user."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        super().__init__()
        self.text = text
        self.is_error = is_error


class TextBuffer:
    """Holds pieces of answers, with the numbers of their jobs, until the UI is ready to draw and takes them all.

    `notify` is called from the adding thread, once until the pieces are taken: no queue builds up, however fast the
    text and slow the terminal.
    """

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._pieces: list[tuple[int, str]] = []
        self._is_notified = False

    def add(self, job: int, piece: str) -> None:
        """Add text of an answer."""
        if not piece:
            return
        with self._lock:
            self._pieces.append((job, piece))
            was_notified, self._is_notified = self._is_notified, True
        if not was_notified:
            self._notify()

    def take(self, job: int | None) -> str:
        """Returns the new text of an answer; pieces of other jobs, which have been abandoned, are dropped."""
        return "".join(piece for of, piece in self.take_all() if of == job)

    def take_all(self) -> list[tuple[int, str]]:
        """Returns all new pieces, with the numbers of their jobs."""
        with self._lock:
            self._is_notified = False
            pieces, self._pieces = self._pieces, []
        return pieces
