"""Admission: requests start when there is room for them, and are preempted by more important ones.

In: sequences, from any thread. Out: the active ones. Answers start in order of priority. If memory runs short, the
latest ones of the lowest priority are preempted: their keys and values are swapped out, and they later continue with
the same tokens (vLLM's preemption, Kwon et al., arXiv 2309.06180). Finished answers leave their cached prefix to
others. Runs no passes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.prefixes.kept import DiskPrefixes
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.module_places import ModulePlaces
from edgeinfer.engine.scheduler.retained import Prefixes, SwapSpace, is_being_read
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.shifted_reuse import ShiftedReuse
from edgeinfer.errors import EdgeInferError, NotFinite
from edgeinfer.graph.step import PAGE

EXPECTED_TOKENS = 256
"""Tokens of an answer to reserve room for: most answers are shorter than allowed, and longer ones can be preempted."""
MORE_TOKENS = PAGE
"""Further tokens to reserve for an answer that has outgrown that, so that it is not preempted again at once."""


class Admission:
    """The answers on one executor. `enter` may be called from any thread; everything else needs the pool's lock.

    `shares`: whether sequences can start with a prefix that others have cached.
    """

    def __init__(self, pool: Pool, most_active: int | None, swap: SwapSpace, *, shares: bool) -> None:
        limits = pool.executor.limits
        self._pool, self.shares = pool, shares
        self._n_context = limits.n_context
        self._n_pages = max(limits.n_pages, pool.executor.n_free_pages)  # of all KV partitions
        self._windows, self._most_seen = limits.windows, 0
        if self._windows is not None:
            self._most_seen = 1 + pages_for(self._windows.tokens + limits.max_tokens)
        most = limits.n_sequences or limits.max_outputs
        self._most_active = min(most_active or most, most)
        self.swap = swap
        self.prefixes = Prefixes(pool)
        self.shifted = ShiftedReuse(pool)
        self.on_disk: DiskPrefixes | None = None
        """Prefixes that outlive the memory; None: none do."""
        self.modules: ModulePlaces | None = None
        """Modules that prompts may have; None: none may."""
        self._entered: dict[ScheduledSequence, None] = {}  # in order
        self._arrivals: deque[ScheduledSequence] = deque()
        self.waiting: list[ScheduledSequence] = []
        self.active: list[ScheduledSequence] = []
        self._n_arrived = 0

    @property
    def shared_prefixes(self) -> Prefixes:
        """What finished answers have left for others. Raises EdgeInferError where answers share nothing."""
        if not self.shares:
            raise EdgeInferError("with this schedule answers leave nothing for others: choose another one (--schedule)")
        return self.prefixes

    @property
    def sequences(self) -> tuple[ScheduledSequence, ...]:
        """All answers that are not over, including those starting or preempted; may be read from any thread."""
        return tuple(self._entered.copy())  # others may enter meanwhile

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for an answer; may be read from any thread."""
        return any(each.is_interactive and each.is_wanted for each in self.sequences)

    @property
    def is_full(self) -> bool:
        """Whether some requests have to wait."""
        entered = self.sequences
        n_pages = sum(self._pages_for(each) for each in entered)
        return len(entered) > self._most_active or (len(entered) > 1 and n_pages > self._n_pages)

    def pages_of(self, request: Request, most_expected: int | None = None) -> int:
        """Pages of a prompt and its answer, assuming at most `most_expected` tokens of answer."""
        n_answer = EXPECTED_TOKENS if request.max_tokens is None else request.max_tokens
        n_answer = n_answer if most_expected is None else min(n_answer, most_expected)
        return pages_for(min(max(len(request.prompt), request.n_before + n_answer), self._n_context))

    def _pages_for(self, sequence: ScheduledSequence) -> int:
        """Pages to reserve: the expected ones, or those of the answer so far plus a reserve, whichever is more."""
        request, n_generated = sequence.request, sequence.n_generated
        most = self._n_context if request.max_tokens is None else request.max_tokens
        n_tokens = request.n_before + min(n_generated + MORE_TOKENS, most)
        n_pages = max(sequence.n_pages, pages_for(min(n_tokens, self._n_context)))
        return self._share_of(max(1, n_pages - sequence.n_shared_pages))

    def _share_of(self, n_pages: int) -> int:
        """Pages to count for a request: its own, or more if its share of sliding-window places is larger."""
        if self._windows is None:
            return n_pages
        n_seen, n_places = min(n_pages, self._most_seen), self._windows.n_pages - self._windows.n_spare
        return max(n_pages, -(-n_seen * self._n_pages // n_places))

    def enter(self, sequence: ScheduledSequence) -> None:
        """Add a sequence; it waits for its turn."""
        if not sequence.has_entered:
            sequence.has_entered = True
            sequence.n_pages = sequence.n_pages or self.pages_of(sequence.request, EXPECTED_TOKENS)
            self._entered[sequence] = None
            self._arrivals.append(sequence)

    def leave(self, sequence: ScheduledSequence) -> None:
        """End a sequence and drop the text that was not taken."""
        self.take_arrivals()
        if not sequence.is_over:
            sequence.cancel()
            sequence.drop_rest()
            self.finish(sequence)

    def end_left(self) -> None:
        """End all answers that were abandoned."""
        for sequence in self.sequences:
            if sequence.is_left:
                self.leave(sequence)

    def end_all(self, reason: Exception | None = None) -> None:
        """End all answers, with an error that none of them caused if `reason` is given."""
        self.take_arrivals()
        for sequence in self.sequences:
            if sequence.is_over:
                continue  # it ended with another one
            if reason is not None:
                self.fail(sequence, reason)
            else:
                sequence.cancel()
                self.finish(sequence)

    def close(self) -> None:
        """End all answers, and drop the cached prefixes and the swap space."""
        self.end_all()
        if self.modules is not None:
            self.modules.close()
        self.prefixes.close()
        self.swap.close()

    def take_arrivals(self) -> None:
        """Queue new arrivals, in order."""
        while self._arrivals:
            sequence = self._arrivals.popleft()
            self._n_arrived += 1
            sequence.number = self._n_arrived
            self.waiting.append(sequence)

    def admit(self, n_passes: int) -> None:
        """Start or resume answers while there is room; those of higher priority preempt others."""
        self.take_arrivals()
        self.end_left()
        for sequence in tuple(self.waiting):
            if sequence.stop_asked.is_set() and not sequence.is_over:
                sequence.cancel()
                self.finish(sequence)
        now_s = time.monotonic()
        runnable = [
            sequence for sequence in self.waiting if sequence.is_wanted
        ]  # others would only take room from these
        n_for_prefix = 0
        for sequence in sorted(runnable, key=lambda each: (each.rank(now_s), each.number)):
            if sequence.is_over:
                continue  # it ended with another one
            if self._waits_for_prefix(sequence) or self._waits_for_disk(sequence):
                n_for_prefix += 1
                if n_for_prefix == self._most_active:
                    return  # nothing more can start until that prefix has been read
                continue
            if self._waits_for_modules(sequence):
                continue
            if not self._make_room_for(sequence, now_s):
                return
            sequence.go_on(now_s)
            self._begin(sequence, n_passes)

    def _begin(self, sequence: ScheduledSequence, n_passes: int) -> None:
        """Start or resume an answer."""
        sequence.last_pass = n_passes
        try:
            if sequence.has_begun:
                self.swap.swap_in(sequence.cached)
                if self.modules is not None and self.modules.waits(sequence, sequence.cached.n_cached, self.enter):
                    return  # there was no room for what was swapped out
            else:
                sequence.has_begun = True
                request = sequence.request
                self.shifted.begin(sequence)
                if sequence.shares_prefix and self.shares:
                    sequence.cached.settle()
                    own = sequence.cached, request.shareable, request.scales
                    self.prefixes.begin(*own, exact=request.reuse == "exact")
                sequence.begin(is_first=n_passes == 0)
                self._restore(sequence)
                self.shifted.plan(sequence)
        except Exception as reason:
            self.fail(sequence, reason, alone=True)
            return
        except BaseException as reason:  # a signal handler raised in the driving thread
            self.fail(sequence, reason, alone=True)
            raise
        sequence.state = "active"
        self.active.append(sequence)
        self.waiting.remove(sequence)

    def _restore(self, sequence: ScheduledSequence) -> None:
        """Let an answer that begins have what is on disk of its prompt beyond what is in memory."""
        if self.on_disk is not None:
            restored = self.on_disk.restore(sequence.cached, sequence.request.shareable, self.prefixes.give_up)
            sequence.note_restored(restored)

    def _waits_for_prefix(self, sequence: ScheduledSequence) -> bool:
        """Whether another answer of at least the same priority is reading a prefix that this one could share."""
        if not sequence.shares_prefix or sequence.has_begun or not self.active or not self.shares:
            return False
        prompt = sequence.request.shareable
        reading = [
            each
            for each in self.active
            if each.n_missing > 1
            and each.is_wanted
            and each.request.scales == sequence.request.scales
            and (each.is_interactive or not sequence.is_interactive)
        ]
        if not reading:
            return False
        n_cached = self.prefixes.best(sequence.cached, prompt, sequence.request.scales)[1]
        others = ((each.request.prompt, each.cached.n_cached) for each in reading)
        return is_being_read(prompt, n_cached, others)

    def _waits_for_disk(self, sequence: ScheduledSequence) -> bool:
        """Whether others can go on while what is on disk of a prompt is being read."""
        if self.on_disk is None or sequence.has_begun or not any(each.is_wanted for each in self.active):
            return False
        cached, prompt, scales = sequence.cached, sequence.request.shareable, sequence.request.scales
        n_cached = cached.n_common(prompt, scales)
        if sequence.shares_prefix and self.shares:
            n_cached = max(n_cached, self.prefixes.best(cached, prompt, scales)[1])
        return self.on_disk.is_coming(cached, prompt, scales, n_cached)

    def _waits_for_modules(self, sequence: ScheduledSequence) -> bool:
        """Whether modules of a prompt are being read for it, or could not be."""
        request = sequence.request
        if request.modules is None or self.modules is None:
            return False
        if sequence.has_begun:
            n_cached = self.swap.n_tokens(sequence.cached)
        else:
            n_cached = sequence.cached.n_common(request.prompt, request.scales)
            if sequence.shares_prefix and self.shares:
                n_cached = max(n_cached, self.prefixes.best(sequence.cached, request.shareable, request.scales)[1])
        try:
            return self.modules.waits(sequence, n_cached, self.enter)
        except Exception as reason:
            self.fail(sequence, reason, alone=True)
            return True

    def _make_room_for(self, sequence: ScheduledSequence, now_s: float) -> bool:
        """Whether an answer can start, if need be by preempting less important ones; does so."""
        own_rank = sequence.rank(now_s)

        def matters_less(other: ScheduledSequence) -> bool:
            return not other.is_wanted or other.rank(now_s) > own_rank

        def fits(active: Iterable[ScheduledSequence]) -> bool:
            others = list(active)
            n_left = self._n_pages - sum(self._pages_for(each) for each in others)
            return len(others) < self._most_active and (not others or self._pages_for(sequence) <= n_left)

        if fits(self.active):
            return True
        given_up: list[ScheduledSequence] = []
        for other in reversed(self.active):
            if matters_less(other) and other.work is None:
                given_up.append(other)
                if fits(each for each in self.active if each not in given_up):
                    for each in given_up:
                        self._preempt(each)
                    return True
        return False

    def find_pages(self, n_pages: int) -> None:
        """Free finished sequences until so many pages are free, or none is left."""
        while self._pool.executor.n_free_pages < n_pages and self.prefixes.give_up():
            pass

    def give_up(self) -> bool:
        """Free memory of a finished answer, or of an idle session; returns whether there was any."""
        return self.prefixes.give_up() or self._pool.make_room(())

    def find_room(self, works: Collection[ScheduledSequence]) -> bool:
        """Free memory: first of finished answers, then of idle sessions, then of one answer, which is preempted.

        `works`: answers of the pass that needs the memory; answers under way in another pass keep theirs. Returns
        whether any memory was freed.
        """
        if self.give_up():
            return True
        under_way = [sequence for sequence in self.active if sequence.work is not None and sequence not in works]
        able = [sequence for sequence in self.active if sequence not in under_way]
        if len(able) + len(under_way) < 2 or not able:
            return False
        idle = [sequence for sequence in able if not sequence.is_wanted]
        chosen = (idle or [each for each in able if not each.is_interactive] or able)[-1]
        chosen.work = None
        self._preempt(chosen)
        return True

    def _preempt(self, sequence: ScheduledSequence) -> None:
        """Preempt an answer; it continues when there is room again."""
        self.swap.swap_out(sequence.cached)
        sequence.preempt(time.monotonic())
        self.waiting.append(sequence)
        self.active.remove(sequence)

    def finish(self, sequence: ScheduledSequence) -> None:
        """End an answer and let others have its memory."""
        self._forget(sequence)
        if sequence.has_begun and not sequence.is_dropped:
            sequence.show_rest()
        sequence.end()
        self._release(sequence)

    def fail(self, sequence: ScheduledSequence, reason: BaseException, *, alone: bool = False) -> None:
        """End an answer with an error, which the waiting thread gets. `alone`: the answer itself caused it."""
        self._forget(sequence)
        sequence.error, sequence.failed_alone = reason, alone
        if isinstance(reason, NotFinite):  # keys and values may be as bad: nobody goes on from them
            sequence.cached.forget()
        sequence.end()
        self._release(sequence)

    def _forget(self, sequence: ScheduledSequence) -> None:
        for group in (self.active, self.waiting):
            if sequence in group:
                group.remove(sequence)
        sequence.work = None
        self.shifted.drop(sequence)
        self.swap.drop(sequence.cached)
        if self.on_disk is not None:
            self.on_disk.forget(sequence.cached)
        if self.modules is not None:
            for reading in self.modules.release(sequence):
                self.leave(reading)

    def _release(self, sequence: ScheduledSequence) -> None:
        """Leave the cached tokens of an answer to others, or to its owner."""
        if self.on_disk is not None and sequence.error is None and sequence.has_begun:
            note = self.on_disk.note_shared if sequence.is_batched else self.on_disk.note
            note(sequence.cached, sequence.request.prompt)
        if sequence.shares_prefix and self.shares and sequence.error is None:
            self.prefixes.keep(sequence.cached)
        elif sequence.shares_prefix:
            sequence.cached.close()
        sequence.state = "over"
        self._entered.pop(sequence, None)
        if sequence.released is not None:
            sequence.released(sequence)
        sequence.notify()
