"""What panels hold may not change unnoticed: bundle files of earlier versions would be read as something else."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.header import LAYOUT_VERSION
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.quants import FORMATS
from tests.unit.backends.cpu.packing_calls import pack_rows

COLUMNS = 512
PANELS = {
    "bf16": "095dc5986430f1bd",
    "f16": "095dc5986430f1bd",
    "f32": "249e1355285d286d",
    "iq4_nl": "c0f7a9fdc25ab658",
    "iq4_xs": "e0eff7fbf4caf3e8",
    "mxfp4": "73609e399a902267",
    "q2_k": "e927b34a6189a879",
    "q3_k": "acb39304e8577c67",
    "q4_0": "c0f7a9fdc25ab658",
    "q4_1": "3f5cad9529ef4dd6",
    "q4_k": "21080282346dcfad",
    "q5_0": "183b262573a37539",
    "q5_1": "5b3e9798cd36c318",
    "q5_k": "e3853563164e324a",
    "q6_k": "d51b1d3f42048713",
    "q8_0": "1331966ad7dd1063",
}
"""Of layout version 2: digests of 32 packed rows."""


def packed_digest(library: KernelLibrary, name: str) -> str:
    """A digest of the panels of rows whose bytes are all different from their neighbours."""
    form = FORMATS.get(name)
    row_bytes = COLUMNS // form.block_size * form.block_bytes
    rows = (np.arange(32 * row_bytes, dtype=np.uint64) * 2654435761 >> 11 & 255).astype(np.uint8)
    panels = pack_rows(library, form, rows.reshape(32, row_bytes), COLUMNS)
    return hashlib.blake2b(panels.tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", PANELS)
def test_panels_of_this_layout_version_stay_as_they_are(name: str, library: KernelLibrary) -> None:
    assert LAYOUT_VERSION == 2
    assert packed_digest(library, name) == PANELS[name], (
        "packing gives other bytes than bundle files of this layout version hold: raise LAYOUT_VERSION, and record the "
        "new digests here"
    )
