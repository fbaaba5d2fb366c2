"""The budget of one template rendering: time, size of any one value, and total size of all values created.

In: values and sizes, from the guarded operations. Out: nothing, or BadTemplate. Every value a template holds has been
weighed with all it contains, shared parts counted each time they occur, so no later operation on it (text, comparison,
hash, sort) can cost more than its weight. Independent of Jinja.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from edgeinfer.errors import BadTemplate

Value = TypeVar("Value")

# The weight of a value in addition to its text.
NODE = 8
_SIZED = (str, list, tuple, dict)
_MAX_DEPTH = 64
_MAX_CALLS = 60
_MAX_INTEGER_BITS = 4096


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits of a rendering. `seconds`: of the thread's own time, as a busy machine is no fault of a template.

    `extra_chars` is the permitted output beyond four times the input; all values created on the way may together weigh
    16 times as much. A template source longer than `source_chars` is refused.
    """

    seconds: float = 5.0
    extra_chars: int = 1_000_000
    source_chars: int = 131_072


class TemplateMeter:
    """Counts one rendering against its limits; `input_weight` is the weight of its input."""

    def __init__(
        self, limits: TemplateLimits, input_weight: int, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._limits = limits
        self.value_limit = limits.extra_chars + 4 * input_weight
        self._left = 16 * self.value_limit
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._known: dict[int, tuple[object, int, int]] = {}
        self._own: dict[int, list[object]] = {}
        self._calls = 0

    def tick(self) -> None:
        """Count one step. Raises BadTemplate after the deadline."""
        if self._clock() > self._deadline:
            raise BadTemplate(f"the chat template took longer than {self._limits.seconds:g} s and was stopped")

    def charge(self, weight: int) -> None:
        """Count `weight` of new data. Raises BadTemplate if the budget is spent or time is up."""
        self._left -= weight
        if self._left < 0:
            raise BadTemplate("the chat template made more data than it may and was stopped; is it meant for chat?")
        self.tick()

    def allow(self, weight: int) -> None:
        """Check one value of `weight` before it is created. Raises BadTemplate if that is too large for any value."""
        if weight > self.value_limit:
            raise BadTemplate(
                f"the chat template asked for a value of {weight} characters; this rendering may use {self.value_limit}"
            )
        self.tick()

    def admit(self, value: Value) -> Value:
        """Return `value` after weighing and counting all it contains: a text in full, a container by its own size."""
        self.allow(self.weigh(value))
        self.charge(NODE + (len(value) * (1 if isinstance(value, str) else NODE) if isinstance(value, _SIZED) else 0))
        return value

    def own(self, value: list[object]) -> list[object]:
        """Return a list that the template wrote itself, which it may change, after weighing and counting it."""
        self._own[id(value)] = self.admit(value)
        return value

    def owns(self, value: list[object]) -> bool:
        """Whether a template wrote this list itself."""
        return id(value) in self._own

    def note_change(self) -> None:
        """A list changes: forget what was weighed, since any value may contain it."""
        self._known.clear()

    def weigh(self, value: object) -> int:
        """Characters of text in `value` plus a constant per node, shared parts counted each time they occur."""
        return self._measure(value, 0)[0]

    def drain(self, values: Iterable[Value]) -> list[Value]:
        """Yield all of `values`, counting them one by one."""
        drained = []
        for value in values:
            self.charge(NODE)
            drained.append(value)
        return drained

    def enter(self) -> None:
        """Begin a call of template code. Raises BadTemplate if calls nest too deeply."""
        self.tick()
        self._calls += 1
        if self._calls > _MAX_CALLS:
            raise BadTemplate(f"the chat template nests more than {_MAX_CALLS} calls")

    def leave(self) -> None:
        """End a call of template code."""
        self._calls -= 1

    def _measure(self, value: object, level: int) -> tuple[int, int]:
        """(weight, depth) of `value`."""
        if isinstance(value, str):
            return NODE + len(value), 0
        if isinstance(value, int):
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise BadTemplate(f"the chat template made an integer of more than {_MAX_INTEGER_BITS} bits")
            return NODE, 0
        if isinstance(value, list | tuple | dict):
            known = self._known.get(id(value))
            return (known[1], known[2]) if known is not None else self._measure_container(value, level)
        return NODE, 0

    def _measure_container(
        self, value: list[object] | tuple[object, ...] | dict[object, object], level: int
    ) -> tuple[int, int]:
        weight, depth = NODE, 0
        for child in _children(value):
            child_weight, child_depth = self._measure(child, level + 1)
            weight += child_weight
            depth = max(depth, child_depth + 1)
            if weight > self.value_limit:
                raise BadTemplate(f"the chat template made a value larger than {self.value_limit} characters")
        if depth > _MAX_DEPTH or level > _MAX_DEPTH:
            raise BadTemplate(f"the chat template nests values more than {_MAX_DEPTH} deep")
        # Holding the value prevents its id from being reused; a change is noted by `note_change`.
        self._known[id(value)] = (value, weight, depth)
        return weight, depth


def _children(value: list[object] | tuple[object, ...] | dict[object, object]) -> Iterator[object]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield item
    else:
        yield from value
