"""The kernels of this folder by name; see `catalogue` of the device."""

from __future__ import annotations

from edgeinfer.backends.cpu.catalogue import TILED
from edgeinfer.backends.cpu.layout.panels import IntegerPanel
from edgeinfer.backends.cpu.neurons.kernels import records
from edgeinfer.backends.cpu.neurons.kernels.layout import ColumnForm
from edgeinfer.jit.code import CodeSource, CompiledFunction, Kernel

KERNELS = "edgeinfer.backends.cpu.neurons.kernels"

MARK_ACTIVE = Kernel("mark_active", CodeSource(KERNELS, "active", "mark_active"), records.ACTIVE)
LIST_ACTIVE = Kernel("list_active", CodeSource(KERNELS, "active", "list_active"), records.ACTIVE)
READ_RECORDS = CompiledFunction("read_records", CodeSource(KERNELS, "page_reads", "read_records"), 12)


def chosen_product(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The product of chosen rows of an integer panel."""
    isa_name = TILED.get(isa_name, isa_name)
    source = CodeSource(KERNELS, "chosen_rows", "chosen_product", (panel.key, isa_name))
    return Kernel(f"chosen-{panel.key}-{isa_name}", source, records.CHOSEN)


def column_product(form: ColumnForm, isa_name: str) -> Kernel:
    """The product of columns; that of floats is the same on all instruction sets."""
    if not form.has_scales:
        source = CodeSource(KERNELS, "column_floats", "column_product", (form.key,))
        return Kernel(f"columns-{form.key}", source, records.COLUMN_PRODUCT)
    isa_name = TILED.get(isa_name, isa_name)
    source = CodeSource(KERNELS, "columns", "column_product", (form.key, isa_name))
    return Kernel(f"columns-{form.key}-{isa_name}", source, records.COLUMN_PRODUCT)
