"""Records about an open model: what was loaded and where it runs, its queue, its running requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.engine.scheduler.stats import RequestProgress
from edgeinfer.scheduling.allotment import Priority
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.settings import KVKind, Mode


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded and where it runs. `notices` are messages for the user about it."""

    name: str
    path: Path
    fingerprint: str
    architecture: str
    device: str
    n_context: int
    n_context_trained: int
    kv: KVKind
    n_threads: int  # as requested by number or by cores, else one per usable core
    mode: Mode
    load_s: float
    resident_bytes: int
    notices: tuple[str, ...]
    approx: float | None = None
    """Activations below this value count as zero, so answers differ from those of the exact model; None: exact."""
    cores: tuple[int, ...] = ()
    """The cores given to devices other than the cpu alone."""
    need: MemoryNeed | None = None
    """Memory the model takes with a full context, by part."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of a model's requests: running, waiting, and finished with a prefix to share; and totals so far.

    n_preempted: how often keys and values of a request were swapped out; n_recomputed: how often they were dropped, so
    that the text is read again. n_pages: pages of the cache, of which n_free_pages are free.
    """

    n_active: int
    n_waiting: int
    n_kept: int
    n_preempted: int
    n_recomputed: int
    n_passes: int
    n_evaluated: int
    n_generated: int
    n_pages: int
    n_free_pages: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return renamed(self, name, {"n_parked": "n_preempted", "n_forgotten": "n_recomputed"})


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A running or waiting request."""

    is_active: bool
    priority: Priority
    live: RequestProgress


def renamed(record: object, name: str, names: Mapping[str, str]) -> object:
    """Look up an attribute by its name in version 0.1, with a warning. Raises AttributeError for any other name."""
    if name not in names:
        raise AttributeError(f"{type(record).__name__!r} object has no attribute {name!r}")
    import warnings

    owner = type(record).__name__
    warnings.warn(f"{owner}.{name} is called {owner}.{names[name]} now", DeprecationWarning, stacklevel=3)
    return attrgetter(names[name])(record)
