"""An open model of the server, and how many may be open at a time.

In: nothing. Out: records. Knows no HTTP, and opens nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.slots import CacheSlots

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.models.store import LocalModel
    from edgeinfer.scheduling.cost.memory import MemoryNeed

WAIT_S = 300.0
"""Seconds that a request waits for room while all open models are in use."""
Identity = tuple[int, int, int]


@dataclass(slots=True)
class PooledModel:
    """An open model. `users`: number of requests that use it; `need`: the memory that was planned for it, if known.

    `keep_s`: seconds without use after which it is closed; None: never.
    """

    model: LocalModel
    llm: LLM
    identity: Identity
    keep_s: float | None = None
    need: MemoryNeed | None = None
    used_s: float = field(default_factory=time.monotonic)
    users: int = 0
    slots: CacheSlots = field(default_factory=CacheSlots)

    @property
    def name(self) -> str:
        """Its name in the API."""
        return self.model.name

    @property
    def path(self) -> Path:
        """Its file."""
        return self.model.path


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`most_models` may be open; `idle_s` without use closes one (None: never); `memory_bytes`: of all models together.

    A request waits `wait_s` for room while all models are in use. Without `loads_on_demand`, only those that ask for it
    load a model. `n_sessions`: conversations of full length that each model's KV cache holds.
    """

    most_models: int = 1
    idle_s: float | None = None
    memory_bytes: int | None = None
    wait_s: float = WAIT_S
    loads_on_demand: bool = True
    strict_names: bool = False
    n_sessions: int = 1


def identity_of(path: Path) -> Identity:
    """Identify a file, to notice when another file replaces it at the same path."""
    try:
        status = path.stat()
    except OSError as reason:
        raise APIError(503, f"{path.name} cannot be read: {reason.strerror or reason}", "model_missing") from None
    return status.st_ino, status.st_size, status.st_mtime_ns
