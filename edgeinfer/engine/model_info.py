"""What is told of a loaded model: where it runs, what it has to do. Records only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.engine.scheduler.live import RequestProgress
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.scheduling.serving.priority import Priority
from edgeinfer.settings import KVKind, Mode


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded and where it runs. `notices` is what the user should know about it."""

    name: str
    path: Path
    fingerprint: str
    architecture: str
    device: str
    n_context: int
    n_context_trained: int
    kv: KVKind
    n_threads: int  # as asked for, by number or by cores, else one per usable core
    mode: Mode
    load_s: float
    resident_bytes: int
    notices: tuple[str, ...]
    approx: float | None = None
    """Below which activations count as zero: answers are not those of the model itself."""
    cores: tuple[int, ...] = ()
    """What devices other than the cpu alone were given."""
    need: MemoryNeed | None = None
    """Memory that it takes, by its parts, with a full context."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a model has to do: running requests, waiting, and over but kept for others; and done so far.

    n_parked, n_forgotten: how often an answer's keys and values were put away, or lost and read again. n_pages of the
    cache, of which n_free_pages hold nothing.
    """

    n_active: int
    n_waiting: int
    n_kept: int
    n_parked: int
    n_forgotten: int
    n_passes: int
    n_evaluated: int
    n_generated: int
    n_pages: int
    n_free_pages: int


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """An answer that is not over."""

    is_active: bool
    priority: Priority
    live: RequestProgress
