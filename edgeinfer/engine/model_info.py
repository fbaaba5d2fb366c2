"""What an open model is: a record of what was loaded and where it runs, and how its former names are looked up.

In: plain values. Out: a frozen `ModelInfo`. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.foreign_names import NO_NAMES, Names, no_attribute
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.settings import KVKind, Mode

FORMER: Mapping[str, str] = MappingProxyType(
    {
        "facts": "info",
        "answers": "telemetry.requests",
        "n_entered": "telemetry.n_requests",
        "load": "telemetry.queue",
        "reading": "telemetry.weight_reads",
        "tallies": "telemetry.passes_by_schedule",
    }
    | {
        name: f"telemetry.{name}"
        for name in (
            *("device", "batch_invariant", "policy", "n_workers", "affinity", "limits", "page_tokens", "n_free_pages"),
            *("resident_bytes", "streamed", "stage_bytes", "shared", "last_step", "time_stages", "work"),
        )
    }
)
"""Attribute names of models of version 0.1 and their replacements; they will be removed in 0.4."""


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
    approximation: Approximation = EXACT
    """What is left out, so that answers differ from those of the exact model."""
    cores: tuple[int, ...] = ()
    """The cores given to devices other than the cpu alone."""
    need: MemoryNeed | None = None
    """Memory the model takes with a full context, by part."""
    keeps_prefixes: bool = False
    """Whether what is read of texts is kept on disk for later."""
    reads_images: bool = False
    """Whether messages may have images."""
    reads_sound: bool = False
    """Whether messages may have sound."""

    @property
    def approx(self) -> float | None:
        """Activations below this value count as zero; None: all count."""
        return self.approximation.threshold


def renamed(record: object, name: str, names: Mapping[str, str], foreign: Names = NO_NAMES) -> object:
    """Look up an attribute by its name in version 0.1, with a warning. Raises AttributeError for any other name.

    `foreign`: what other libraries call attributes, and what the error then says.
    """
    if name not in names:
        raise no_attribute(record, name, foreign)
    import warnings

    owner = type(record).__name__
    said = f"{owner}.{name} is called {owner}.{names[name]} now; the former name works until version 0.4"
    warnings.warn(said, DeprecationWarning, stacklevel=3)
    return attrgetter(names[name])(record)
