"""Why a model does not fit although its weights may be read from disk: memory that would do, and a context that fits.

In: a plan as a function of limits and available memory, which raises DoesNotFit. Out: the error to raise. Both are
searched for by planning, as what has to stay in memory differs between dense models and mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import SPARE_PAGES, limits_for
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.scheduling.cost.memory import LEAST_CONTEXT, SMALLER_MODEL, enough
from edgeinfer.text_values import size_text

Planned = Callable[[Limits, int], object]
EXACT = 64
"""The memory that would do is too large by one part in this many at most."""


class NoRoomToStream(DoesNotFit):
    """A model that does not fit even with its weights read from disk. `remedy`: what would fit."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.remedy = remedy


def no_room(name: str, spec: ModelSpec, limits: Limits, available: int, most: int, planned: Planned) -> NoRoomToStream:
    """The error for a plan that failed with `available` bytes. `most`: bytes with which it surely succeeds."""

    def has_room(n_context: int) -> bool:
        return fits(lambda: planned(_with(limits, n_context, spec), available))

    n_context = next(filter(has_room, _shorter(limits.n_context)), 0)
    remedy = f"a context of {n_context} tokens would fit (--ctx {n_context})" if n_context else SMALLER_MODEL
    return NoRoomToStream(
        f"{name} needs {enough(_least(planned, limits, available, most))} of memory for a context of "
        f"{limits.n_context} tokens even with its weights read from disk, and {size_text(available)} are available",
        remedy,
    )


def _least(planned: Planned, limits: Limits, low: int, high: int) -> int:
    """Bytes of memory with which the plan succeeds, between one that fails and one that succeeds."""
    while high - low > high // EXACT:
        middle = (low + high) // 2
        if fits(partial(planned, limits, middle)):
            high = middle
        else:
            low = middle
    return high


def _shorter(n_context: int) -> Iterator[int]:
    """Shorter contexts, the longest first: halves and three quarters, in whole steps of the least one."""
    tried = {int(n_context * share / 2**power) for power in range(30) for share in (0.75, 0.5)}
    yield from sorted({n // LEAST_CONTEXT * LEAST_CONTEXT for n in tried if n >= LEAST_CONTEXT}, reverse=True)


def _with(limits: Limits, n_context: int, spec: ModelSpec) -> Limits:
    """The same limits with a shorter context."""
    n_sessions = max(1, (limits.n_pages - SPARE_PAGES) // pages_for(limits.n_context))
    other = limits_for(n_context, n_sessions, limits.kv, spec)
    return replace(limits, n_context=n_context, n_pages=other.n_pages, windows=other.windows)


def fits(plan: Callable[[], object]) -> bool:
    """Whether a plan does not raise DoesNotFit."""
    try:
        plan()
    except DoesNotFit:
        return False
    return True
