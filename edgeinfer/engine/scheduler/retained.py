"""Keys and values of requests that are not running: prefixes for others to share, and swapped-out sequences.

In: prompts, sequences of running, finished and preempted requests. Out: sequences that start with a prefix that others
have read; preempted ones, later, bit for bit. Sequences of finished answers stay until their memory is needed; the
least recently used goes first. Preempted ones go to RAM up to a limit, then to files, which have no name, so nothing is
left behind whatever happens; what fits nowhere is dropped, and its text is read again. Knows no text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.errors import DoesNotFit, EdgeInferError, EngineClosed
from edgeinfer.offload.bundle_file import bundles_folder
from edgeinfer.private_files import private_folder

LEAST_SHARED = 16
"""Fewest tokens that are worth sharing."""
MOST_KEPT = 32
"""Most sequences of finished answers to keep."""
RAM_BYTES = 1 << 30


class Prefixes:
    """The cached sequences of finished requests; needs the engine's lock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: list[CachedSequence] = []

    @property
    def kept(self) -> tuple[CachedSequence, ...]:
        """Sequences of finished answers, least recently used first."""
        return tuple(self._kept)

    def begin(
        self, cached: CachedSequence, prompt: Sequence[int], scales: tuple[float, ...], *, exact: bool = True
    ) -> None:
        """Start an empty sequence with the longest prefix of a prompt that any other sequence has cached.

        `scales`: of LoRA adapters; a prefix that was read with others is another one. `exact`: as in `n_common`.
        """
        donor, n_same = self.best(cached, prompt, scales, exact=exact)
        if donor is None:
            return
        if donor in self._kept:
            self._kept.remove(donor)
            if n_same == donor.n_cached:
                cached.take_over(donor)
                return
            self._kept.append(donor)  # the most recently used
        cached.share(donor, n_same)

    def best(
        self, cached: CachedSequence, prompt: Sequence[int], scales: tuple[float, ...], *, exact: bool = True
    ) -> tuple[CachedSequence | None, int]:
        """The other sequence with the longest cached prefix of a prompt, and its length; None if too short to share."""
        tokens, donor, longest = list(prompt), None, (LEAST_SHARED - 1, LEAST_SHARED)
        for other in self._pool.members:
            n_cached = 0 if other is cached else other.n_common(tokens, scales, exact=exact)
            if (n_cached, min(n_cached, other.n_exact)) > longest:
                donor, longest = other, (n_cached, min(n_cached, other.n_exact))
        return donor, longest[0] if donor is not None else 0

    def keep(self, cached: CachedSequence) -> None:
        """Keep what a finished request has cached, as long as nothing needs the memory."""
        tokens = list(cached.tokens)
        for other in self.kept:
            is_within = other.n_common(tokens, cached.scales, exact=False) == other.n_cached
            if is_within and other.n_exact <= cached.n_exact:  # the new one contains it
                self._close(other)
        if cached.n_cached >= LEAST_SHARED:
            self._kept.append(cached)
        else:
            cached.close()
        while len(self._kept) > MOST_KEPT:
            self.give_up()

    def copy(self, cached: CachedSequence, tokens: Sequence[int], scales: tuple[float, ...]) -> None:
        """As `begin`, leaving what is kept as it is; a text that is too short to be kept is read."""
        donor, n_same = self.best(cached, tokens, scales)
        if donor is not None:
            cached.share(donor, n_same)
        elif 0 < len(tokens) <= LEAST_SHARED:  # the last one of an answer is not cached
            cached.keep_prefix(tokens, scales)
            for first in range(0, len(tokens), cached.max_tokens):
                part = tokens[first : first + cached.max_tokens]
                batch = cached.chain(part, wants_logits=False)
                cached.evaluate(batch)
                cached.commit(batch, np.arange(len(part), dtype=np.int32))

    def restore(
        self, tokens: Sequence[int], state: bytes, scales: tuple[float, ...], n_exact: int | None = None
    ) -> None:
        """Keep a saved sequence; others give up their memory if need be. Raises as `CachedSequence.restore`."""
        cached = self._pool.open()
        try:
            while True:
                try:
                    cached.restore(tokens, state, scales, n_exact)
                    break
                except DoesNotFit:
                    if not self.give_up():
                        raise
        except BaseException:
            cached.close()
            raise
        self.keep(cached)

    def drop(self, tokens: Sequence[int], scales: tuple[float, ...]) -> int:
        """Close what is kept of a text: its beginnings and what continues it; returns the most tokens of one."""
        text = list(tokens)
        found = [
            each
            for each in self.kept
            if text and each.n_common(text, scales, exact=False) == min(each.n_cached, len(text))
        ]
        n_dropped = max((min(each.n_cached, len(text)) for each in found), default=0)
        for each in found:
            self._close(each)
        return n_dropped

    def give_up(self) -> bool:
        """Close the least recently used sequence. Returns whether there was one."""
        if not self._kept:
            return False
        self._pool.gives_up(self._kept[0])
        self._close(self._kept[0])
        return True

    def close(self) -> None:
        """Close all of them."""
        while self._kept:
            self._close(self._kept[0])

    def _close(self, cached: CachedSequence) -> None:
        self._kept.remove(cached)
        cached.close()


