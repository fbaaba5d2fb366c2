"""How the cpu runs an op: the record that each file in `ops` provides.

In: an op of a model. Out: the kernels it needs, known before any memory is allocated, and its calls. Knows no op by
name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.graph.op import Op
from edgeinfer.jit.code import Kernel
from edgeinfer.settings import KVKind

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


@dataclass(frozen=True, slots=True)
class KernelTarget:
    """What a kernel is compiled for: the kind of KV pages, and the instruction set."""

    kv: KVKind
    isa_name: str


@dataclass(frozen=True, slots=True)
class CpuOp:
    """One op. `kernels`: given the choices, the op's place in the model and the op; `calls`: its calls on the tape.

    `advances`: the calls that advance a state by tokens of the last pass, for an op that keeps one.
    """

    kernels: Callable[[KernelChoice, int, Any, KernelTarget], list[Kernel]]
    calls: Callable[[CpuLowering, Any], list[Call]]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None
    advances: Callable[[CpuLowering, Any], list[Call]] | None = None


DEVICE_OPS: DeviceOps[CpuOp] = DeviceOps("edgeinfer.backends.cpu.ops", "cpu")
