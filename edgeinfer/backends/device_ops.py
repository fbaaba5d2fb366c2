"""How a device runs ops: a folder `ops` with one file per supported op, named as in `graph/ops`.

In: the ops of a model. Out: the declarations in the device's files. A model is refused, naming the op, before anything
is loaded, if an op has no file, if an optional field is set that the op's file does not list, or if the file gives a
reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.op import Op


class DeviceOp(Protocol):
    """What every device declares about an op it runs.

    fields   the optional record fields it supports; a model that sets another one is refused
    why_not  why an op of this kind cannot be run, or None
    """

    @property
    def fields(self) -> frozenset[str]: ...

    @property
    def why_not(self) -> Callable[[Op], str | None] | None: ...


Entry = TypeVar("Entry", bound=DeviceOp)
NO_FILE = "it has no such op"
ASKED = ("rows", "sections", "threshold", "block_budget")
"""Fields set on request when a model is loaded (`rows`, `approx`); programs that run whole models support none."""


class DeviceOps(Generic[Entry]):
    """The ops of one device: the constant OP of each module in `package`, imported on first use."""

    def __init__(self, package: str, device: str) -> None:
        self._package, self._device = package, device
        self._entries: dict[str, Entry | None] = {}

    def of(self, op: Op) -> Entry:
        """How the device runs the op. Raises UnsupportedModel if it does not."""
        entry = self._entry(op.kind)
        unread = None if entry is None else _unread_field(op, entry)
        reason = NO_FILE if entry is None else _why_not(op, entry, unread)
        if entry is None or reason is not None:
            raise self._refusal(op.kind, reason, is_asked=unread in ASKED)
        return entry

    def check(self, ops: Iterable[Op]) -> None:
        """Raises UnsupportedModel for the first op that the device does not run."""
        for op in ops:
            self.of(op)

    def check_kinds(self, ops: Iterable[Op]) -> None:
        """The same check for missing op files only; it works even if the device's dependencies are not installed."""
        for kind in dict.fromkeys(op.kind for op in ops):
            if importlib.util.find_spec(f"{self._package}.{kind}") is None:
                raise self._refusal(kind, NO_FILE)

    def _refusal(self, kind: str, reason: str | None, *, is_asked: bool = False) -> UnsupportedModel:
        also = "" if is_asked else ", and llamacpp"
        way = f"; --device cpu runs this model{also}"
        if self._device == "cpu":
            way = "" if is_asked else "; --device llamacpp may run this model"
        return UnsupportedModel(f"{self._device} cannot run the op {kind}: {reason}{way}")

    def _entry(self, kind: str) -> Entry | None:
        if kind not in self._entries:
            name = f"{self._package}.{kind}"
            is_there = importlib.util.find_spec(name) is not None
            self._entries[kind] = importlib.import_module(name).OP if is_there else None
        return self._entries[kind]


def _unread_field(op: Op, entry: DeviceOp) -> str | None:
    """An optional field that is set but not supported by the device, or None."""
    assert dataclasses.is_dataclass(op)
    for field in dataclasses.fields(op):
        is_optional = field.default is not dataclasses.MISSING
        if is_optional and field.name not in entry.fields and getattr(op, field.name) != field.default:
            return field.name
    return None


def _why_not(op: Op, entry: DeviceOp, unread: str | None) -> str | None:
    """Why a device cannot run this op although it has a file for its kind."""
    if unread is not None:
        return f"it does not know the field {unread}"
    return None if entry.why_not is None else entry.why_not(op)
