"""The cached contents of sequences by whole pages, to be kept elsewhere and put back into another sequence.

In: a cache's bookkeeping and a lane. Out: contents of pages, and of checkpoints: what is needed besides pages to
continue after one, that is the window of layers that keep no more, or the states. Knows no text and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Lane
from edgeinfer.backends.memories import StateMemory, WindowMemory
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.pages import WindowPages
from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.engine.kv.states import SequenceStates
from edgeinfer.graph.step import PAGE

Bytes = NDArray[np.uint8]


class CachedPages:
    """Pages and checkpoints of the sequences of one cache. Numbers of pages count from the beginning of a sequence."""

    def __init__(self, cache: KVCache, lane: Lane, identity: Callable[[], Mapping[str, Value]]) -> None:
        self._cache, self._lane, self._identity = cache, lane, identity
        has = lane.capabilities
        self._windows: tuple[WindowPages, WindowMemory] | None = None
        self._states: tuple[SequenceStates, StateMemory] | None = None
        if cache.windows is not None and has.windows is not None:
            self._windows = cache.windows, has.windows
        if cache.states is not None and has.states is not None:
            self._states = cache.states, has.states

    @property
    def identity(self) -> Mapping[str, Value]:
        """What contents depend on besides the text; put them back where it is the same."""
        return self._identity()

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return int(self._lane.read_pages(np.zeros(1, np.int32)).shape[1])

    @property
    def needs_checkpoints(self) -> bool:
        """Whether pages alone do not suffice to continue."""
        return self._windows is not None or self._states is not None

    @property
    def takes_threads(self) -> bool:
        """Whether several threads may write pages at a time: a lane whose workers share this machine's memory."""
        return self._lane.capabilities.workers is not None

    def read(self, sequence: int, first: int, stop: int) -> Bytes:
        """Contents of whole pages: uint8[stop - first, page_bytes]."""
        return self._lane.read_pages(self._cache.pages(sequence)[first:stop])

    def checkpoints(self, sequence: int) -> list[int]:
        """After how many pages the sequence could be continued with what is in memory, in increasing order."""
        n_cached, pages = self._cache.n_cached(sequence), self._cache.pages(sequence).tolist()
        places = range(1, n_cached // PAGE + 1)
        if self._states is not None:
            found = {n_pages for n_pages, _ in self._states[0].checkpoints(pages[: len(places)])}
            current = {len(places)} if places and n_cached == PAGE * len(places) else set[int]()
            return sorted(found | current)
        if self._windows is not None:
            windows, _ = self._windows
            return [n_pages for n_pages in places if windows.reach(pages, n_pages * PAGE) == n_pages * PAGE]
        return list(places)

    def checkpoint_bytes(self, n_pages: int) -> int:
        """Bytes of the checkpoint after so many pages."""
        if self._states is not None:
            return self._states[1].slot_bytes
        return 0 if self._windows is None else len(self._seen(n_pages)) * self._windows[1].page_bytes

    def checkpoint(self, sequence: int, n_pages: int) -> Bytes:
        """The checkpoint after so many pages, one of `checkpoints`: uint8[checkpoint_bytes]."""
        pages = self._cache.pages(sequence)
        if self._states is not None:
            states, memory = self._states
            slots = dict(states.checkpoints(pages[:n_pages].tolist()))
            found: Bytes = memory.read([slots.get(n_pages, states.current(sequence))])[0]
            return found
        assert self._windows is not None
        windows, kept = self._windows
        windows.tell(kept)
        return kept.read(pages[self._seen(n_pages)]).reshape(-1)

    def extend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached from the end, at a whole page, up to so many; write pages next, and the checkpoint.

        Raises ContextOverflow or DoesNotFit, and then leaves the sequence as it is.
        """
        if self._states is not None:
            self._states[0].slots.check(1)
        self._cache.extend(sequence, n_tokens)

    def write(self, sequence: int, first: int, contents: Bytes) -> None:
        """Write contents of pages from the page `first` on: uint8[pages, page_bytes]."""
        self._lane.write_pages(self._cache.pages(sequence)[first : first + len(contents)], contents)

    def write_checkpoint(self, sequence: int, n_own: int, content: Bytes) -> None:
        """Put back the checkpoint after the last page. `n_own`: pages that the sequence had before it was extended."""
        pages = self._cache.pages(sequence)
        if self._states is not None:
            states, memory = self._states
            slot = states.adopt(sequence)
            memory.write([slot], content[None])
            states.slots.keep(int(pages[-1]), states.slots.hold(slot))
            return
        assert self._windows is not None
        windows, kept = self._windows
        seen = self._seen(len(pages))
        contents = content.reshape(len(seen), kept.page_bytes)
        new = seen >= n_own  # the others have their places and contents
        windows.tell(kept)
        kept.write(pages[seen[new]], contents[new])

    def _seen(self, n_pages: int) -> NDArray[np.int64]:
        """Numbers of the pages that the token after so many pages sees in layers with a window."""
        first = 0 if self._windows is None else self._windows[0].first_page(n_pages * PAGE)
        return np.arange(first, n_pages)
