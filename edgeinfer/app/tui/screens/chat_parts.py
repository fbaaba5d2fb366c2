"""What the parts of the chat screen share: its widgets, the open chat, and how things are told.

In: a `AppState`. Out: a base for the parts in `tui/actions`, which make up `ChatScreen`. Does nothing by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from textual.screen import Screen

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.step_progress import StepClock
from edgeinfer.app.tui.app_state import AppState
from edgeinfer.app.tui.engine_thread import EngineThread
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.answer import AnswerEntry
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.app.tui.widgets.context_bar import ContextBar
from edgeinfer.app.tui.widgets.first_page import FirstPage
from edgeinfer.app.tui.widgets.meters import MeterFigures, Meters
from edgeinfer.app.tui.widgets.title_bar import TitleBar
from edgeinfer.app.tui.widgets.transcript import Transcript

TOGETHER_S = 1.0
"""Notices that come so soon after each other are shown together."""


@dataclass(slots=True)
class Writing:
    """A running request: the order's number, the message it is written to, and the text so far."""

    job: int
    message: int
    before: str
    pieces: list[str] = field(default_factory=list)
    is_summary: bool = False

    @property
    def text(self) -> str:
        return self.before + "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Prompted:
    """A question that waits until the running request is over."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class ChatParts(Screen[None]):
    """The widgets and the state of the chat screen."""

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self.state = state
        self.engine = EngineThread(self, state.opening, state.snapshots)
        self.chat = Chat(state.store, system=state.tuning.settings.generation.system)
        self.opening = StepClock()
        """How far opening a model is."""
        self.opened = ""
        """The model that is being opened, "" while that is not known."""
        self.writing: Writing | None = None
        self.prompted: list[Prompted] = []
        self.edited: int | None = None
        """The number of the question that is being edited."""
        self.metered = MeterFigures()
        self.metered_s = 0.0
        self._n_jobs = 0
        self._told_s = 0.0

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def first_page(self) -> FirstPage:
        return self.query_one(FirstPage)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def meters(self) -> Meters:
        return self.query_one(Meters)

    @property
    def context_bar(self) -> ContextBar:
        return self.query_one(ContextBar)

    @property
    def title_bar(self) -> TitleBar:
        return self.query_one(TitleBar)

    @property
    def model_name(self) -> str | None:
        """Of the open model."""
        return None if self.state.model is None else self.state.model.info.name

    def new_job(self) -> int:
        """A number that no order had yet."""
        self._n_jobs += 1
        return self._n_jobs

    def tell(self, text: str, *, is_error: bool = False) -> None:
        """Show a notice for some seconds; those of earlier doings make room."""
        if time.monotonic() - self._told_s > TOGETHER_S:
            self.app.clear_notifications()
        self._told_s = time.monotonic()
        self.notify(neutral(text), severity="error" if is_error else "information", markup=False, timeout=8)

    def tell_all(self, texts: Sequence[str]) -> None:
        """Show notices."""
        for text in texts:
            self.tell(text)

    def answer_widget(self, number: int) -> AnswerEntry | None:
        """The widget of an answer, if its branch is shown."""
        return self.transcript.answer(number)
