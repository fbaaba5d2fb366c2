"""Hidden rows of another model: the lane copies them before the tape runs."""

from __future__ import annotations

from edgeinfer.backends.cpu.lowering.needs import CpuOp

OP = CpuOp(lambda *_: [], lambda *_: [], fields=frozenset({"first"}))
