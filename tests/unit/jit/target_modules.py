"""What targets emit as LLVM modules of one function, without Numba: run here, or compiled for another CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target
from tests.unit.backends.cpu.arm_compile import CPU, TRIPLE
from tests.unit.backends.cpu.kernel_calls import Array

HASWELL = ("x86_64-unknown-linux-gnu", "haswell", "")
SKYLAKE = ("x86_64-unknown-linux-gnu", "skylake-avx512", "")
ALDER_LAKE = ("x86_64-unknown-linux-gnu", "alderlake", "")
ARM = (TRIPLE, CPU, "")
"""(triple, CPU, features) to compile for."""


@dataclass(frozen=True, slots=True)
class Function:
    """The module of a function of some addresses."""

    name: str
    module: ir.Module

    def assembly(self, triple: str, cpu: str, features: str) -> str:
        """What the CPU would run."""
        text: str = self.machine(triple, cpu, features).emit_assembly(self.optimised(triple, cpu, features))
        return text

    def object_code(self, triple: str, cpu: str, features: str) -> bytes:
        """An object file."""
        code: bytes = self.machine(triple, cpu, features).emit_object(self.optimised(triple, cpu, features))
        return code

    def run(self, *arrays: Array) -> None:
        """Run on this CPU."""
        here = (llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
        with llvm.create_mcjit_compiler(self.optimised(*here), self.machine(*here)) as engine:
            engine.finalize_object()
            record = np.array([array.ctypes.data for array in arrays], np.int64)
            kind = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)
            kind(engine.get_function_address("kernel"))(record.ctypes.data, 0, 0)

    def optimised(self, triple: str, cpu: str, features: str) -> llvm.ModuleRef:
        """The module after the usual passes."""
        self.module.triple = triple
        parsed = llvm.parse_assembly(str(self.module))
        parsed.verify()
        builder = llvm.create_pass_builder(
            self.machine(triple, cpu, features), llvm.create_pipeline_tuning_options(speed_level=3)
        )
        builder.getModulePassManager().run(parsed, builder)
        return parsed

    @staticmethod
    def machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
        """LLVM's code generator for a CPU."""
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)


def function(name: str, n_arguments: int, fill: Callable[..., None]) -> Function:
    """A function whose body is what `fill(builder, *addresses)` emits, called as a kernel is: addresses in a record."""
    module = ir.Module(name)
    definition = ir.Function(module, ir.FunctionType(emit.VOID, [emit.I64] * 3), "kernel")
    builder = ir.IRBuilder(definition.append_basic_block())
    record = definition.args[0]
    fill(builder, *(emit.load(builder, record, emit.I64, 8 * place) for place in range(n_arguments)))
    builder.ret_void()
    return Function(name, module)


def dot_function(target: Target, code_bits: int, n_steps: int, signed: bool = False) -> Function:
    """(weights uint8[n, 64], activations int8[n, 64], sums int32[16]): sums += the dot of n steps."""

    def fill(builder: Builder, weights: Value, activations: Value, sums: Value) -> None:
        initial = emit.load(builder, sums, emit.I32S)
        if signed:
            assert target.signed_dot is not None
            dot = target.signed_dot(builder, initial)
        else:
            dot = target.dot(builder, initial, code_bits)
        for step in range(n_steps):
            vectors = (emit.load(builder, at, emit.BYTES, 64 * step) for at in (weights, activations))
            dot.step(builder, *vectors)
        emit.store(builder, dot.finish(builder), sums)

    return function(f"dot_{code_bits}_{n_steps}_{'signed' if signed else 'unsigned'}", 3, fill)


def lookup_function(target: Target, table: Sequence[int]) -> Function:
    """(indices uint8[64], out uint8[64]): out = table[indices]."""

    def fill(builder: Builder, indices: Value, out: Value) -> None:
        emit.store(builder, target.lookup(builder, table, emit.load(builder, indices, emit.BYTES)), out)

    return function("lookup", 2, fill)


def levels_function(target: Target) -> Function:
    """(codes uint8[16], out float32[2, 16]): out = the numbers of their low halves, then of their high ones."""

    def fill(builder: Builder, codes: Value, out: Value) -> None:
        wide = builder.zext(emit.load(builder, codes, ir.VectorType(emit.I8, emit.LANES)), emit.I32S)
        for half in (0, 1):
            emit.store(builder, target.levels(builder, wide, half), out, 64 * half)

    return function("levels", 2, fill)


def gather_function(target: Target, n_bytes: int) -> Function:
    """(table of 8-byte entries, places int32[16], out of `n_bytes` each): out = the start of these entries."""

    def fill(builder: Builder, table: Value, places: Value, out: Value) -> None:
        assert target.gather is not None
        emit.store(builder, target.gather(builder, table, emit.load(builder, places, emit.I32S), n_bytes), out)

    return function(f"gather_{n_bytes}", 3, fill)


def expected_sums(
    weights: NDArray[np.uint8], activations: NDArray[np.int8], sums: NDArray[np.int32], less: int = 0
) -> NDArray[np.int32]:
    """What a dot adds: the NumPy twin."""
    products = (weights.astype(np.int32) - less) * activations
    return sums + products.reshape(-1, 16, 4).sum(axis=(0, 2), dtype=np.int32)
