"""Writing prefixes to disk, by a thread of its own, while no answer needs the engine or after a long wait.

In: texts that were read, noted when an answer is over. Out: pages and checkpoints in the store, copied a few at a time
from whichever sequence still has them; of one that loses its memory before, a copy is kept until it is written.
Nothing here fails.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from edgeinfer.engine.kv.cached_pages import Bytes, CachedPages
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.saved_state import n_saved_checkpoints
from edgeinfer.engine.prefixes.keys import n_before_modules, page_keys, page_names
from edgeinfer.engine.prefixes.restoring import LEAST_TOKENS, Root
from edgeinfer.engine.prefixes.store import PrefixStore
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import PAGE

MOST_WAITING = 16
"""Most texts that wait to be written; the oldest are given up."""
CHUNK_BYTES = 4 << 20
"""Bytes that are copied from the cache at a time, while answers would have to wait."""
COPIES_BYTES = 256 << 20
"""Most memory for copies of texts that sequences have lost."""
BEHIND = (0, 1, 3, 7, 15, 31)
"""How many pages before the end of a prompt checkpoints are kept, as far as there are any and their size allows."""
LEAST_LAST = 8
"""Fewest tokens of a last page that is not whole for which it is written."""
LOOK_S = 0.02
LONGEST_WAIT_S = 60.0
"""Time after which a text is written, slowly, although answers need the engine: a busy server has to keep some too."""
PAUSE_S = 0.1
"""Pause between two parts of such a text."""
CLOSING_S = 5.0
"""Longest time that closing waits for texts to be written."""


@dataclass(frozen=True, slots=True)
class CopiedText:
    """Pages of a text from number `first` on, and checkpoints by their number of pages."""

    first: int
    pages: Bytes
    checkpoints: Mapping[int, Bytes]

    @property
    def n_bytes(self) -> int:
        return self.pages.nbytes + sum(each.nbytes for each in self.checkpoints.values())


@dataclass(slots=True, eq=False)
class NotedText:
    """A text that was read with some scales, and how many of its whole pages belong to the prompt."""

    tokens: tuple[int, ...]
    scales: tuple[float, ...]
    n_prompt_pages: int
    holder: CachedSequence | None = None
    """A sequence with the text that is closed once it is written; None: others are looked for."""
    copied: CopiedText | None = None
    """What was copied of it when the last sequence with it lost its memory."""
    noted_s: float = field(default_factory=time.monotonic)

    @property
    def n_pages(self) -> int:
        """Its whole pages."""
        return len(self.tokens) // PAGE

    def release(self) -> None:
        """Close the holder."""
        if self.holder is not None:
            self.holder.close()

    def contains(self, other: NotedText) -> bool:
        """Whether the other text is a beginning of this one."""
        return self.scales == other.scales and self.tokens[: len(other.tokens)] == other.tokens


class PrefixWriter:
    """Writes the texts of one model. `is_busy`: whether answers need the engine now. Close it before the pool."""

    def __init__(
        self, pool: Pool, pages: CachedPages, store: PrefixStore, root: Root, is_busy: Callable[[], bool]
    ) -> None:
        self._pool, self._pages, self._store, self._root, self._is_busy = pool, pages, store, root, is_busy
        self._waiting: list[NotedText] = []
        self._writing: NotedText | None = None
        self._lock = threading.RLock()  # a signal may break off the exit of a Condition, but not that of a lock
        self._changed = threading.Condition(self._lock)
        self._hurries = self._closing = False
        self._thread: threading.Thread | None = None

    def note(self, cached: CachedSequence, n_prompt: int, n_tokens: int, *, keeps: bool = False) -> None:
        """Note the first tokens that a sequence has read, to be written. Call with the engine's lock held.

        `n_prompt`: tokens of its prompt. `keeps`: it is about to be closed, so a branch of it is kept until then.
        """
        tokens = cached.tokens[: min(n_before_modules(cached.tokens), n_tokens)]
        if len(tokens) < LEAST_TOKENS or self._closing:
            return
        holder = cached.branch() if keeps else None
        text = NotedText(tokens, cached.scales, min(n_prompt - 1, len(tokens)) // PAGE, holder)
        with self._lock:
            left = [each for each in self._waiting if not text.contains(each)][1 - MOST_WAITING :]
            dropped, self._waiting = [each for each in self._waiting if each not in left], [*left, text]
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edgeinfer prefixes", daemon=True)
                with suppress(RuntimeError):  # no more threads: the next text tries again
                    thread.start()
                    self._thread = thread
        for each in dropped:
            each.release()

    def keep_copy(self, cached: CachedSequence) -> None:
        """Copy what is noted of a sequence that is about to lose its memory. Call with the engine's lock held."""
        with self._lock:
            texts = [each for each in (self._writing, *self._waiting) if each is not None]
        for text in texts:
            n_left = COPIES_BYTES - sum(each.copied.n_bytes for each in texts if each.copied is not None)
            others = [each for each in self._having(text, len(text.tokens)) if each is not cached]
            if text.copied is None and not others and self._has(cached, text, len(text.tokens)):
                try:
                    text.copied = self._copy(text, cached.sequence, n_left)
                except (EdgeInferError, MemoryError):
                    return

    def _copy(self, text: NotedText, sequence: int, most_bytes: int) -> CopiedText | None:
        """A copy of what is to be written of a text, as far as there is memory; None if nothing is."""
        keys = page_keys(self._root(text.scales), text.tokens)
        chosen = self._chosen_checkpoints(text, sequence)
        n_pages = max(chosen, default=0) if self._pages.needs_checkpoints else pages_for(len(text.tokens))
        with self._store.find(keys) as found:
            first = min(len(found), n_pages)
        checkpoints = {each: self._pages.checkpoint(sequence, each) for each in chosen}
        n_left = most_bytes - sum(each.nbytes for each in checkpoints.values())
        stop = min(n_pages, first + n_left // max(1, self._pages.page_bytes))
        return CopiedText(first, self._pages.read(sequence, first, stop), checkpoints) if first < stop else None

    def finish(self) -> None:
        """Return once everything noted is written or given up, or it takes too long."""
        until_s = time.monotonic() + CLOSING_S
        with self._lock:
            while self._thread is not None and (self._waiting or self._writing) and time.monotonic() < until_s:
                self._hurries = True
                self._changed.notify_all()
                self._changed.wait(LOOK_S)
            self._hurries = False

    def close(self) -> None:
        """Write what is noted, and end the thread; may be called twice."""
        self.finish()
        with self._lock:
            self._closing = True
            dropped, self._waiting = self._waiting, []
            self._changed.notify_all()
        for each in dropped:
            each.release()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while self._write_next():  # between texts, this thread holds none: its copy may be large
            pass

    def _write_next(self) -> bool:
        """Wait for a text and write it; False at the end."""
        text = self._next()
        if text is None:
            return False
        try:
            self._write(text)
        except Exception:  # the device failed, there is no room for copies, no more threads: the others go on
            pass
        finally:
            text.release()
            with self._lock:
                self._writing = None
                self._changed.notify_all()
        return True

    def _next(self) -> NotedText | None:
        """Wait for a text, and for a time when nothing is busy; None at the end."""
        with self._lock:
            while not self._closing:
                ready = next((each for each in self._waiting if not self._must_wait(each)), None)
                if ready is not None:
                    self._waiting.remove(ready)
                    self._writing = ready
                    return ready
                self._changed.wait(LOOK_S if self._waiting else None)
        return None

    def _must_wait(self, text: NotedText) -> bool:
        """Whether answers need the engine, the text is not copied, and it has not waited long."""
        waits_no_more = text.copied is not None or time.monotonic() > text.noted_s + LONGEST_WAIT_S
        if self._hurries or self._closing or waits_no_more:
            return False
        return self._is_busy()

    def _write(self, text: NotedText) -> None:
        """Write the pages of a text that are not in the store, and checkpoints for models that need them."""
        names = page_names(self._root(text.scales), text.tokens)
        keys = page_keys(self._root(text.scales), text.tokens)
        checkpoints = list(self._checkpoints(text, keys))
        n_pages = max(checkpoints, default=0) if self._pages.needs_checkpoints else text.n_pages
        with self._store.find(keys[:n_pages]) as found:
            n_found = 0 if found.is_scattered else len(found)
        if n_found < n_pages and n_pages * PAGE >= LEAST_TOKENS:
            if not self._pages.needs_checkpoints and len(text.tokens) % PAGE >= LEAST_LAST:
                n_pages += 1  # the last page, which is not whole, for texts that share its beginning
            self._store.write_pages(names[n_found:n_pages], self._contents(text, n_found, n_pages))

    def _checkpoints(self, text: NotedText, keys: Sequence[str]) -> Iterator[int]:
        """Write checkpoints; yields after how many pages there is one now."""
        if not self._pages.needs_checkpoints:
            return
        with self._pool.lock:
            holder = self._holder(text, text.n_pages * PAGE)
            copied = () if text.copied is None else tuple(text.copied.checkpoints)
            chosen = copied if holder is None else self._chosen_checkpoints(text, holder.sequence)
        for n_pages in chosen:
            if self._store.has_checkpoint(keys[n_pages - 1]) or self._write_checkpoint(text, keys, n_pages):
                yield n_pages

    def _chosen_checkpoints(self, text: NotedText, sequence: int) -> tuple[int, ...]:
        """After how many pages checkpoints are to be written. Call with the lock held.

        The newest, that of the prompt, by which it can be asked again, and some farther behind, for texts that leave
        this one there.
        """
        if not self._pages.needs_checkpoints:
            return ()
        able = self._pages.checkpoints(sequence)
        wanted = [text.n_pages, *(text.n_prompt_pages - n_behind for n_behind in BEHIND)]
        places = [bisect_right(able, n_pages) - 1 for n_pages in wanted]
        chosen = dict.fromkeys(able[place] for place in places if place >= 0)
        most = max(2, n_saved_checkpoints(self._pages.checkpoint_bytes(text.n_pages)))
        return tuple([n_pages for n_pages in chosen if n_pages * PAGE >= LEAST_TOKENS][:most])

    def _write_checkpoint(self, text: NotedText, keys: Sequence[str], n_pages: int) -> bool:
        with self._pool.lock:
            holder = self._holder(text, n_pages * PAGE)
            if holder is not None and n_pages in self._pages.checkpoints(holder.sequence):
                content = self._pages.checkpoint(holder.sequence, n_pages)
            elif text.copied is not None and n_pages in text.copied.checkpoints:
                content = text.copied.checkpoints[n_pages]
            else:
                return False
        return self._store.write_checkpoint(keys[n_pages - 1], content.data)

    def _contents(self, text: NotedText, first: int, stop: int) -> Iterator[memoryview]:
        """Yield the contents of pages, copied while nothing is busy, as long as a sequence has them."""
        n_at_once = max(1, CHUNK_BYTES // max(1, self._pages.page_bytes))
        for start in range(first, stop, n_at_once):
            while self._must_wait(text):
                time.sleep(LOOK_S)
            if text.copied is None and self._is_busy() and not self._hurries:
                time.sleep(PAUSE_S)
            if self._closing:
                return
            end = min(start + n_at_once, stop)
            contents = self._pages_of(text, start, end)
            for content in contents:
                yield content.data
            if len(contents) < end - start:
                return

    def _pages_of(self, text: NotedText, start: int, stop: int) -> Sequence[Bytes] | Bytes:
        """Contents of pages of a text, fewer where there are no more."""
        with self._pool.lock:
            holder, copied = self._holder(text, min(stop * PAGE, len(text.tokens))), text.copied
            if holder is not None:
                return self._pages.read(holder.sequence, start, stop)
        if copied is None or start < copied.first:
            return ()
        return copied.pages[start - copied.first : stop - copied.first]

    def _holder(self, text: NotedText, n_tokens: int) -> CachedSequence | None:
        """A sequence that has read so many tokens of a text. Call with the lock held."""
        return next(self._having(text, n_tokens), None)

    def _having(self, text: NotedText, n_tokens: int) -> Iterator[CachedSequence]:
        return (each for each in self._pool.members if self._has(each, text, n_tokens))

    def _has(self, cached: CachedSequence, text: NotedText, n_tokens: int) -> bool:
        return cached.n_common(list(text.tokens[:n_tokens]), text.scales) == n_tokens
