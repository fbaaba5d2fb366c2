"""Rows of a further table: the lane fills them before the tape runs, straight from the file."""

from __future__ import annotations

from edgeinfer.backends.cpu.lowering.needs import CpuOp

OP = CpuOp(lambda *_: [], lambda *_: [], fields=frozenset({"scale"}))
