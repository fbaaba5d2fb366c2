"""Object code for this process's CPU, or for the one that NUMBA_CPU_NAME names: what LLVM makes of a kernel.

In: kernels and functions. Out: object code, and the CPU's name and features. Imports Numba only when a kernel is
compiled. Stores nothing.
"""

from __future__ import annotations

import os

import llvmlite.binding as llvm

from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.features import TILE_FEATURES, features_of, may_use_tiles


def cpu_name() -> str:
    """LLVM's name of the CPU that code is made for: this CPU, or NUMBA_CPU_NAME."""
    return os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()


def cpu_feature_flags() -> str:
    """Features of that CPU in LLVM's form; NUMBA_CPU_FEATURES overrides them, as in Numba."""
    stated = os.environ.get("NUMBA_CPU_FEATURES")
    return llvm.get_host_cpu_features().flatten() if stated is None else stated


def cpu_features() -> frozenset[str]:
    """Features that code is made for ("avx2", "avx512vnni", …), stated or implied by the CPU's name."""
    found = features_of(llvm.get_process_triple(), cpu_name(), cpu_feature_flags())
    return found if not found.issuperset(TILE_FEATURES) or may_use_tiles() else found.difference(TILE_FEATURES)


def target_machine() -> llvm.TargetMachine:
    """LLVM's target machine for this process, configured as Numba does it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=cpu_name(), features=cpu_feature_flags(), opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


def entry(name: str) -> str:
    """The symbol of a kernel's or function's code."""
    return f"edgeinfer.{name}"


def object_code(wanted: Kernel | CompiledFunction) -> bytes:
    """Compile a kernel or function in this process."""
    from edgeinfer.jit import compiler

    machine = target_machine()
    module = compiler.compiled(wanted.load(), wanted.n_arguments, wanted.returns, entry(wanted.name), machine)
    code: bytes = machine.emit_object(module)
    return code
