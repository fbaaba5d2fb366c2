"""Calling the compiled packing directly, rows given as an array: what packing a model does, without a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.panels import IntegerPanel, pack_codes, panel_for
from edgeinfer.backends.cpu.layout.recipes import Recipes
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.quants import BlockFormat, QuantFormat

Bytes = NDArray[np.uint8]


def pack_rows(library: KernelLibrary, form: QuantFormat, rows: Bytes, columns: int) -> Bytes:
    """uint8[16 * n, row_bytes] as uint8[n, panel_bytes]."""
    pack = library.function(catalogue.PACK_PANELS)
    raw: Bytes = aligned(rows.shape, np.uint8)
    raw[:] = rows
    out: Bytes = aligned((len(raw) // 16, panel_for(form).panel_bytes(columns)), np.uint8)
    jobs, recipes, skip, target = [], Recipes(), 0, address(out)
    if not recipes.parts(form, columns):  # unpacked by NumPy, as `MatrixPacking` does
        panel = panel_for(form)
        assert isinstance(panel, IntegerPanel)
        assert isinstance(form, BlockFormat)
        pack_codes(panel, form.unpack(raw), out)
        return out
    rows_at = address(raw) + np.arange(len(raw)) * raw.shape[1]
    for count, recipe in recipes.parts(form, columns):
        sizes = (count, recipe.source_bytes, recipe.record_bytes)
        jobs.append((address(rows_at), skip, len(out), target, out.shape[1], *sizes, *recipe.places))
        skip, target = skip + count * recipe.source_bytes, target + count * recipe.record_bytes
    listed = np.array(jobs, records.PACKING_JOB)
    pack(address(listed), len(listed))
    return out


def random_rows(
    form: QuantFormat, n_rows: int, columns: int, seed: int = 0, drawn: Sequence[int] = range(256)
) -> Bytes:
    """Rows of bytes drawn from some."""
    size = columns // form.block_size * form.block_bytes
    return np.random.default_rng(seed).choice(np.array(drawn, np.uint8), (n_rows, size))