def is_being_read(prompt: Sequence[int], n_cached: int, others: Iterable[tuple[Sequence[int], int]]) -> bool:
    """Whether another answer is reading a long prefix of this prompt that is not cached yet.

    `others`: their prompts and how much of each is cached. `n_cached`: how much of this prompt is cached anywhere.
    """
    for other, n_read in others:
        if n_read >= len(other) - 1:
            continue
        n_same = n_common(prompt, other)
        if n_same - max(n_cached, n_read) >= LEAST_SHARED and n_same > n_read:
            return True
    return False


@dataclass(slots=True)
class SwappedSequence:
    """The cached tokens of a sequence, how many are exact, and the executor's state for them, in RAM or in a file."""

    tokens: tuple[int, ...]
    n_exact: int
    state: bytes | None
    file: IO[bytes] | None
    n_bytes: int


@dataclass(slots=True)
class SwapCounts:
    """How often keys and values were swapped out to RAM or to files, dropped, and swapped in."""

    in_ram: int = 0
    on_disk: int = 0
    dropped: int = 0
    swapped_in: int = 0


def disk_folder() -> Path:
    """A folder that is on a disk, since the folder for temporary files may be in memory. Raises OSError."""
    folder = bundles_folder().with_name("swap")
    private_folder(folder)
    return folder


class SwapSpace:
    """Keys and values of preempted sequences; needs the engine's lock."""

    def __init__(self, most_ram_bytes: int = RAM_BYTES, folder: Callable[[], Path] = disk_folder) -> None:
        """`folder`: returns the folder for swap files."""
        self._most_ram_bytes, self._folder = most_ram_bytes, folder
        self._swapped: dict[CachedSequence, SwappedSequence] = {}
        self.counts = SwapCounts()

    @property
    def ram_bytes(self) -> int:
        """Bytes held in RAM."""
        return sum(swapped.n_bytes for swapped in self._swapped.values() if swapped.state is not None)

    def n_tokens(self, cached: CachedSequence) -> int:
        """How many tokens of a sequence are saved."""
        swapped = self._swapped.get(cached)
        return 0 if swapped is None else len(swapped.tokens)

    def swap_out(self, cached: CachedSequence) -> None:
        """Free a sequence's memory, and save its contents if there is room."""
        self.drop(cached)
        swapped = self._saved(cached)
        if swapped is None:
            self.counts.dropped += 1
        else:
            self._swapped[cached] = swapped
        cached.forget()

    def swap_in(self, cached: CachedSequence) -> None:
        """Restore a sequence's saved contents if there are any and they fit; otherwise its text is read again."""
        swapped = self._swapped.pop(cached, None)
        if swapped is None:
            return
        try:
            state = swapped.state if swapped.state is not None else _read_back(swapped)
            cached.put_back(swapped.tokens, state, swapped.n_exact)
            self.counts.swapped_in += 1
        except EngineClosed:
            raise
        except (OSError, MemoryError, EdgeInferError):  # no room, a damaged file, saved on another device
            cached.forget()
            self.counts.dropped += 1
        finally:
            if swapped.file is not None:
                swapped.file.close()

    def drop(self, cached: CachedSequence) -> None:
        """Drop the saved contents of a sequence."""
        swapped = self._swapped.pop(cached, None)
        if swapped is not None and swapped.file is not None:
            swapped.file.close()

    def close(self) -> None:
        """Drop everything."""
        for cached in tuple(self._swapped):
            self.drop(cached)

    def _saved(self, cached: CachedSequence) -> SwappedSequence | None:
        """Save the contents of a sequence if there is room for them."""
        if not cached.n_cached:
            return None
        try:
            n_exact, (tokens, state) = cached.n_exact, cached.save()
        except (EdgeInferError, MemoryError):  # an executor that cannot save, or no room for the saved contents
            return None
        if self.ram_bytes + len(state) <= self._most_ram_bytes:
            self.counts.in_ram += 1
            return SwappedSequence(tokens, n_exact, state, None, len(state))
        file: IO[bytes] | None = None
        try:
            file = tempfile.TemporaryFile(dir=self._folder())  # noqa: SIM115  # it stays open
            file.write(state)
            file.flush()
        except OSError:
            if file is not None:
                file.close()
            return None
        self.counts.on_disk += 1
        return SwappedSequence(tokens, n_exact, None, file, len(state))


def _read_back(swapped: SwappedSequence) -> bytes:
    assert swapped.file is not None
    swapped.file.seek(0)
    state = swapped.file.read()
    if len(state) != swapped.n_bytes:
        raise OSError("cut short")
    return state
