"""The jobs of the engine thread: open a model, answer, summarise, change chats, close.

In: jobs. Out: messages to the app, text in a `TextBuffer`. Runs in one thread; only `stop` and the `call_off` methods
are called from others. All failures are reported, and the text generated so far is kept.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from edgeinfer.app.opening.face import OpeningCalledOff, WatchedFace
from edgeinfer.app.sessions.conversation import figures_of, messages_told, state_of, text_of
from edgeinfer.app.sessions.records import State
from edgeinfer.app.tui.engine import (
    AnswerStream,
    EngineModel,
    LoadedModel,
    ModelSession,
    Opening,
    ReadingsOfModel,
)
from edgeinfer.app.tui.engine_answer import AnswerCalledOff, JobAnswer, tell_reading
from edgeinfer.app.tui.engine_beside import BesideWork, unbegun
from edgeinfer.app.tui.engine_face import AppFace
from edgeinfer.app.tui.engine_messages import (
    Answered,
    AnswerJob,
    BesideJob,
    ChatRestored,
    CloseJob,
    EnterChat,
    Job,
    ModelFailed,
    ModelOpened,
    Notified,
    OpenModelJob,
    Summarise,
    TextBuffer,
)
from edgeinfer.errors import DeviceFailed, DoesNotFit, EdgeInferError
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.chat.context import Turn
    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.sessions.snapshots import Snapshots
    from edgeinfer.app.tui.text.calls import ShownText
    from edgeinfer.engine.opening.comparison import Compared
    from edgeinfer.engine.scheduler.stats import Stats

NO_MODEL = "no model is open, so nothing can answer; /model opens one"
TOO_LITTLE = "there is too little to sum up yet: two questions at least are needed"


class Host(Protocol):
    """Receives the messages."""

    def post_message(self, message: Message) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Opened:
    """The open model: the settings it was opened with, its name and its file."""

    settings: Settings
    name: str
    path: Path

    @property
    def pinned(self) -> Settings:
        """Settings that reopen exactly this model."""
        return replace(self.settings, model=replace(self.settings.model, model=str(self.path)))


class EngineWork:
    """The open model, its session, and the chat whose tokens are in the session."""

    def __init__(
        self,
        host: Host,
        text_buffer: TextBuffer,
        opening: Opening,
        snapshots: Snapshots | None,
        tools: ChatTools | None = None,
    ) -> None:
        self._host = host
        self._tools = tools
        self._text_buffer = text_buffer
        self._opening = opening
        self._snapshots = snapshots
        self._loaded: LoadedModel | None = None
        self._opened: _Opened | None = None
        self._session: ModelSession | None = None
        self._chat: int | None = None
        self._face: WatchedFace | None = None
        self.stream: AnswerStream | BesideWork | None = None

    @property
    def readings(self) -> ReadingsOfModel | None:
        """Readings of the open model, or None."""
        loaded = self._loaded
        return None if loaded is None else loaded.readings

    @property
    def _model(self) -> EngineModel | None:
        return None if self._loaded is None else self._loaded.model

    def stop(self) -> None:
        """Stop the running request within one step."""
        stream = self.stream
        if stream is not None:
            stream.stop()

    def call_off(self) -> None:
        """Stop whatever is running, including the opening of a model."""
        self.call_off_opening()
        self.stop()

    def call_off_opening(self) -> None:
        """Cancel the opening of a model at its next progress report."""
        face = self._face
        if face is not None:
            face.call_off()

    def do(self, job: Job) -> None:
        """Run a job to completion."""
        match job:
            case OpenModelJob():
                self._open(job)
            case BesideJob():
                self._answer_beside(job)
            case AnswerJob():
                self._answer(job)
            case Summarise():
                self._summarise(job)
            case EnterChat():
                self._enter(job.chat)
            case CloseJob():
                self._close_model()

    def _open(self, job: OpenModelJob) -> None:
        """Open another model. The current one stays open until the new one is ready, if both fit."""
        if job.stopped.is_set():
            return
        chat, before = self._chat, self._opened
        try:
            loaded = self._opened_beside(job.settings) or self._opened_instead(job.settings)
            self._take(loaded, job.settings)
        except OpeningCalledOff:
            pass
        except Exception as error:  # report any error, so that another model can still be opened
            self._fail(reason_of(error), before)
        finally:
            self._face = None
        self._enter(chat)

    def _opened_beside(self, settings: Settings) -> LoadedModel | None:
        """Open the model while the current one stays open. Returns None if there is none, or if both do not fit."""
        if self._loaded is None:
            return None
        try:
            return self._opening(settings, self._new_face(is_beside=True))
        except (DoesNotFit, DeviceFailed, MemoryError):
            return None

    def _opened_instead(self, settings: Settings) -> LoadedModel:
        """Close the current model, then open the new one."""
        self._close_model()
        return self._opening(settings, self._new_face(is_beside=False))

    def _fail(self, reason: str, before: _Opened | None) -> None:
        """Report that a model could not be opened, and go back to the previous one."""
        if before is not None and self._model is None:
            try:
                self._take(self._opening(before.pinned, self._new_face(is_beside=False)), before.settings)
            except Exception as error:
                reason = f"{reason}; {before.name} could not be opened again: {reason_of(error)}"
        if self._model is None or before is None:
            self._post(ModelFailed(reason))
            return
        again = f"{reason}; {before.name} is used as before"
        self._post(ModelFailed(again, self._model, before.settings.model.model))

    def _new_face(self, *, is_beside: bool) -> WatchedFace:
        self._face = face = AppFace(self._post, is_beside=is_beside)
        return face

    def _take(self, loaded: LoadedModel, settings: Settings) -> None:
        """Switch to a newly opened model, and close the previous one."""
        model = loaded.model
        try:
            session = model.session()
        except Exception:
            model.close()
            raise
        self._close_model()
        self._session = session
        self._loaded, self._opened = loaded, _Opened(settings, model.info.name, model.info.path)
        gc.freeze()  # otherwise garbage collection visits all of the compiler's objects and blocks the UI for 100 ms
        self._post(ModelOpened(model))

    def _enter(self, chat: int | None) -> None:
        """Save the KV cache of the current chat, and restore that of another one.

        A model that keeps prefixes needs none but those that earlier versions have saved, and these once.
        """
        if chat == self._chat:
            return
        self._leave_chat()
        self._chat = chat
        snapshots = self._snapshots
        if chat is None or self._session is None or self._model is None or snapshots is None:
            return
        n_tokens = snapshots.restore(self._session, chat, self._model.info.fingerprint)
        if n_tokens:
            self._post(ChatRestored(chat, n_tokens))
        if self._model.info.keeps_prefixes:
            snapshots.forget_model(self._model.info.fingerprint)

    def _leave_chat(self) -> None:
        """Save the KV cache of the current chat."""
        chat, self._chat = self._chat, None
        snapshots = self._snapshots
        if chat is None or self._session is None or self._model is None or snapshots is None:
            return
        info = self._model.info  # with prefixes on disk, what was read of the chat is there already
        if not info.keeps_prefixes and (notice := snapshots.keep(self._session, chat, info.fingerprint)):
            self._post(Notified(notice))

    def _close_model(self) -> None:
        self._leave_chat()
        session, model = self._session, self._model
        self._session = self._loaded = self._opened = None
        if session is not None:
            session.close()
        if model is not None:
            from edgeinfer.engine.closed_models import free_closed_models_soon

            model.close()
            free_closed_models_soon()

    def _answer(self, job: AnswerJob) -> None:
        session = self._session
        if job.stopped.is_set():
            self._post(Answered(job.number, job.before, "stopped", None, (), ()))
            return
        if session is None:
            self._post(Answered(job.number, job.before, "failed", None, (), (NO_MODEL,)))
            return
        options = job.options.copy()
        options["progress"] = partial(tell_reading, job, self._post)
        answer = self._job_answer(replace(job, options=options), session)
        try:
            self._enter(job.chat)
            answer.generate()
        except AnswerCalledOff:
            self._post(Answered(job.number, answer.text, "stopped", None, (), ()))
            return
        except Exception as error:  # keep the text generated so far
            self._post(Answered(job.number, answer.text, "failed", None, (), (reason_of(error),)))
            return
        stream = answer.stream
        assert stream is not None
        stats = stream.stats
        assert stats is not None
        state: State = "stopped" if answer.is_broken_off else state_of(stats)
        text = text_of(answer.text, stats)
        self._post(Answered(job.number, text, state, figures_of(stats), answer.runs, stats.notices))
        self._note(stats)

    def _answer_beside(self, job: BesideJob) -> None:
        """Write several answers, or one for each of many items."""
        if self._model is None or job.stopped.is_set():
            self._post(unbegun(job, NO_MODEL if self._model is None else ""))
            return
        self._enter(job.chat)
        self.stream = work = BesideWork(job, self._model, self._text_buffer)
        work.run(self._post, reason_of)
        self.stream = None

    def _job_answer(self, job: AnswerJob, session: ModelSession) -> JobAnswer:
        """The answer of a job, which may call the chat's tools if there are any."""
        make = partial(self._make, job.number, job.stopped)
        if self._tools is None:
            return JobAnswer(job, session, make)
        from edgeinfer.app.tui.engine_tools import ToolAnswerJob

        return ToolAnswerJob(job, session, make, self._tools, self._post)

    def _summarise(self, job: Summarise) -> None:
        from edgeinfer.app.chat.context import Compaction, plan_compaction

        session, model = self._session, self._model
        if session is None or model is None:
            self._post(Answered(job.number, "", "failed", None, (), (NO_MODEL,)))
            return
        turns = [{"role": message.role, "content": message.text} for message in job.messages]
        count, n_context = counting(model), model.info.n_context
        try:
            self._enter(job.chat)
            plan = plan_compaction(turns, count, n_context)
            if plan is None:
                self._post(Answered(job.number, "", "failed", None, (), (TOO_LITTLE,)))
                return
            compaction = Compaction(session, plan, count, n_context, {"temperature": 0.0})
            for stream in compaction.streams():
                self._make(job.number, job.stopped, stream)
        except Exception as error:
            self._post(Answered(job.number, "", "failed", None, (), (reason_of(error),)))
            return
        summary = compaction.summary
        state: State = "whole" if summary else "stopped"
        self._post(Answered(job.number, summary or "", state, None, (), (), plan.first_kept))

    def _make(
        self, number: int, stopped: threading.Event, stream: AnswerStream, shown: ShownText | None = None
    ) -> None:
        """Generate an answer piece by piece; if it was cancelled before it began, stop at once.

        `shown`: what is shown of it; None: all of it.
        """
        self.stream = stream
        try:
            if stopped.is_set():  # cancelled before there was a stream to stop
                stream.stop()
            for piece in stream:
                self._text_buffer.add(number, piece if shown is None else shown.push(piece))
            if shown is not None:
                self._text_buffer.add(number, shown.finish())
        finally:
            self.stream = None

    def _note(self, stats: Stats) -> None:
        """Record the speed for later predictions; measures the machine once if that was never done."""
        if self.readings is not None:
            self.readings.answered(stats)
        if self._loaded is not None and self._loaded.note is not None:
            self._loaded.note(stats, self._tell_device)

    def _tell_device(self, compared: Compared) -> None:
        """Report the fastest device if it is not the one in use."""
        if compared.changes:
            self._post(Notified(compared.notice))

    def _post(self, message: Message) -> None:
        self._host.post_message(message)


def reason_of(error: Exception) -> str:
    """The message for an error."""
    return str(error) if isinstance(error, EdgeInferError) else f"the engine failed: {type(error).__name__}: {error}"


def counting(model: EngineModel) -> Callable[[Sequence[Turn]], int]:
    """Returns a function that counts the tokens of a conversation, as the model gets it."""
    return lambda turns: model.prompts.n_tokens(messages_told(turns))
