"""The prefixes that one open model finds on disk and leaves there.

In: sequences that begin and end. Out: sequences that begin with more of their prompt cached, and files for later ones.
None for evaluators whose cache cannot be read by pages, or where reading a text again could give other bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import edgeinfer
from edgeinfer.engine.kv.cached_pages import CachedPages
from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.engine.prefixes.folders import folder_of
from edgeinfer.engine.prefixes.keeping import PrefixWriter
from edgeinfer.engine.prefixes.keys import root_key
from edgeinfer.engine.prefixes.restoring import LEAST_TOKENS, ComingPrefix, coming_prefix, put_back
from edgeinfer.engine.prefixes.store import PrefixStore
from edgeinfer.engine.requests.adapters import Scales
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.jit.cpu import this_cpu

AHEAD_BYTES = 128 << 20
"""Memory for pages of a prefix that are read while other answers go on."""
MOST_AHEAD = 2
"""Most prefixes that are read so."""


class DiskPrefixes:
    """Prefixes of one model on disk. Close it before the pool; the rest needs the engine's lock, but for `finish`."""

    def __init__(
        self,
        pool: Pool,
        pages: CachedPages,
        store: PrefixStore,
        identity: Callable[[], Mapping[str, Value]],
        is_busy: Callable[[], bool],
    ) -> None:
        """`identity`: what contents of pages depend on besides tokens. `is_busy`: whether answers need the engine."""
        self._pages, self._store, self._identity = pages, store, identity
        self._roots: dict[Scales, bytes] = {}
        self._ahead: dict[CachedSequence, ComingPrefix | None] = {}  # None: nothing is to be read
        self._last: dict[Scales, list[int]] = {}  # the last of many prompts, by scales
        self._shared: list[int] = []
        self._writer = PrefixWriter(pool, pages, store, self._root, is_busy)
        pool.gives_up = self._writer.keep_copy
        self._root(pool.scales)  # the first answer does not wait for it

    def is_coming(self, cached: CachedSequence, prompt: Sequence[int], scales: Scales, n_cached: int) -> bool:
        """Whether a sequence should wait to begin, as what is on disk of its prompt is being read; begins to read it.

        `n_cached`: how many tokens of the prompt memory has. `forget` it if it does not begin.
        """
        if cached not in self._ahead:
            ahead = [each for each in self._ahead.values() if each is not None]
            if len(ahead) == MOST_AHEAD:  # those that are read may wait for memory: no reason for others to wait too
                return not all(each.reading.is_ahead for each in ahead)
            self._ahead[cached] = self._coming(prompt, scales, n_cached, AHEAD_BYTES)
        prefix = self._ahead[cached]
        return prefix is not None and not prefix.reading.is_ahead

    def forget(self, cached: CachedSequence) -> None:
        """Drop what is being read for a sequence."""
        prefix = self._ahead.pop(cached, None)
        if prefix is not None:
            prefix.close()

    def restore(self, cached: CachedSequence, prompt: Sequence[int], make_room: Callable[[], bool]) -> int:
        """Continue a sequence along its prompt from disk; returns how many tokens that gave. As `put_back`."""
        prefix = self._ahead.pop(cached, None) or self._coming(prompt, cached.scales, cached.n_cached)
        if prefix is None:
            return 0
        with prefix, suppress(OSError, MemoryError, RuntimeError):  # memory or threads are short
            return put_back(cached, prompt, prefix, self._pages, self._store, make_room)
        return 0

    def _coming(
        self, prompt: Sequence[int], scales: Scales, n_cached: int, ahead_bytes: int = 0
    ) -> ComingPrefix | None:
        """Begin to read what is on disk of a prompt; None also if memory or threads are short."""
        try:
            return coming_prefix(self._root(scales), prompt, n_cached, self._pages, self._store, ahead_bytes)
        except (OSError, MemoryError, RuntimeError):
            return None

    def note(self, cached: CachedSequence, prompt: Sequence[int]) -> None:
        """Note that an answer is over, and what it has read: it will be written."""
        self._writer.note(cached, len(prompt), cached.n_exact)

    def note_shared(self, cached: CachedSequence, prompt: Sequence[int]) -> None:
        """As `note` for one of many answers, whose sequence closes: what its prompt shares with the last one's.

        The rest would only take the place of prefixes that are of use.
        """
        before, self._last[cached.scales] = self._last.get(cached.scales, []), list(prompt)
        n_same = min(n_common(before, list(prompt)), cached.n_exact)
        if n_same >= LEAST_TOKENS and before[:n_same] != self._shared[:n_same]:
            self._shared = before[:n_same]
            self._writer.note(cached, n_same + 1, n_same, keeps=True)

    def finish(self) -> None:
        """Write what is noted now."""
        self._writer.finish()

    def close(self) -> None:
        """Write what is noted, and end the threads; may be called twice."""
        for cached in tuple(self._ahead):
            self.forget(cached)
        self._writer.close()

    def _root(self, scales: Scales) -> bytes:
        if scales not in self._roots:
            self._roots[scales] = root_key(self._identity(), scales)
        return self._roots[scales]


def disk_prefixes(subject: Subject, pool: Pool, cap_bytes: int, is_busy: Callable[[], bool]) -> DiskPrefixes | None:
    """The prefixes of an open model, in at most `cap_bytes` with those of others; None where there can be none."""
    pages, spec = pool.executor.capabilities.pages, subject.spec
    if pages is None or spec is None or not cap_bytes:
        return None
    try:  # fingerprints cover samples of a file; with its size and time they tell it from its finetuned twins
        statuses = [path.stat() for path in subject.gguf.paths]
    except OSError:  # it was deleted meanwhile
        return None
    files = str([(status.st_size, status.st_mtime_ns) for status in statuses])

    def identity() -> Mapping[str, Value]:
        computed = hashlib.blake2b(repr((spec.stages, spec.kv, spec.states)).encode(), digest_size=16).hexdigest()
        own = {"version": edgeinfer.__version__, "computed": computed, "files": files, "cpu": this_cpu().flags}
        return {**pages.identity, **own}

    store = PrefixStore(folder_of(subject.fingerprint), cap_bytes, pages.page_bytes)
    return DiskPrefixes(pool, pages, store, identity, is_busy)
