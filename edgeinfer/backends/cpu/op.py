"""How the cpu runs an op, as the files of `ops` say it.

In: an op of a model. Out: the kernels it needs, known before any memory is there, and its calls. Knows no op by name.
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
    """What kernels are for: the kind of KV pages, and the instruction set."""

    kv: KVKind
    isa_name: str


@dataclass(frozen=True, slots=True)
class CpuOp:
    """One op. `kernels`: given the choices, the op and its place among the model's; `calls`: those of the tape.

    `advances`: the calls that let a state go on by tokens of the last pass, of an op that keeps one.
    """

    kernels: Callable[[KernelChoice, int, Any, KernelTarget], list[Kernel]]
    calls: Callable[[CpuLowering, Any], list[Call]]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None
    advances: Callable[[CpuLowering, Any], list[Call]] | None = None


DEVICE_OPS: DeviceOps[CpuOp] = DeviceOps("edgeinfer.backends.cpu.ops", "cpu")
