"""A loaded model, ready to answer: the object behind `edgeinfer.load`.

In: a model's name or path and what to run it on. Out: an `LLM`, with streams of text and sessions. Owns the open file,
the executor and all sessions, and gives everything back on `close()`. No network, no signal handlers, no printing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Unpack

from edgeinfer.backends.base import Limits
from edgeinfer.backends.stored import WeightReads
from edgeinfer.engine.facts import ActiveRequest, ModelInfo, QueueStats
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.prompt_rows import Piece
from edgeinfer.engine.kv.saved_sequences import n_saved_checkpoints
from edgeinfer.engine.multi.shared import SharedLane
from edgeinfer.engine.offload.residency import StageBytes, stage_bytes_of, streamed_of
from edgeinfer.engine.probing.racing.afterwards import Comparison
from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.capabilities import Tally
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.observed import LastStep, StageSeconds, median_stages, stage_seconds
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.engine.scheduler.batcher import Batcher
from edgeinfer.engine.scheduler.generate import Generation
from edgeinfer.engine.scheduler.leading import Leader
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.stream import BatchStream, Prompt
from edgeinfer.engine.session import Session
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.priming import IdlePriming
from edgeinfer.engine.speculation.setup import LaterDrafts, priming_of
from edgeinfer.engine.stream import TextStream
from edgeinfer.engine.text_reader import TextReader
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel
from edgeinfer.graph.inputs import IDS_ONLY
from edgeinfer.graph.step import PAGE
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.scheduling.batch.schedules import Schedule
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.offload.streaming import Streamed
from edgeinfer.scheduling.serving.priority import Priority
from edgeinfer.scheduling.workers.governor import PowerPolicy
from edgeinfer.steps import Progress, no_progress

RECENT = 16
"""Answers whose tokens are known when one is to be continued."""
PARALLEL = 8
"""Requests of a batch that run at a time."""
TIMED_PASSES = 5
"""Passes whose ops are timed, the first of them with cold caches;"""
TIMED_S = 0.5
"""none is begun after so long: answers wait meanwhile."""


class LLM(TextReader):
    """One loaded model. `chat` and `complete` answer by themselves; a `session()` keeps what it has read."""

    def __init__(
        self,
        subject: Subject,
        pool: Pool,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        facts: ModelInfo,
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
        self._leader = Leader(Scheduler(pool, parallel))
        self._tokenizer = tokenizer
        inputs = IDS_ONLY if subject.spec is None else subject.spec.inputs
        self.prompts = Prompts(tokenizer, template, pool.executor.limits.n_context, inputs)
        self.drafts = drafts
        self._recent: deque[Generation] = deque(maxlen=RECENT)
        self._idle_priming: IdlePriming | None = None
        self.facts = facts
        self._note = RunningNote(OpenModel(facts.name, facts.path))
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

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def policy(self) -> PowerPolicy:
        """What may be used of the machine just now, in the mode it was loaded with."""
        return self._pool.executor.power_limiter.policy

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores that each worker may run on, read back from the system; () where it does not say."""
        return self._pool.executor.affinity

    @property
    def device(self) -> str:
        """The device in use: another than was loaded, once that one has failed."""
        return self._pool.executor.device

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits never depend, to the bit, on what else is in a pass."""
        return self._pool.executor.batch_invariant

    @property
    def shared(self) -> SharedLane | None:
        """What several devices do and when they did it in the last pass; None where one has the whole model."""
        return self._pool.executor.capabilities.shared

    @property
    def last_step(self) -> LastStep | None:
        """What the last step took and who took part in it; None where the device does not tell."""
        step_times = self._pool.executor.capabilities.step_times
        return None if step_times is None else step_times.last_step

    @property
    def resident_bytes(self) -> int:
        """Bytes that weights, buffers and the cache take now."""
        return self._pool.executor.resident_bytes

    @property
    def answers(self) -> tuple[ActiveRequest, ...]:
        """The running requests and those that wait; from any thread."""
        tickets = self._leader.scheduler.admission.tickets
        return tuple(ActiveRequest(each.state == "active", each.priority, each.answer.live) for each in tickets)

    @property
    def n_entered(self) -> int:
        """Requests that are running or waiting."""
        return len(self._leader.scheduler.admission.tickets)

    @property
    def load(self) -> QueueStats:
        """What the running requests and those that wait amount to; from any thread."""
        scheduler = self._leader.scheduler
        admission, counts, parks = scheduler.admission, scheduler.counts, scheduler.admission.parking.counts
        return QueueStats(
            n_active=len(admission.active),
            n_waiting=len(admission.tickets) - len(admission.active),
            n_kept=len(admission.prefixes.kept),
            n_parked=parks.in_ram + parks.on_disk,
            n_forgotten=parks.forgotten,
            n_passes=counts.passes,
            n_evaluated=counts.n_evaluated,
            n_generated=counts.n_generated,
            n_pages=self.limits.n_pages,
            n_free_pages=self.n_free_pages,
        )

    @property
    def n_workers(self) -> int:
        """Workers that may share a step just now."""
        return self._pool.executor.n_workers

    @property
    def page_tokens(self) -> int:
        """Tokens of a page of the cache."""
        return PAGE

    @property
    def n_free_pages(self) -> int:
        """Pages of the cache that nothing is kept in."""
        return self._pool.executor.n_free_pages

    def time_stages(self, n_cached: int = 0) -> tuple[StageSeconds, ...]:
        """What each stage takes of a pass of one token after so many, measured now: medians of some passes.

        () where the device does not tell, and while a request is running: nothing waits for this.
        """
        spec, found = self._subject.spec, list[tuple[StageSeconds, ...]]()
        step_times = self._pool.executor.capabilities.step_times
        if spec is None or step_times is None or not self._pool.lock.acquire(blocking=False):
            return ()
        try:
            ends = time.monotonic() + TIMED_S
            while self._pool.idle_s > 0 and len(found) < TIMED_PASSES and (not found or time.monotonic() < ends):
                ops = step_times.time_ops(n_cached)
                if not ops:
                    return ()
                found.append(stage_seconds(spec, ops))
        finally:
            self._pool.lock.release()
        return median_stages(found)

    @property
    def reading(self) -> WeightReads:
        """What was read so far of weights that do not stay in memory."""
        return self._pool.reading

    @property
    def limits(self) -> Limits:
        """What it can hold, and where weights are that do not stay in memory."""
        return self._pool.executor.limits

    @cached_property
    def streamed(self) -> Streamed | None:
        """What every pass reads of the weights; None where they all stay in memory."""
        stored, spec = self.limits.stored, self._subject.spec
        return None if stored is None or spec is None else streamed_of(spec, self._subject.file, stored)

    @cached_property
    def stage_bytes(self) -> tuple[StageBytes, ...]:
        """Where the weights of each stage were to be when it was loaded; () where they all stay in memory."""
        stored, spec = self.limits.stored, self._subject.spec
        return () if stored is None or spec is None else stage_bytes_of(spec, self._subject.file, stored)

    @property
    def tallies(self) -> Mapping[Schedule, Tally]:
        """Passes by schedule, where two devices share the sequences of batches."""
        overlapping = self._pool.executor.capabilities.overlapping
        return {} if overlapping is None else overlapping.tallies

    @property
    def work(self) -> ModelWork:
        """What the model's stages have to do, for predictions. Raises UnsupportedModel where only others know it."""
        if self._subject.spec is None:
            raise UnsupportedModel(
                f"edgeinfer does not know what {self.facts.name} has to do: {self.facts.device} does"
            )
        return work_of(self._subject.spec, self._subject.file.tensors)

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
        return Session(*own, kv_bytes=kv_bytes, leader=self._leader)

    def _kv_bytes(self, n_tokens: int) -> int:
        """Bytes of the keys and values of so many tokens of a sequence, in whole pages, and of its states."""
        spec, limits = self._subject.spec, self.limits
        assert spec is not None
        numbers, windows = 0, limits.windows
        for layer in spec.kv:
            n_pages = pages_for(n_tokens)
            if windows is not None and windows.limit(layer):
                n_pages = min(n_pages, 1 + pages_for(windows.tokens))
            numbers += n_pages * PAGE * layer.numbers
        most = min(limits.state_slots(spec.states), 1 + n_saved_checkpoints(spec.state_bytes))
        n_states = min(1 + (n_tokens - 1) // PAGE, most)
        return round(numbers * KV_ELEMENT_BYTES[self.facts.kv]) + n_states * spec.state_bytes

    def chat(self, messages: Messages, *, priority: Priority = "interactive", **options: Unpack[Options]) -> TextStream:
        """Answer a conversation, as `Session.chat`; every answer by itself, from any thread, as many as are wanted.

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
        generation = Generation(
            self._pool.reserve(),
            self._tokenizer,
            request,
            opens=None if self.drafts is None else self.drafts.session,
            leader=self._leader,
            priority=priority,
            shares_prefix=True,
        )
        self._recent.append(generation)
        return TextStream(generation)

    def _known(self, head: Sequence[int]) -> Sequence[int]:
        """The tokens of the last answer to a conversation that begins so."""
        wanted = tuple(head)
        histories = (each.history for each in reversed(tuple(self._recent)))
        return next((each for each in histories if each[: len(wanted)] == wanted), ())

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
        return Batcher(self._leader, self._tokenizer, parallel)

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
        return self._pool.idle_s if self.policy.idle_work and not measures else 0.0

    def stop(self) -> None:
        """End every request, running or waiting, within one step; from any thread."""
        self._leader.scheduler.stop()
        self._pool.stop()

    def close(self) -> None:
        """Stop, close all sessions and give everything back; may be called twice."""
        self._note.remove()
        self._pool.stop()
        self._leader.close()
        if self._idle_priming is not None:
            self._idle_priming.close()
            self._idle_priming = None
            if self.drafts is not None:
                self.drafts.keep_primed()
        self._pool.close()
        if self.drafts is not None:
            self.drafts.close()
        self._subject.file.close()
