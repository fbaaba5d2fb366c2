"""Which KV page holds which positions of which sequence: page tables, reference counts, slots for a batch.

In: sequence ids, batches, accepted paths. Out: `Step`s with a slot for every token, and the slot copies that must be
performed before a step (copy on write) or after it (compaction). Holds no keys or values and knows no device: the
caller applies the copies through a lane. The sources and targets of a copy never overlap.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.kv.pages import (
    FEW,
    FULL,
    NO_COPIES,
    WRONG_PARENTS,
    Copies,
    Indices,
    PendingBatch,
    PlacedStep,
    SequencePages,
    WindowPages,
    leaders_of,
    table_slots,
)
from edgeinfer.engine.kv.states import SequenceStates
from edgeinfer.engine.kv.summaries import PageSummaries
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.operands import Windows
from edgeinfer.graph.step import PAGE, Batch, Int32s, Step


def pages_for(n_tokens: int) -> int:
    """The number of pages that hold this many positions."""
    return -(-n_tokens // PAGE)


class KVCache:
    """Bookkeeping of `n_pages` pages; no sequence may grow beyond `n_context` positions.

    `n_states`: slots for states, 0 if the model's sequences have none. `windows`: what sliding-window layers keep;
    None: everything. No model has both states and such windows.
    """

    def __init__(self, n_pages: int, n_context: int, n_states: int = 0, windows: Windows | None = None) -> None:
        self.states = SequenceStates(n_states) if n_states else None
        self.windows = WindowPages(windows, n_pages) if windows is not None else None
        self.summaries = PageSummaries(n_pages)
        self._n_pages = n_pages
        self._n_context = n_context
        self._free = list(range(n_pages - 1, -1, -1))
        self._references = [0] * n_pages
        self._sequences: dict[int, SequencePages] = {}
        self._next_id = 0
        self._pending: dict[int, PendingBatch] = {}  # by sequence, until it is committed or discarded

    @property
    def n_free_pages(self) -> int:
        return len(self._free)

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        return self._get(sequence).n_cached

    def pages(self, sequence: int) -> Int32s:
        """The pages that hold a sequence's committed tokens, in order."""
        found = self._get(sequence)
        return np.array(found.pages[: pages_for(found.n_cached)], np.int32)

    def create(self) -> int:
        """Create an empty sequence and return its id."""
        sequence, self._next_id = self._next_id, self._next_id + 1
        self._sequences[sequence] = SequencePages([], [], 0)
        if self.states is not None:
            self.states.create(sequence)
        return sequence

    def branch(self, sequence: int) -> int:
        """Create a sequence with the same committed tokens. Pages are shared until one of the two writes to them."""
        found = self._discard(sequence)
        for page in found.pages:
            self._references[page] += 1
        twin = self.create()
        self._sequences[twin] = SequencePages(list(found.pages), [], found.n_cached)
        if self.states is not None:
            self.states.branch(sequence, twin)
        return twin

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop positions from n_cached on, and the sequence's pending tokens. Returns how many stay cached.

        Fewer than n_cached stay if there is no state or window there: those up to the newest checkpoint before it.
        """
        found = self._discard(sequence)
        if not 0 <= n_cached <= found.n_cached:
            raise ValueError(f"sequence {sequence} has {found.n_cached} cached tokens; cannot keep {n_cached}")
        if self.states is not None:
            n_cached = self.states.rewind(sequence, found.n_cached, n_cached, found.pages)
        if self.windows is not None:
            n_cached = self.windows.reach(found.pages, n_cached)
        self.summaries.forget(found.pages[n_cached // PAGE : pages_for(n_cached)])  # the others are released
        found.n_cached = n_cached
        self._trim(found)
        return n_cached

    def free(self, sequence: int) -> None:
        """Free every page of a sequence and forget its id."""
        self.truncate(sequence, 0)
        del self._sequences[sequence]
        if self.states is not None:
            self.states.forget(sequence)

    def refill(self, sequence: int, n_tokens: int) -> Int32s:
        """Pages for `n_tokens` committed tokens whose contents the caller writes; previous contents are dropped.

        Raises ContextOverflow or DoesNotFit, and then leaves the sequence empty.
        """
        self.truncate(sequence, 0)
        self.extend(sequence, n_tokens)
        return self.pages(sequence)

    def extend(self, sequence: int, n_tokens: int) -> Copies:
        """Count tokens as committed from the end up to `n_tokens`; discards pending ones.

        Write contents and state after the copies. Raises ContextOverflow or DoesNotFit, and changes nothing then.
        """
        found, sources, targets = self._discard(sequence), list[int](), list[int]()
        self._check_context(n_tokens)
        added = range(len(found.pages), pages_for(n_tokens))
        n_unseen = 0 if self.windows is None else self.windows.first_page(n_tokens)
        self._check_pages(len(added) + self._shares_last_page(found), sum(number < n_unseen for number in added))
        self._own_last_page(found, sources, targets)
        found.pages += [self._take(is_seen=number >= n_unseen) for number in added]
        found.n_cached = n_tokens
        return Copies.of(sources, targets)

    def place(self, batch: Batch, *, beside: bool = False) -> PlacedStep:
        """Assign slots to a batch's tokens. Discards pending tokens, with `beside` only those of its sequences.

        The first token at each position of a sequence takes the slot of the page table; its siblings take spare slots.
        Raises ContextOverflow or DoesNotFit before anything has changed.
        """
        for sequence in set(batch.sequences.tolist()) & self._pending.keys() if beside else tuple(self._pending):
            self._discard(sequence)
        if self.states is not None:
            self.states.slots.check(len(set(batch.sequences.tolist())))
        placed = self._place(batch)
        step = placed.step if self.states is None else placed.step.with_states(self.states.place(placed.step))
        return PlacedStep(self.summaries.completed(step), placed.copies)

    def _place(self, batch: Batch) -> PlacedStep:
        """Allocate the pages and slots of a batch."""
        if len(batch.tokens) == 1:
            return self._place_one(batch)
        if 0 < len(batch.tokens) <= FEW:
            return self._place_few(batch)
        members: dict[int, Indices] = {
            int(sequence): np.flatnonzero(batch.sequences == sequence) for sequence in np.unique(batch.sequences)
        }
        self._check_batch(batch, members)
        leaders = {sequence: leaders_of(batch.positions[tokens]) for sequence, tokens in members.items()}
        self._check_pages(
            sum(self._wanted(sequence, batch, members[sequence], leaders[sequence]) for sequence in members)
        )
        slots, rows = np.empty(len(batch.tokens), np.int32), np.empty(len(batch.tokens), np.int32)
        starts = np.empty(len(batch.tokens), np.int32)
        sources: list[int] = []
        targets: list[int] = []
        for row, (sequence, tokens) in enumerate(members.items()):
            found = self._sequences[sequence]
            self._own_last_page(found, sources, targets)
            slots[tokens] = self._slots(found, batch.positions[tokens], leaders[sequence])
            rows[tokens], starts[tokens] = row, found.n_cached
        self._pending.update(dict.fromkeys(members, PendingBatch(batch, slots)))
        return PlacedStep(Step(batch, rows, slots, starts, self._tables(list(members))), Copies.of(sources, targets))

    def _place_one(self, batch: Batch) -> PlacedStep:
        """`place` for the single token of a plain step: the same result without array work."""
        sequence, position = int(batch.sequences[0]), int(batch.positions[0])
        found = self._get(sequence)
        if position != found.n_cached or batch.parents[0] >= 0:
            raise ValueError(WRONG_PARENTS)
        self._check_context(position + 1)
        self._check_pages(pages_for(position + 1) - len(found.pages) + int(self._shares_last_page(found)))
        sources: list[int] = []
        targets: list[int] = []
        self._own_last_page(found, sources, targets)
        if pages_for(position + 1) > len(found.pages):
            found.pages.append(self._take())
        slots = np.array([found.pages[-1] * PAGE + position % PAGE], np.int32)
        self._pending[sequence] = PendingBatch(batch, slots)
        step = Step(batch, np.zeros(1, np.int32), slots, batch.positions, np.array([found.pages], np.int32))
        return PlacedStep(step, Copies.of(sources, targets))

    def _place_few(self, batch: Batch) -> PlacedStep:
        """`place` for a few tokens."""
        sequences, positions, parents = (each.tolist() for each in (batch.sequences, batch.positions, batch.parents))
        groups: dict[int, list[int]] = {}
        for node, sequence in enumerate(sequences):
            groups.setdefault(sequence, []).append(node)
        grown = {sequence: self._growth(sequence, nodes, positions, parents) for sequence, nodes in groups.items()}
        for node, parent in enumerate(parents):
            if parent >= 0 and sequences[parent] != sequences[node]:
                raise ValueError(WRONG_PARENTS)
        shared = sum(self._shares_last_page(self._sequences[sequence]) for sequence in groups)
        self._check_pages(shared + sum(n_grown + n_spare for n_grown, n_spare in grown.values()))
        sources: list[int] = []
        targets: list[int] = []
        slots, rows, starts = [0] * len(positions), [0] * len(positions), [0] * len(positions)
        for row, (sequence, nodes) in enumerate(groups.items()):
            found, (n_grown, n_spare) = self._sequences[sequence], grown[sequence]
            self._own_last_page(found, sources, targets)
            found.pages.extend(self._take() for _ in range(n_grown))
            found.spare = [self._take() for _ in range(n_spare)]
            led: set[int] = set()
            for number, node in enumerate(nodes):
                place, pages = positions[node], found.pages
                if place in led:
                    place, pages = number - len(led), found.spare
                slots[node] = pages[place // PAGE] * PAGE + place % PAGE
                led.add(positions[node])
                rows[node], starts[node] = row, found.n_cached
        pending = PendingBatch(batch, np.array(slots, np.int32))
        self._pending.update(dict.fromkeys(groups, pending))
        placed = np.array(rows, np.int32), pending.slots, np.array(starts, np.int32)
        return PlacedStep(Step(batch, *placed, self._tables(list(groups))), Copies.of(sources, targets))

    def _growth(self, sequence: int, nodes: list[int], positions: list[int], parents: list[int]) -> tuple[int, int]:
        """How many pages a sequence needs for these tokens, and how many for siblings; checks the tokens' positions."""
        found, seen = self._get(sequence), set[int]()
        for node in nodes:
            position, parent = positions[node], parents[node]
            if parent >= node or position != (found.n_cached if parent < 0 else positions[parent] + 1):
                raise ValueError(WRONG_PARENTS)
            seen.add(position)
        n_positions = max(seen) + 1
        self._check_context(n_positions)
        return max(0, pages_for(n_positions) - len(found.pages)), pages_for(len(nodes) - len(seen))

    def commit(self, sequence: int, path: Int32s) -> Copies:
        """Keep the pending tokens with these batch indices as the next positions; discard the others.

        The copies move accepted siblings into the slots of the page table; perform them before the next step.
        Raises ValueError if the path is not a chain of pending tokens that starts at the last cached one.
        """
        if self.windows is not None:
            return self._commit_window(self.windows, sequence, path)
        if self.states is None:
            return self._commit(sequence, path)
        n_before, writes = self.n_cached(sequence), self.states.claim(sequence, len(path))
        try:
            copies = self._commit(sequence, path)
        except BaseException:  # not such a chain, or a signal handler raised
            self.states.give_back(sequence, writes)
            raise
        advances = self.states.commit(sequence, writes, path.tolist(), n_before, self._sequences[sequence].pages)
        return Copies(copies.sources, copies.targets, advances)

    def _commit_window(self, windows: WindowPages, sequence: int, path: Int32s) -> Copies:
        """`commit` with sliding-window layers; when the window moves on, frees places for drafts if few are free."""
        first = windows.first_page(self.n_cached(sequence))
        copies = self._commit(sequence, path)
        if windows.is_short and windows.first_page(self.n_cached(sequence)) > first:
            windows.free_up(windows.n_spare, self._sequences.values(), self._references)
        return copies

    def _commit(self, sequence: int, path: Int32s) -> Copies:
        """Extend the sequence by the tokens of a path. Returns the slot copies that this needs."""
        found, pending = self._get(sequence), self._pending.get(sequence)
        if pending is None:
            raise ValueError(f"sequence {sequence} has nothing pending")
        if len(path) == 1 and self._commit_one(found, pending, sequence, int(path[0])):
            return NO_COPIES
        nodes = path.tolist()
        all_slots, all_parents, all_sequences = (
            array.tolist() for array in (pending.slots, pending.batch.parents, pending.batch.sequences)
        )
        parents, sequences = [all_parents[node] for node in nodes], {all_sequences[node] for node in nodes}
        if sequences - {sequence} or parents != [-1, *nodes[:-1]][: len(nodes)]:
            raise ValueError(f"the path {nodes} is not a chain of pending tokens of sequence {sequence}")
        sources: list[int] = []
        targets: list[int] = []
        for position, node in enumerate(nodes, found.n_cached):
            slot = all_slots[node]
            target = found.pages[position // PAGE] * PAGE + position % PAGE
            if slot != target:
                sources.append(slot)
                targets.append(target)
        found.n_cached += len(nodes)
        self._discard(sequence)
        return Copies.of(sources, targets)

    def _commit_one(self, found: SequencePages, pending: PendingBatch, sequence: int, node: int) -> bool:
        """Commit a single pending token that is already in its slot and has no siblings. Returns whether it was one."""
        position, batch = found.n_cached, pending.batch
        place = found.pages[position // PAGE] * PAGE + position % PAGE
        if found.spare or len(found.pages) > pages_for(position + 1):
            return False
        if batch.sequences[node] != sequence or batch.parents[node] >= 0 or pending.slots[node] != place:
            return False
        found.n_cached += 1
        del self._pending[sequence]
        return True

    def _get(self, sequence: int) -> SequencePages:
        if sequence not in self._sequences:
            raise ValueError(f"there is no sequence {sequence}")
        return self._sequences[sequence]

    def _discard(self, sequence: int) -> SequencePages:
        """Drop the pending tokens of a sequence, with the pages that only they needed."""
        found = self._get(sequence)
        self._pending.pop(sequence, None)
        if self.states is not None:
            self.states.discard(sequence)
        while found.spare:
            self._release(found.spare.pop())
        self._trim(found)
        return found

    def _trim(self, found: SequencePages) -> None:
        while len(found.pages) > pages_for(found.n_cached):
            self._release(found.pages.pop())

    def _take(self, *, is_seen: bool = True) -> int:
        """Allocate a page, with a place in sliding-window layers if it `is_seen` there."""
        page = self._free.pop()
        self._references[page] = 1
        self.summaries.forget((page,))
        if self.windows is not None and is_seen:
            self.windows.give(page)
        return page

    def _release(self, page: int) -> None:
        self._references[page] -= 1
        if not self._references[page]:
            self._free.append(page)
            if self.windows is not None:
                self.windows.drop(page)
            if self.states is not None:
                self.states.slots.drop(page)

    def _shares_last_page(self, found: SequencePages) -> bool:
        return found.n_cached % PAGE != 0 and self._references[found.pages[-1]] > 1

    def _own_last_page(self, found: SequencePages, sources: list[int], targets: list[int]) -> None:
        """Copy on write: give the sequence its own copy of the partly filled last page."""
        if self._shares_last_page(found):
            shared, own = found.pages[-1], self._take()
            sources.extend(shared * PAGE + offset for offset in range(found.n_cached % PAGE))
            targets.extend(own * PAGE + offset for offset in range(found.n_cached % PAGE))
            self._release(shared)
            found.pages[-1] = own

    def _wanted(self, sequence: int, batch: Batch, tokens: Indices, leaders: Indices) -> int:
        """Most new pages that placing these tokens can take."""
        found = self._sequences[sequence]
        n_positions = int(batch.positions[tokens].max()) + 1
        grown = pages_for(n_positions) - len(found.pages)
        return grown + pages_for(len(tokens) - len(leaders)) + int(self._shares_last_page(found))

    def _slots(self, found: SequencePages, positions: Indices, leaders: Indices) -> Int32s:
        """The slots of a sequence's tokens: first tokens through the page table, their siblings in spare pages."""
        found.pages.extend(self._take() for _ in range(pages_for(int(positions.max()) + 1) - len(found.pages)))
        n_spare = len(positions) - len(leaders)
        found.spare = [self._take() for _ in range(pages_for(n_spare))]
        slots, siblings = np.empty(len(positions), np.int32), np.ones(len(positions), bool)
        siblings[leaders] = False
        slots[leaders] = table_slots(found.pages, positions[leaders])
        slots[siblings] = table_slots(found.spare, np.arange(n_spare))
        return slots

    def _tables(self, sequences: list[int]) -> Int32s:
        width = max((len(self._sequences[sequence].pages) for sequence in sequences), default=0)
        pages = (self._sequences[sequence].pages for sequence in sequences)
        return np.array([each + [-1] * (width - len(each)) for each in pages], np.int32)

    def _check_batch(self, batch: Batch, members: dict[int, Indices]) -> None:
        if not len(batch.tokens):
            raise ValueError("a batch needs at least one token")
        n_cached = np.zeros(len(batch.tokens), np.int32)
        for sequence, tokens in members.items():
            n_cached[tokens] = self._get(sequence).n_cached
        parents, rooted = batch.parents, batch.parents < 0
        expected = np.where(rooted, n_cached, batch.positions[parents] + 1)
        strangers = ~rooted & (batch.sequences[parents] != batch.sequences)
        if np.any(parents >= np.arange(len(parents))) or np.any(expected != batch.positions) or np.any(strangers):
            raise ValueError(WRONG_PARENTS)
        self._check_context(int(batch.positions.max()) + 1)

    def _check_context(self, n_tokens: int) -> None:
        if n_tokens > self._n_context:
            raise ContextOverflow(f"{n_tokens} tokens do not fit in the context of {self._n_context}")

    def _check_pages(self, n_wanted: int, n_unseen: int = 0) -> None:
        """Raises DoesNotFit unless `n_wanted` pages are free; sliding-window layers see all but `n_unseen` of them."""
        if n_wanted > len(self._free):
            raise DoesNotFit(FULL.format(n_wanted, PAGE, len(self._free), self._n_pages))
        if self.windows is not None:
            self.windows.require(n_wanted - n_unseen, self._sequences.values(), self._references)
