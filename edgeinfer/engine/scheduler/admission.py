"""Admission: requests begin when there is room for them, and are preempted by those that matter more.

In: tickets, from any thread. Out: those that are active. Answers begin in order of priority; where memory runs short,
those begun last of the lowest priority are preempted: their keys and values are swapped out, and they go on with the
same tokens (vLLM's preemption, Kwon et al., arXiv 2309.06180). Answers that are over leave what they read for others.
Makes no passes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.prefixes import Prefixes, is_being_read
from edgeinfer.engine.scheduler.swap import SwapSpace
from edgeinfer.engine.scheduler.ticket import Ticket
from edgeinfer.graph.step import PAGE

EXPECTED_TOKENS = 256
"""Tokens of an answer that room is kept for: most are shorter than they may be, and longer ones can be preempted."""
MORE_TOKENS = PAGE
"""What an answer that has outgrown that is to have room for besides what it has, lest it is preempted again at once."""


class Admission:
    """The answers on one executor. `enter` is for any thread, everything else wants the pool's lock.

    `shares`: whether sequences can begin with what others have cached.
    """

    def __init__(self, pool: Pool, most_active: int | None, swap: SwapSpace, *, shares: bool) -> None:
        limits = pool.executor.limits
        self._pool, self._shares = pool, shares
        self._n_context = limits.n_context
        self._n_pages = max(limits.n_pages, pool.executor.n_free_pages)  # of all homes of sequences
        self._windows, self._most_seen = limits.windows, 0
        if self._windows is not None:
            self._most_seen = 1 + pages_for(self._windows.tokens + limits.max_tokens)
        most = limits.n_sequences or limits.max_outputs
        self._most_active = min(most_active or most, most)
        self.swap = swap
        self.prefixes = Prefixes(pool)
        self._entered: dict[Ticket, None] = {}  # in order
        self._arrivals: deque[Ticket] = deque()
        self.waiting: list[Ticket] = []
        self.active: list[Ticket] = []
        self._n_arrived = 0

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """All answers that are not over, also while they begin or are preempted; from any thread."""
        return tuple(self._entered.copy())  # others may enter meanwhile

    @property
    def is_full(self) -> bool:
        """Whether some of the answers that are wanted have to wait."""
        entered = self.tickets
        n_pages = sum(self._pages_for(each) for each in entered)
        return len(entered) > self._most_active or (len(entered) > 1 and n_pages > self._n_pages)

    def pages_of(self, request: Request, most_expected: int | None = None) -> int:
        """Pages of a prompt with its answer, of which no more than so many tokens are expected."""
        n_answer = EXPECTED_TOKENS if request.max_tokens is None else request.max_tokens
        n_answer = n_answer if most_expected is None else min(n_answer, most_expected)
        return pages_for(min(len(request.prompt) + n_answer, self._n_context))

    def _pages_for(self, ticket: Ticket) -> int:
        """Pages that room is kept for: of what was expected, or of what the answer has come to and some more."""
        request, n_generated = ticket.answer.request, ticket.answer.n_generated
        most = self._n_context if request.max_tokens is None else request.max_tokens
        n_tokens = len(request.prompt) + min(n_generated + MORE_TOKENS, most)
        return self._share_of(max(ticket.n_pages, pages_for(min(n_tokens, self._n_context))))

    def _share_of(self, n_pages: int) -> int:
        """Pages that a request takes, or the same share of all as it takes in layers with a window, if that is more."""
        if self._windows is None:
            return n_pages
        n_seen, n_places = min(n_pages, self._most_seen), self._windows.n_pages - self._windows.n_spare
        return max(n_pages, -(-n_seen * self._n_pages // n_places))

    def enter(self, ticket: Ticket) -> None:
        """An answer is wanted."""
        if not ticket.has_entered:
            ticket.has_entered = True
            ticket.n_pages = ticket.n_pages or self.pages_of(ticket.answer.request, EXPECTED_TOKENS)
            self._entered[ticket] = None
            self._arrivals.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        """An answer is not wanted any more, nor what was made of it and not taken."""
        self.take_arrivals()
        if not ticket.is_over:
            ticket.answer.cancel()
            ticket.drop_rest()
            self.finish(ticket)

    def end_left(self) -> None:
        """End all answers that were abandoned."""
        for ticket in self.tickets:
            if ticket.is_left:
                self.leave(ticket)

    def end_all(self, reason: Exception | None = None) -> None:
        """End all answers: because something went wrong that is nobody's own fault, or as they are."""
        self.take_arrivals()
        for ticket in self.tickets:
            if reason is not None:
                self.fail(ticket, reason)
            else:
                ticket.answer.cancel()
                self.finish(ticket)

    def close(self) -> None:
        """End all answers, and forget what is kept."""
        self.end_all()
        self.prefixes.close()
        self.swap.close()

    def take_arrivals(self) -> None:
        """Let those that have entered wait in order."""
        while self._arrivals:
            ticket = self._arrivals.popleft()
            self._n_arrived += 1
            ticket.number = self._n_arrived
            self.waiting.append(ticket)

    def admit(self, n_passes: int) -> None:
        """Let answers begin, or go on, while there is room; those of higher priority take it from others."""
        self.take_arrivals()
        self.end_left()
        for ticket in tuple(self.waiting):
            if ticket.answer.stop_asked.is_set():
                ticket.answer.cancel()
                self.finish(ticket)
        now_s = time.monotonic()
        wanted = [ticket for ticket in self.waiting if ticket.is_wanted]  # others would only take room from these
        n_for_prefix = 0
        for ticket in sorted(wanted, key=lambda each: (each.rank(now_s), each.number)):
            if self._waits_for_prefix(ticket):
                n_for_prefix += 1
                if n_for_prefix == self._most_active:
                    return  # no more could begin once that is read
                continue
            if not self._make_room_for(ticket, now_s):
                return
            ticket.go_on(now_s)
            self._begin(ticket, n_passes)

    def _begin(self, ticket: Ticket, n_passes: int) -> None:
        """Let an answer begin, or go on."""
        answer = ticket.answer
        ticket.last_pass = n_passes
        try:
            if ticket.has_begun:
                self.swap.swap_in(answer.cached)
            else:
                ticket.has_begun = True
                if ticket.shares_prefix and self._shares:
                    answer.cached.settle()
                    self.prefixes.begin(answer.cached, answer.request.prompt)
                answer.begin(is_first=n_passes == 0)
        except Exception as reason:
            self.fail(ticket, reason, alone=True)
            return
        except BaseException as reason:  # a signal handler raised in whoever leads
            self.fail(ticket, reason, alone=True)
            raise
        ticket.state = "active"
        self.active.append(ticket)
        self.waiting.remove(ticket)

    def _waits_for_prefix(self, ticket: Ticket) -> bool:
        """Whether another answer, of no lower priority, is just reading what this one begins with too."""
        if not ticket.shares_prefix or ticket.has_begun or not self.active or not self._shares:
            return False
        prompt = ticket.answer.request.prompt
        reading = [
            each
            for each in self.active
            if each.answer.n_missing > 1 and each.is_wanted and (each.is_interactive or not ticket.is_interactive)
        ]
        if not reading:
            return False
        n_cached = self.prefixes.best(ticket.answer.cached, prompt)[1]
        others = ((each.answer.request.prompt, each.answer.cached.n_cached) for each in reading)
        return is_being_read(prompt, n_cached, others)

    def _make_room_for(self, ticket: Ticket, now_s: float) -> bool:
        """Whether an answer can begin: there is room, or there is once others that matter less are preempted."""
        own_rank = ticket.rank(now_s)

        def matters_less(other: Ticket) -> bool:
            return not other.is_wanted or other.rank(now_s) > own_rank

        def fits(active: Iterable[Ticket]) -> bool:
            others = list(active)
            n_left = self._n_pages - sum(self._pages_for(each) for each in others)
            return len(others) < self._most_active and (not others or self._pages_for(ticket) <= n_left)

        if fits(self.active):
            return True
        given_up: list[Ticket] = []
        for other in reversed(self.active):
            if matters_less(other) and other.work is None:
                given_up.append(other)
                if fits(each for each in self.active if each not in given_up):
                    for each in given_up:
                        self._preempt(each)
                    return True
        return False

    def find_room_for_drafts(self, ticket: Ticket) -> None:
        """Give up what is kept of answers that are over where an answer would draft nothing for want of memory."""
        cached = ticket.answer.cached
        while self._pool.executor.n_free_pages < cached.n_pages_for_drafts and self.prefixes.give_up():
            pass

    def find_room(self, works: Collection[Ticket]) -> bool:
        """Take memory from what is over, from sessions that rest, then from an answer, whose work is dropped.

        `works`: answers of the pass that wants it; others are under way and keep theirs. Whether there was any.
        """
        if self.prefixes.give_up() or self._pool.make_room(()):
            return True
        under_way = [ticket for ticket in self.active if ticket.work is not None and ticket not in works]
        able = [ticket for ticket in self.active if ticket not in under_way]
        if len(able) + len(under_way) < 2 or not able:
            return False
        idle = [ticket for ticket in able if not ticket.is_wanted]
        chosen = (idle or [each for each in able if not each.is_interactive] or able)[-1]
        chosen.work = None
        self._preempt(chosen)
        return True

    def _preempt(self, ticket: Ticket) -> None:
        """Take an answer's memory; it goes on when there is room again."""
        self.swap.swap_out(ticket.answer.cached)
        ticket.preempt(time.monotonic())
        self.waiting.append(ticket)
        self.active.remove(ticket)

    def finish(self, ticket: Ticket) -> None:
        """End an answer, and let others have its memory."""
        answer = ticket.answer
        self._forget(ticket)
        if ticket.has_begun and not ticket.is_dropped:
            ticket.add(answer.rest())
        answer.end()
        self._release(ticket)

    def fail(self, ticket: Ticket, reason: BaseException, *, alone: bool = False) -> None:
        """An answer ends because something went wrong, with it `alone` or with others; whoever waits for it is told."""
        self._forget(ticket)
        ticket.error, ticket.failed_alone = reason, alone
        ticket.answer.end()
        self._release(ticket)

    def _forget(self, ticket: Ticket) -> None:
        for group in (self.active, self.waiting):
            if ticket in group:
                group.remove(ticket)
        ticket.work = None
        self.swap.drop(ticket.answer.cached)

    def _release(self, ticket: Ticket) -> None:
        """Keep what is cached of an answer for others, or let whoever owns it decide."""
        if ticket.shares_prefix and self._shares and ticket.error is None:
            self.prefixes.keep(ticket.answer.cached)
        elif ticket.shares_prefix:
            ticket.answer.cached.close()
        ticket.state = "over"
        self._entered.pop(ticket, None)
        if ticket.released is not None:
            ticket.released(ticket)
        ticket.notify()
