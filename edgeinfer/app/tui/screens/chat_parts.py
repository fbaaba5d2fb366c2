"""Base of the chat screen's mixins: the widgets, the open chat, and how to show notices.

In: an `AppState`. Out: a base class for the mixins in `tui/actions`, which make up `ChatScreen`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from textual.screen import Screen

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.step_clock import StepClock
from edgeinfer.app.tui.app_state import AppState
from edgeinfer.app.tui.engine_thread import EngineThread
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.chat_bars import ContextBar, MeterFigures, Meters, TitleBar
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.app.tui.widgets.entries import AnswerEntry
from edgeinfer.app.tui.widgets.first_page import FirstPage
from edgeinfer.app.tui.widgets.transcript import Transcript

TOGETHER_S = 1.0
"""Notices that follow each other within this time are shown together."""


@dataclass(slots=True)
class Writing:
    """A running request: the number of its job, the message being written, and the text so far."""

    job: int
    message: int
    before: str
    pieces: list[str] = field(default_factory=list)
    is_summary: bool = False
    beside: tuple[Writing, ...] = ()
    """The texts that are written side by side, each under a number of its own."""

    @property
    def text(self) -> str:
        return self.before + "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Prompted:
    """A queued question, sent when the running request is done."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class ChatParts(Screen[None]):
    """The widgets and state of the chat screen."""

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self.state = state
        self.engine = EngineThread(self, state.opening, state.snapshots, state.tools)
        self.chat = Chat(state.store, system=state.tuning.settings.generation.system)
        self.opening = StepClock()
        """Progress of opening a model."""
        self.prefill = StepClock()
        """Progress of reading the prompt of the running request."""
        self.opened = ""
        """A line about the model being opened, or "" while it is unknown."""
        self.failed = ""
        """Why no model is open, or "" if one is, or none was tried."""
        self.writing: Writing | None = None
        self.prompted: list[Prompted] = []
        self.edited: int | None = None
        """The number of the question being edited, or None."""
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
        """The name of the open model, or None."""
        return None if self.state.model is None else self.state.model.info.name

    def new_job(self) -> int:
        """A new job number."""
        self._n_jobs += 1
        return self._n_jobs

    def tell(self, text: str, *, is_error: bool = False) -> None:
        """Show a notice for some seconds, clearing notices older than TOGETHER_S."""
        if time.monotonic() - self._told_s > TOGETHER_S:
            self.app.clear_notifications()
        self._told_s = time.monotonic()
        self.notify(neutral(text), severity="error" if is_error else "information", markup=False, timeout=8)

    def tell_all(self, texts: Sequence[str]) -> None:
        """Show several notices."""
        for text in texts:
            self.tell(text)

    def answer_widget(self, number: int) -> AnswerEntry | None:
        """The transcript entry of an answer, or None if its branch is not displayed."""
        return self.transcript.answer(number)
