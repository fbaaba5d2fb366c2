"""The thread that owns the model: it does one job after another and posts what comes of them.

In: jobs, from the screen's thread. Out: messages to the app, and text into a `Growth`. Nothing here touches a widget,
and nothing waits for the screen. The thread sleeps while there is nothing to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from edgeinfer.app.sessions.records import Figures, State
from edgeinfer.app.tui.engine import AnswerStream, Model, ModelSession, Opening, Runs
from edgeinfer.app.tui.growth import Growth
from edgeinfer.app.tui.jobs import Answer, EnterChat, Job, Leave, OpenModel, Summarise
from edgeinfer.app.tui.messages import (
    Answered,
    ChatRestored,
    Grown,
    ModelFailed,
    ModelOpened,
    ModelOpening,
    PromptRead,
    Told,
)
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:  # what computes is imported by the thread, when the first screen is drawn
    from edgeinfer.app.readings.service import Readings
    from edgeinfer.app.snapshots import Snapshots
    from edgeinfer.engine.stats import Live, Stats


class OpeningStopped(Exception):
    """The model is not wanted any more."""


class Host(Protocol):
    """Who is told."""

    def post_message(self, message: Message) -> bool: ...


class EngineThread:
    """Start it once, give it jobs from one thread, close it."""

    def __init__(self, host: Host, opening: Opening, snapshots: Snapshots | None = None) -> None:
        self._host = host
        self._opening = opening
        self._snapshots = snapshots
        self.growth = Growth(lambda: self._post(Grown()))
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._current: Job | None = None
        self._stream: AnswerStream | None = None
        self._model: Model | None = None
        self._session: ModelSession | None = None
        self._chat: int | None = None
        self._waiting: list[Job] = []
        self.readings: Readings | None = None
        """Of the open model, for whoever shows them."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="edgeinfer-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def give(self, job: Job) -> None:
        """Do this after what was given before."""
        with self._lock:
            self._waiting.append(job)
        self._jobs.put(job)

    def stop(self) -> None:
        """End the answer in the making within a step, and whatever waits to be answered."""
        with self._lock:
            jobs = [job for job in (self._current, *self._waiting) if isinstance(job, Answer | Summarise)]
            stream = self._stream
        for job in jobs:
            job.stopped.set()
        if stream is not None:
            stream.stop()

    @property
    def live(self) -> Live | None:
        """The numbers of the answer in the making; None where there is none."""
        stream = self._stream
        return None if stream is None else stream.live

    def close(self, patience_s: float = 10.0) -> bool:
        """Stop everything, put aside what was read, and close the model; whether that was done in time."""
        with self._lock:
            jobs = [job for job in (self._current, *self._waiting) if job is not None]
        for job in jobs:
            job.stopped.set()
        self.stop()
        if self._thread.ident is None:
            return True
        self.give(Leave())
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with self._lock:
                self._waiting.remove(job)
                self._current = job
            try:
                self._do(job)
            except EdgeInferError as error:
                self._post(Told(str(error), is_error=True))
            except Exception as error:  # what is wrong is told; the chat goes on
                self._post(Told(f"the engine failed: {type(error).__name__}: {error}", is_error=True))
            with self._lock:
                self._current = None
            if isinstance(job, Leave):
                return

    def _do(self, job: Job) -> None:
        match job:
            case OpenModel():
                self._open(job)
            case Answer():
                self._answer(job)
            case Summarise():
                self._summarise(job)
            case EnterChat():
                self._enter(job.chat)
            case Leave():
                self._close_model()

    def _open(self, job: OpenModel) -> None:
        if job.stopped.is_set():
            return

        def progress(what: str, done: int, total: int) -> None:
            if job.stopped.is_set():
                raise OpeningStopped
            self._post(ModelOpening(what, done, total))

        chat = self._chat
        self._close_model()
        try:
            model = self._opening(job.settings, progress)
        except OpeningStopped:
            return
        except EdgeInferError as error:
            self._post(ModelFailed(str(error)))
            return
        except Exception as error:
            self._post(ModelFailed(f"{type(error).__name__}: {error}"))
            return
        self._model, self._session = model, model.session()
        self.readings = readings_of(model)
        self._post(ModelOpened(model))
        self._enter(chat)

    def _enter(self, chat: int | None) -> None:
        """Bring back what was read of a chat, and put aside that of the one before."""
        if chat == self._chat:
            return
        self._leave_chat()
        self._chat = chat
        if chat is None or self._session is None or self._model is None or self._snapshots is None:
            return
        n_tokens = self._snapshots.restore(self._session, chat, self._model.facts.fingerprint)
        if n_tokens:
            self._post(ChatRestored(chat, n_tokens))

    def _leave_chat(self) -> None:
        """Keep what was read of the chat that is open."""
        chat, self._chat = self._chat, None
        if chat is None or self._session is None or self._model is None or self._snapshots is None:
            return
        if notice := self._snapshots.keep(self._session, chat, self._model.facts.fingerprint):
            self._post(Told(notice))

    def _close_model(self) -> None:
        self._leave_chat()
        session, model = self._session, self._model
        self._session = self._model = self.readings = None
        if session is not None:
            session.close()
        if model is not None:
            model.close()

    def _answer(self, job: Answer) -> None:
        session = self._session
        if job.stopped.is_set():
            self._post(Answered(job.number, job.before, "stopped", None, (), ()))
            return
        if session is None:
            reason = "no model is open, so nothing can answer; /model opens one"
            self._post(Answered(job.number, job.before, "failed", None, (), (reason,)))
            return
        self._enter(job.chat)
        options = job.options.copy()
        options["progress"] = lambda what, done, total: self._read(done, total)
        self._lead(job.number, job.before, lambda: session.chat(job.messages, **options), job.stopped)

    def _summarise(self, job: Summarise) -> None:
        from edgeinfer.app.compaction import Compaction, plan_compaction

        session, model = self._session, self._model
        if session is None or model is None:
            self._post(Answered(job.number, "", "failed", None, (), ("no model is open; /model opens one",)))
            return
        self._enter(job.chat)
        try:
            plan = plan_compaction(model, job.messages)
        except EdgeInferError as error:
            self._post(Answered(job.number, "", "failed", None, (), (str(error),)))
            return
        compaction = Compaction(session, plan, lambda what, done, total: self._read(done, total))
        self._lead(job.number, "", lambda: compaction, job.stopped, plan.n_summarised)

    def _lead(
        self,
        number: int,
        before: str,
        start: Callable[[], AnswerStream],
        stopped: threading.Event,
        n_summarised: int = 0,
    ) -> None:
        """Make an answer to its end; what there is of it is told whatever happens."""
        stream: AnswerStream | None = None
        try:
            stream = start()
            with self._lock:
                self._stream = stream
            if stopped.is_set():  # asked for before there was a stream to stop
                stream.stop()
            for piece in stream:
                self.growth.add(piece)
        except EdgeInferError as error:
            self._post_failure(number, before, stream, str(error))
            return
        except Exception as error:
            self._post_failure(number, before, stream, f"the engine failed: {type(error).__name__}: {error}")
            return
        finally:
            with self._lock:
                self._stream = None
        stats = stream.stats
        assert stats is not None
        runs: Runs = tuple((mark.n_characters, mark.source) for mark in stream.marks)
        if before:
            runs = ((len(before), None), *runs)
        text = before + stream.text
        self._post(Answered(number, text, _state(stats), figures_of(stats), runs, stats.notices, n_summarised))
        self._note(stats)

    def _post_failure(self, number: int, before: str, stream: AnswerStream | None, reason: str) -> None:
        text = before + ("" if stream is None else stream.text)
        self._post(Answered(number, text, "failed", None, (), (reason,)))

    def _note(self, stats: Stats) -> None:
        """Remember how fast it was, for predictions."""
        from edgeinfer.app.opening import record_speed
        from edgeinfer.engine.llm import LLM

        if self.readings is not None:
            self.readings.answered(stats)
        if isinstance(self._model, LLM):
            record_speed(self._model, stats)

    def _read(self, done: int, total: int) -> None:
        self._post(PromptRead(done, total))

    def _post(self, message: Message) -> None:
        self._host.post_message(message)


def readings_of(model: Model) -> Readings | None:
    """Readings of a model of ours; None of others."""
    from edgeinfer.app.readings.service import Readings
    from edgeinfer.engine.llm import LLM

    return Readings(model) if isinstance(model, LLM) else None


def figures_of(stats: Stats) -> Figures:
    """The numbers of an answer that are kept with it."""
    return Figures(
        n_prompt=stats.n_prompt,
        n_cached=stats.n_cached,
        n_generated=stats.n_generated,
        finish_reason=stats.finish_reason,
        truncated=stats.truncated,
        ttft_s=stats.ttft_s,
        prefill_tok_s=stats.prefill_tok_s,
        decode_tok_s=stats.decode_tok_s,
        accepted_per_step=stats.accepted_per_step,
        joules_per_token=stats.joules_per_token,
        seed=stats.seed,
    )


def _state(stats: Stats) -> State:
    if stats.finish_reason == "cancelled":
        return "stopped"
    return "cut" if stats.finish_reason == "length" and stats.truncated else "whole"
