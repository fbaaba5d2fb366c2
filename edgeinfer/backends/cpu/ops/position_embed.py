"""Learned positions: the lane adds them to the embedding before the tape runs."""

from __future__ import annotations

from edgeinfer.backends.cpu.lowering.needs import CpuOp

OP = CpuOp(lambda *_: [], lambda *_: [])
