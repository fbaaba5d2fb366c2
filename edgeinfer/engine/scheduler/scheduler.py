"""The scheduler: which answers take part in the next pass, and what happens to its results (continuous batching).

In: sequences, from any thread. Out: their text. `step` runs one pass for all running requests; `step_driver` decides
which thread calls it, `admission` which requests run. Source of the design: Orca (Yu et al., OSDI 2022).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from edgeinfer.backends.evaluator import Interrupted
from edgeinfer.engine.requests.drafting import Drafted
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.admission import Admission
from edgeinfer.engine.scheduler.pass_drafts import PassDrafts
from edgeinfer.engine.scheduler.passes import AdvancingPasses, BatchWork, SequenceLogits, passes_of
from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import PassCounts
from edgeinfer.errors import DoesNotFit, EngineClosed
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.scheduling.allotment import CALM_S, Pace, PassRoom, Wish, allot


class Scheduler:
    """All running requests on one executor.

    One thread at a time calls `step`; the rest may be called from any thread.
    """

    def __init__(self, pool: Pool, most_active: int | None = None, swap: SwapSpace | None = None) -> None:
        """`most_active`: requests that run at the same time; None: as many as a pass has outputs."""
        self.pool = pool
        self._limits = pool.executor.limits
        self._block = PAGE if self._limits.whole_blocks and self._limits.max_tokens >= 2 * PAGE else 0
        self._passes = passes_of(pool.executor)
        self._advances = isinstance(self._passes, AdvancingPasses)
        self._interruptible = pool.executor.capabilities.interruptible
        self.admission = Admission(pool, most_active, swap or SwapSpace(), shares=not self._advances)
        self._drafts = PassDrafts(pool, self.admission, advances=self._advances)
        self._stopped = AnyStopped(self.admission.active)
        self.pace = Pace()
        self._interactive_s = -math.inf  # when an interactive answer last ran
        self.counts = PassCounts()

    @property
    def has_driven(self) -> bool:
        """Whether there are answers that the engine's thread generates."""
        return any(sequence.is_driven for sequence in self.admission.sequences)

    def enter(self, sequence: ScheduledSequence) -> None:
        """Add a sequence; it waits for its turn."""
        self.admission.enter(sequence)

    def leave(self, sequence: ScheduledSequence) -> None:
        """End a sequence and drop the text that was not taken; it is over when this returns."""
        sequence.stop()
        with self.pool.lock:
            self.admission.leave(sequence)

    def abandon(self, sequence: ScheduledSequence) -> None:
        """As `leave`, without waiting: if a pass is running, the answer ends with it or before the next one.

        For finalizers, which may run in any thread and at any point.
        """
        if sequence.is_over:
            return
        sequence.stop()
        sequence.is_left = True
        lock = self.pool.lock
        if not lock.is_held and lock.acquire(blocking=False):
            try:
                self.admission.leave(sequence)
            finally:
                lock.release()

    def stop(self) -> None:
        """End all answers within one step, waiting ones too; may be called from any thread."""
        for sequence in self.admission.sequences:
            sequence.stop()

    def close(self) -> None:
        """Stop all answers, and drop all cached sequences."""
        self.stop()
        with self.pool.lock:
            self.admission.close()

    def keep_prefixes(self) -> None:
        """End all answers, and write to disk what they and earlier ones have left in memory for later ones."""
        self.stop()
        on_disk = self.admission.on_disk
        if on_disk is not None:
            with self.pool.lock:
                self.admission.end_all()
            on_disk.close()

    def fail_all(self, reason: Exception) -> None:
        """End all answers with an error that none of them caused."""
        with self.pool.lock:
            self.admission.end_all(reason)

    def step(self) -> bool:
        """Run one pass for all answers that take part, after starting those that can.

        Returns whether there was any work.
        """
        pool, power_limiter = self.pool, self.pool.executor.power_limiter
        power_limiter.rest(self._stopped)
        started = time.perf_counter()
        with pool.lock:
            try:
                pool.check_open()
            except EngineClosed as reason:
                self.fail_all(reason)
                return True
            self.admission.admit(self.counts.passes)
            gathered, n_before = time.perf_counter(), self.counts.n_evaluated
            try:
                works = self._gather()
                is_going = self._advances and any(each.work is not None for each in self.admission.active)
                if has_work := bool(works) or is_going:
                    self._take(self._given(works, gathered))
            except BaseException:  # a signal handler raised in the driving thread
                self._ask_again()
                raise
            if has_work:
                power_limiter.worked(started)
                if not self._advances:
                    self.pace.observe(self.counts.n_evaluated - n_before, time.perf_counter() - started)
            took_part = tuple(self.admission.active)
            for sequence in took_part:
                if sequence.is_done and not sequence.is_over:
                    self.admission.finish(sequence)
        self._end_left()
        for sequence in took_part:
            if sequence.output.n_pieces:
                sequence.notify()
        return has_work

    def _end_left(self) -> None:
        """End the answers abandoned during the pass; later ones end under the lock, or before the next pass."""
        if any(sequence.is_left for sequence in self.admission.sequences):
            with self.pool.lock:
                self.admission.end_left()

    def _ask_again(self) -> None:
        """Have answers asked again for what no pass is evaluating."""
        under_way = self._passes.under_way
        for sequence in self.admission.active:
            if not under_way or sequence.cached.sequence not in under_way:
                sequence.work = None

    def _gather(self) -> dict[ScheduledSequence, Batch]:
        """The batches of the next pass, by answer."""
        active, limits = self.admission.active, self._limits
        if any(each.is_interactive for each in active):
            self._interactive_s = time.monotonic()
        if len(active) == 1 and active[0].work is None and active[0].is_wanted:
            (only,) = active
            self._ask_all([(only, limits.max_tokens)])
            return {} if only.work is None else {only: only.work.batch}
        for sequence in active:
            if sequence.stop_asked.is_set():
                sequence.cancel()
                sequence.work = None  # it is under way, perhaps for a closed sequence
        able = [each for each in active if each.work is None and each.is_wanted and not each.is_done]
        if able:
            now_s, has_interactive = time.monotonic(), any(each.is_interactive for each in able)
            wishes = [
                Wish(
                    number,
                    has_interactive and each.is_interactive_now(now_s),
                    each.n_missing,
                    each.last_pass,
                    None if each.scores.is_whole else each.n_silent,
                    each.cached.n_cached,
                    each.request.least_together(each.cached.n_cached),
                    each.group,
                )
                for number, each in enumerate(able)
            ]
            sizes = limits.max_tokens, limits.max_outputs, self._drafts.left_by_prompts, self._block
            room = PassRoom(self.counts.passes, *sizes, now_s - self._interactive_s >= CALM_S)
            given = allot(wishes, self.pace, room)
            self._ask_all([(able[number], n_tokens) for number, n_tokens in given.items()])
        return {sequence: sequence.work.batch for sequence in able if sequence.work is not None}

    def _ask_all(self, given: Sequence[tuple[ScheduledSequence, int]]) -> None:
        """Ask answers for their batches, each with at most so many tokens beside its drafts."""
        started = time.perf_counter()
        drafted = self._drafts.drafted(given)
        n_left = self._drafts.n_left
        for sequence, n_tokens in given:
            found = drafted.get(sequence)
            if sequence.is_over:
                continue  # drafting for it failed
            work = self._ask(sequence, n_tokens if found is None else 1 + n_left, started, found)
            if found is not None and work is not None:
                n_left -= len(work.batch.tokens) - 1

    def _ask(
        self, sequence: ScheduledSequence, most_tokens: int, started: float, drafted: Drafted | None
    ) -> BatchWork | None:
        """What an answer wants evaluated; an error there fails this answer alone."""
        try:
            if self.admission.modules is not None:
                most_tokens = self.admission.modules.place(sequence, most_tokens)
            if drafted is None:
                most_tokens = self.admission.shifted.advance(sequence, most_tokens)
            sequence.work = sequence.next_work(most_tokens, started, drafted)
        except Interrupted:  # it was stopped between the parts of an image
            sequence.cancel()
            return None
        except Exception as reason:
            self.admission.fail(sequence, reason, alone=True)
            return None
        sequence.last_pass = self.counts.passes
        return sequence.work

    def _given(self, works: dict[ScheduledSequence, Batch], started: float) -> dict[int, SequenceLogits]:
        """Run a pass. If memory is short, finished and idle sequences are freed, then the latest are preempted.

        `started`: when drafting for it began.
        """
        if self._interruptible is not None:
            self._interruptible.heed(self.admission.active[0].stop_asked if len(self.admission.active) == 1 else None)
        while True:
            try:
                given = self._passes.run(list(works.values()))
            except Interrupted:
                for sequence in works:
                    sequence.work = None
                    sequence.cancel()
                return {}
            except DoesNotFit as reason:
                if self._drop_drafts(works):
                    continue
                if not self.admission.find_room(works):
                    self._lose(works, reason)
                    return {}
                works = {sequence: batch for sequence, batch in works.items() if sequence.work is not None}
                continue
            except Exception as reason:
                self._lose(works, reason)
                return {}
            self.counts.passes += 1
            self.counts.n_evaluated += sum(len(batch.tokens) for batch in works.values())
            self._drafts.observe(list(works.values()), time.perf_counter() - started)
            return dict(given)

    def _drop_drafts(self, works: dict[ScheduledSequence, Batch]) -> bool:
        """Leave out the drafts of a pass that does not fit; returns whether it had any."""
        n_before = sum(len(batch.tokens) for batch in works.values())
        for sequence in works:
            if sequence.work is not None and sequence.work.draft is not None:
                sequence.work = sequence.without_draft(sequence.work)
                works[sequence] = sequence.work.batch
        return sum(len(batch.tokens) for batch in works.values()) < n_before

    def _lose(self, works: Iterable[ScheduledSequence], reason: Exception) -> None:
        """Fail all answers of a failed pass; if there were none, those under way."""
        for sequence in tuple(works) or tuple(each for each in self.admission.active if each.work is not None):
            self.admission.fail(sequence, reason)

    def _take(self, given: dict[int, SequenceLogits]) -> None:
        """Continue answers with the results of their batches."""
        if not given:
            return
        for sequence in tuple(self.admission.active):
            work = sequence.work
            found = None if work is None else given.get(sequence.cached.sequence)
            if work is None or found is None:
                continue
            sequence.work = None
            n_cached = sequence.cached.n_cached
            try:
                tokens = sequence.accept(work, found)
                if found.is_alone:
                    self._drafts.timed(sequence, work, len(tokens))
                if work.draft is not None:
                    self.counts.n_drafted += len(work.batch.tokens) - 1
                    self.counts.n_accepted += sequence.cached.n_cached - n_cached - 1
                for token in tokens:
                    sequence.show(token)
                    self.counts.n_generated += 1
                    if sequence.is_done:
                        break
            except Exception as reason:
                self.admission.fail(sequence, reason, alone=True)
            except BaseException as reason:
                self.admission.fail(sequence, reason, alone=True)
                raise


class AnyStopped:
    """Set as soon as any of these answers is asked to stop."""

    def __init__(self, sequences: Sequence[ScheduledSequence]) -> None:
        self._sequences = sequences

    def is_set(self) -> bool:
        return any(sequence.stop_asked.is_set() for sequence in tuple(self._sequences))
