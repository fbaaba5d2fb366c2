"""Modules in the cache: what reads them, how long they stay, and how they get to their places in prompts.

In: sequences whose prompts have modules. Out: other sequences, which read modules that are not in memory, and prompts
with the keys and values of modules at their places. What was read of a module is the text of an ordinary sequence, so
it is kept in memory until that is needed, found on disk by other processes, and read again if it is nowhere. Needs the
engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgeinfer.engine.requests.module_prompts import Module
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.errors import DoesNotFit
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import Priority
from edgeinfer.steps import Progress, no_progress

MOST_READ = 64
"""Most modules whose memory is kept track of; more than that are read again when they are needed."""
Scales = tuple[float, ...]


@dataclass(slots=True)
class ReadModule:
    """A module as it was read, or is being read by a sequence; and the sequences that wait to place it."""

    cached: CachedSequence
    source: tuple[int, ...]
    scales: Scales
    reading: ScheduledSequence | None = None
    is_asked: bool = False
    """Whether somebody asked for it to be read, whatever prompt has it."""
    users: set[ScheduledSequence] = field(default_factory=set)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in memory."""
        return self.cached.n_cached == len(self.source)

    def set_user(self, user: ScheduledSequence, *, is_one: bool) -> None:
        """Note whether a sequence waits to place it: its memory is taken by nobody until then."""
        (self.users.add if is_one else self.users.discard)(user)
        self.cached.is_held = bool(self.users)


class ModulePlaces:
    """The modules of one model in its cache."""

    def __init__(self, pool: Pool, tokenizer: Tokenizer, make_room: Callable[[], bool]) -> None:
        """`make_room`: frees memory of what is not running; returns whether there was any."""
        self._pool, self._tokenizer, self._make_room = pool, tokenizer, make_room
        self._read: dict[tuple[str, Scales], ReadModule] = {}

    def reading(self, module: Module, scales: Scales, progress: Progress) -> ScheduledSequence | None:
        """The sequence that reads a module, to be entered unless it has been; None if the module is in memory.

        Raises the error of one that failed, once.
        """
        found = self._found(module, scales)
        reading = self._reading(found, "interactive", progress)
        found.is_asked = reading is not None
        return reading

    def forget(self, module: Module) -> None:
        """Free the memory of a module that no sequence waits to place."""
        for key in [key for key in self._read if key[0] == module.key]:
            self._drop(key)

    def waits(self, sequence: ScheduledSequence, n_cached: int, enter: Callable[[ScheduledSequence], None]) -> bool:
        """Whether modules have to be read before a sequence can start, or go on, after `n_cached` tokens.

        They are, by sequences that it gives to `enter`. Raises what kept one from being read.
        """
        request, waits = sequence.request, False
        if request.modules is None:
            return False
        for start, module in request.modules.places:
            if start + len(module.tokens) > n_cached:
                found = self._found(module, request.scales)
                found.set_user(sequence, is_one=True)
                reading = self._reading(found, sequence.priority)
                if reading is not None:
                    waits = True
                    enter(reading)
        return waits

    def place(self, sequence: ScheduledSequence, most_tokens: int) -> int:
        """Put the modules that come next in a sequence's prompt to their places, without reading them.

        Returns how many of `most_tokens` can be read until the next module. Raises DoesNotFit.
        """
        cached, modules = sequence.cached, sequence.request.modules
        if modules is None or cached.n_cached >= modules.stop:
            return most_tokens
        for number, (start, module) in enumerate(modules.places):
            if cached.n_cached < start:
                return min(most_tokens, start - cached.n_cached)
            n_placed = cached.n_cached - start
            if n_placed < len(module.tokens):
                found = self._found(module, cached.scales)
                self._put(found, cached, module, n_placed)
                sequence.n_reused = min(sequence.n_reused + len(module.tokens) - n_placed, cached.n_cached)
                if all(later.key != module.key for _, later in modules.places[number + 1 :]):
                    found.set_user(sequence, is_one=False)  # others may need its memory
        self.release(sequence)
        return most_tokens

    def release(self, sequence: ScheduledSequence) -> list[ScheduledSequence]:
        """Note that a sequence needs no modules any more; returns those that read modules for nobody now."""
        if sequence.request.modules is None:
            return []
        used = [found for found in self._read.values() if sequence in found.users]
        for found in used:
            found.set_user(sequence, is_one=False)
        left = [found.reading for found in used if not found.users and not found.is_asked]
        return [reading for reading in left if reading is not None and not reading.is_over]

    def close(self) -> None:
        """Free the memory of all modules."""
        for found in self._read.values():
            found.cached.close()
        self._read.clear()

    def _found(self, module: Module, scales: Scales) -> ReadModule:
        """A module with these scales of LoRA adapters, as the most recently used one."""
        key = module.key, scales
        found = self._read.pop(key, None) or ReadModule(self._pool.reserve(), module.source, scales)
        for other in list(self._read)[: max(0, len(self._read) + 1 - MOST_READ)]:
            self._drop(other)
        self._read[key] = found
        return found

    def _reading(
        self, found: ReadModule, priority: Priority, progress: Progress = no_progress
    ) -> ScheduledSequence | None:
        if found.reading is not None and found.reading.is_over:
            error, found.reading, found.is_asked = found.reading.error, None, False
            if error is not None:
                raise error
        if found.is_whole:
            return None
        if found.reading is None:
            request = Request(found.source, max_tokens=0, scales=found.scales, progress=progress)
            own = found.cached, self._tokenizer, request
            found.reading = ScheduledSequence(*own, priority=priority, counts_energy=False)
        return found.reading

    def _put(self, found: ReadModule, cached: CachedSequence, module: Module, n_placed: int) -> None:
        """Let a sequence go on with the rest of a module, of which it has `n_placed` tokens."""
        shifted = self._pool.executor.capabilities.shifted
        if shifted is None or not found.is_whole:
            raise DoesNotFit(f"the memory of the module {module.name!r} was needed for others; ask again")
        own = cached.settle(), found.cached.sequence, len(module.prefix) + n_placed, len(module.tokens) - n_placed
        while True:
            try:
                is_whole = shifted.append(*own, temperature=module.temperature)
                break
            except DoesNotFit:
                if not self._make_room():
                    raise
        if not is_whole:
            found.cached.forget()  # so that it is read again
            raise DoesNotFit(f"layers with a window have lost what the module {module.name!r} needs; ask again")
        cached.count(module.names[n_placed:])

    def _drop(self, key: tuple[str, Scales]) -> None:
        """Free a module's memory, unless somebody needs it."""
        found = self._read[key]
        if not found.users and (found.reading is None or found.reading.is_over):
            del self._read[key]
            found.cached.close()
