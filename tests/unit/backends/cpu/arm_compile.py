"""Compiles kernels through Numba for a 64-bit ARM processor, on any machine: a program of its own, run by the tests.

Run as `python -m tests.unit.backends.cpu.arm_compile FOLDER NAME…`: writes FOLDER/NAME.o and NAME.s; the function is
called `kernel`. Numba is made to believe that it runs on ARM before anything else is imported, and never asks for an
address, which would be that of code this machine cannot run.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import llvmlite.binding as llvm

if TYPE_CHECKING:
    from edgeinfer.jit.code import Kernel

TRIPLE, CPU = "aarch64-unknown-linux-gnu", "cortex-a76"


def pretend() -> None:
    """Make Numba compile for ARM in this process."""
    platform.machine = lambda: "aarch64"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: TRIPLE
    from numba.core import codegen, config

    def only_finish(library: codegen.JITCodeLibrary, name: str) -> int:
        library._ensure_finalized()
        return 1

    config.CPU_NAME, config.CPU_FEATURES = CPU, ""
    codegen.JITCodeLibrary.get_pointer_to_function = only_finish
    codegen.JITCodeLibrary._finalize_specific = lambda library: None
    codegen.JITCPUCodegen.set_env = lambda *_: None


def compile_kernel(name: str, folder: Path) -> None:
    """Write one kernel's assembly and object file."""
    from edgeinfer.backends.cpu import catalogue
    from edgeinfer.backends.cpu.layout.pages import PageLayout
    from edgeinfer.backends.cpu.layout.panels import IntegerPanel
    from edgeinfer.jit.code import Kernel
    from edgeinfer.settings import KVKind

    def find() -> Kernel:
        known = [value for value in vars(catalogue).values() if isinstance(value, Kernel)]
        known += [*catalogue.GATED.values(), *catalogue.ACT.values()]
        known += [*catalogue.CUT_GATED.values(), *catalogue.CUT_ACT.values()]
        for layout in (PageLayout(kind, 64, 64) for kind in get_args(KVKind)):
            found = catalogue.attention(layout, "neon")
            known += [found.by_tile, found.by_chunk, found.join, catalogue.store_kv(layout)]
        for kernel in known:
            if kernel.name == name:
                return kernel
        return catalogue.product(IntegerPanel.parse(name.removeprefix("product-").removesuffix("-neon")), "neon")

    write(find(), name, folder)


def write(kernel: Kernel, name: str, folder: Path) -> None:
    """Write a kernel's assembly and object file under a name."""
    from edgeinfer.jit import compiler as jit

    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=CPU, opt=3, reloc="pic")
    module = jit.compiled(kernel.load(), kernel.n_arguments, kernel.returns, "kernel", machine)
    (folder / f"{name}.s").write_text(machine.emit_assembly(module))
    (folder / f"{name}.o").write_bytes(machine.emit_object(module))


if __name__ == "__main__":
    pretend()
    from edgeinfer.jit.simd import IS_ARM

    assert IS_ARM
    for each in sys.argv[2:]:
        compile_kernel(each, Path(sys.argv[1]))
