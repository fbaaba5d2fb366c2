"""Compiles kernels of active neurons for a 64-bit ARM processor, as `arm_compile` does others: FOLDER NAME…"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.unit.backends.cpu.arm_compile import pretend, write


def compile_kernels(folder: Path, names: list[str]) -> None:
    """Write the assembly and object file of kernels."""
    from edgeinfer.backends.cpu.layout.panels import IntegerPanel
    from edgeinfer.backends.cpu.neurons import catalogue
    from edgeinfer.backends.cpu.neurons.kernels.layout import ColumnForm

    forms = [ColumnForm.parse(key) for key in ("u4", "u4-min", "i8", "i8-min", "f16")]
    known = [catalogue.MARK_ACTIVE, catalogue.LIST_ACTIVE]
    known += [catalogue.column_product(form, "neon") for form in forms]
    known.append(catalogue.chosen_product(IntegerPanel.parse("i4-32-f16"), "neon"))
    kernels = {kernel.name: kernel for kernel in known}
    for name in names:
        write(kernels[name], name, folder)


if __name__ == "__main__":
    pretend()
    compile_kernels(Path(sys.argv[1]), sys.argv[2:])
