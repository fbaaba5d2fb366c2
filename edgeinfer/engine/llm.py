"""A loaded model, ready to answer: the object behind `edgeinfer.load`.

In: a model's name or path and what to run it on. Out: an `LLM`, with streams of text and sessions. Owns the open file,
the executor and all sessions, and gives everything back on `close()`. No network, no signal handlers, no printing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from edgeinfer.engine.batch_stream import BatchStream, Prompt
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.prompt_rows import Piece
from edgeinfer.engine.kv.saved_state import n_saved_checkpoints
from edgeinfer.engine.model_info import ModelInfo, renamed
from edgeinfer.engine.racing.afterwards import Comparison
from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.engine.scheduler.batcher import Batcher
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.session import Session
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.priming import IdlePriming
from edgeinfer.engine.speculation.setup import LaterDrafts, priming_of
from edgeinfer.engine.stream import TextStream
from edgeinfer.engine.telemetry import Telemetry
from edgeinfer.engine.text_reader import TextReader
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.graph.inputs import IDS_ONLY
from edgeinfer.graph.step import PAGE
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.scheduling.serving.allotment import Priority
from edgeinfer.steps import Progress, no_progress

RECENT = 16
"""Answers whose tokens are known when one is to be continued."""
PARALLEL = 8
"""Requests of a batch that run at a time."""
_FORMER = {
    "facts": "info",
    "answers": "telemetry.requests",
    "n_entered": "telemetry.n_requests",
    "load": "telemetry.queue",
    "reading": "telemetry.weight_reads",
    "tallies": "telemetry.passes_by_schedule",
} | {
    name: f"telemetry.{name}"
    for name in (
        *("device", "batch_invariant", "policy", "n_workers", "affinity", "limits", "page_tokens", "n_free_pages"),
        *("resident_bytes", "streamed", "stage_bytes", "shared", "last_step", "time_stages", "work"),
    )
}
"""Attributes of version 0.1, which go with the next one."""


class LLM(TextReader):
    """One loaded model: `info` says which, `telemetry` what it does.

    Answers of `chat` and `complete` are independent of one another; a `session()` keeps what it has read.
    """

    def __init__(
        self,
        subject: Subject,
        pool: Pool,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        info: ModelInfo,
        drafts: ModelDrafts | None = None,
        *,
        primes: bool = False,
        parallel: int | None = None,
        comparison: Comparison | None = None,
        later_drafts: LaterDrafts | None = None,
    ) -> None:
        """`parallel`: requests at a time; None: as many as a pass has outputs. `later_drafts`: see `begin_drafting`."""
        self._subject = subject
        self._pool = pool
        self._driver = StepDriver(Scheduler(pool, parallel))
        self._tokenizer = tokenizer
        inputs = IDS_ONLY if subject.spec is None else subject.spec.inputs
        self.prompts = Prompts(tokenizer, template, pool.executor.limits.n_context, inputs)
        self.drafts = drafts
        self._recent: deque[ScheduledSequence] = deque(maxlen=RECENT)
        self._idle_priming: IdlePriming | None = None
        self.info = info
        self.telemetry = Telemetry(self._driver.scheduler, subject, info)
        self._note = RunningNote(OpenModel(info.name, info.path))
        self.comparison = comparison
        """Of devices, which is still to be made; None: nothing is to be compared."""
        self._primes, self.later_drafts = primes, later_drafts
        self._start_priming()

    def _start_priming(self) -> None:
        """Make what is missing of the table of successors while nothing is generated."""
        drafts = self.drafts
        if drafts is not None and self._primes and drafts.n_primed < drafts.n_vocab:
            priming = priming_of(self._pool.executor, self._tokenizer, drafts)
            self._idle_priming = IdlePriming(priming, drafts.n_primed, self._pool.lock, self._idle_s, drafts.prime)

    if not TYPE_CHECKING:  # a type checker knows the names of this version alone

        def __getattr__(self, name: str) -> object:
            return renamed(self, name, _FORMER)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def begin_drafting(self, progress: Progress = no_progress) -> None:
        """Compile what drafts tokens, where loading put that off, and draft from the next answer on.

        Raises whatever `progress` raises, and EngineClosed.
        """
        if (later := self.later_drafts) is not None:
            later.compile(progress)
            with self._pool.lock:
                self._pool.check_open()
                self.drafts, self.later_drafts = later.drafts(), None
            self._start_priming()

    def session(self) -> Session:
        """A new session, which shares the model with the others. Raises EngineClosed."""
        return self.session_with(lambda: self.drafts)

    def session_with(self, drafts: Callable[[], ModelDrafts | None]) -> Session:
        """A new session that drafts from these, or not at all: for measurements. Raises EngineClosed."""
        own = self._pool.open(), self.prompts, drafts
        kv_bytes = None if self._subject.spec is None else self._kv_bytes
        return Session(*own, kv_bytes=kv_bytes, driver=self._driver)

    def _kv_bytes(self, n_tokens: int) -> int:
        """Bytes of the keys and values of so many tokens of a sequence, in whole pages, and of its states."""
        spec, limits = self._subject.spec, self.telemetry.limits
        assert spec is not None
        numbers, windows = 0, limits.windows
        for layer in spec.kv:
            n_pages = pages_for(n_tokens)
            if windows is not None and windows.limit(layer):
                n_pages = min(n_pages, 1 + pages_for(windows.tokens))
            numbers += n_pages * PAGE * layer.numbers
        most = min(limits.state_slots(spec.states), 1 + n_saved_checkpoints(spec.state_bytes))
        n_states = min(1 + (n_tokens - 1) // PAGE, most)
        return round(numbers * KV_ELEMENT_BYTES[self.info.kv]) + n_states * spec.state_bytes

    def chat(self, messages: Messages, *, priority: Priority = "interactive", **options: Unpack[Options]) -> TextStream:
        """Answer a conversation, as `Session.chat`; each answer is independent of others, from any thread.

        What other answers have read of its beginning is not read again.
        """
        return self._answer(self.prompts.chat(messages, options, self._known), priority)

    def complete(
        self,
        text: str | Sequence[Piece],
        *,
        parse_special: bool = True,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Continue a text, or tokens and rows, as `Session.complete`; by itself, as `chat`."""
        return self._answer(self.prompts.text(text, options, parse_special=parse_special), priority)

    def _answer(self, request: Request, priority: Priority) -> TextStream:
        self._pool.check_open()
        opens = None if self.drafts is None else self.drafts.session
        own = self._pool.reserve(), self._tokenizer, request
        sequence = ScheduledSequence(*own, opens=opens, priority=priority, shares_prefix=True)
        self._recent.append(sequence)
        return TextStream(sequence, self._driver)

    def _known(self, head: Sequence[int]) -> Sequence[int]:
        """The tokens of the last answer to a conversation that begins so."""
        tokens = tuple(head)
        histories = (each.history for each in reversed(tuple(self._recent)))
        return next((each for each in histories if each[: len(tokens)] == tokens), ())

    def batch(
        self, prompts: Iterable[str | Messages | Prompt], *, parallel: int = PARALLEL, **options: Unpack[Options]
    ) -> BatchStream:
        """Answer many prompts, up to `parallel` at a time in one pass; answers come as they end, with their numbers.

        A prompt is a text to continue, a conversation to answer as `chat` does, or a `Prompt` with options of its own;
        they are taken from their iterable as they are needed, and all answers wait while it does. Each answer is what
        it would be alone where `batch_invariant`; what is wrong with one prompt is its own answer's `error`. Raises
        BadSetting, EngineClosed.
        """
        if parallel < 1:
            raise BadSetting(f"parallel cannot be {parallel}: it must be 1 or more")
        return BatchStream([self.batcher(parallel)], prompts, self.prompts, options)

    def batcher(self, parallel: int) -> Batcher:
        """Who leads up to so many answers at a time on this model."""
        return Batcher(self._driver, self._tokenizer, parallel)

    def prime(self, progress: Progress = no_progress) -> None:
        """Make the table of every token's likeliest successors, which drafts come from, and keep it with the model.

        Otherwise that is done in idle time. Raises EdgeInferError where nothing is drafted.
        """
        if self.drafts is None:
            raise EdgeInferError(
                "nothing is drafted with this model, so there is no table to prime; load it with spec auto"
            )
        drafts, priming = self.drafts, priming_of(self._pool.executor, self._tokenizer, self.drafts)
        while True:
            progress("asking for successors of every token", drafts.n_primed, drafts.n_vocab)
            with self._pool.lock:
                rows = priming.rows(drafts.n_primed)
            if not len(rows):
                break
            drafts.prime(drafts.n_primed, rows)
        drafts.keep_primed()

    def _idle_s(self) -> float:
        """Seconds that could have been used while nothing was generated, nor measured."""
        measures = self.comparison is not None and self.comparison.runs
        return self._pool.idle_s if self.telemetry.policy.idle_work and not measures else 0.0

    def stop(self) -> None:
        """End every request, running or waiting, within one step; from any thread."""
        self._driver.scheduler.stop()
        self._pool.stop()

    def close(self) -> None:
        """Stop, close all sessions and give everything back; may be called twice."""
        self._note.remove()
        self._pool.stop()
        self._driver.close()
        if self._idle_priming is not None:
            self._idle_priming.close()
            self._idle_priming = None
            if self.drafts is not None:
                self.drafts.keep_primed()
        self._pool.close()
        if self.drafts is not None:
            self.drafts.close()
        self._subject.file.close()
