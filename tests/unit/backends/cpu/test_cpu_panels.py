"""Every quant format goes into its panel without losing a bit."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.panels import FloatPanel, IntegerPanel, pack_floats, pack_integers, panel_for
from edgeinfer.models.quants import FORMATS, BlockFormat
from tests.unit.backends.cpu.kernel_calls import same_bits
from tests.unit.backends.cpu.panel_reading import read_floats, read_integers

KEYS = FORMATS.keys()


@pytest.mark.parametrize("key", KEYS)
def test_formats_survive_packing(key: str) -> None:
    form = FORMATS.get(key)
    panel = panel_for(form)
    random = np.random.default_rng(0)
    n_rows, n_blocks = 32, 1 if form.block_size == 256 else 3
    columns = n_blocks * form.block_size if isinstance(form, BlockFormat) else 30
    raw = random.integers(0, 256, (n_rows, columns // form.block_size * form.block_bytes), dtype=np.uint8)
    data = aligned((2, panel.panel_bytes(columns)), np.uint8)
    if isinstance(panel, FloatPanel):
        raw[:, 1::2] &= 0x3F  # no infinities
        pack_floats(panel, raw, columns, data)
        assert same_bits(read_floats(panel, data, columns), np.ascontiguousarray(form.decode(raw)))
        return
    codes = form.unpack(raw)
    for numbers in (codes.scale, *([] if codes.minimum is None else [codes.minimum])):
        numbers[~np.isfinite(numbers)] = 0
    pack_integers(panel, codes, data)
    held = read_integers(panel, data, columns)
    assert np.array_equal(held.codes, codes.codes)
    assert np.array_equal(held.scale, codes.scale)
    assert (held.minimum is None) == (codes.minimum is None)
    assert codes.minimum is None or np.array_equal(held.minimum, codes.minimum)


@pytest.mark.parametrize("key", [key for key in KEYS if isinstance(FORMATS.get(key), BlockFormat)])
def test_padding_of_an_odd_number_of_blocks_is_zero(key: str) -> None:
    form = FORMATS.get(key)
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    raw = np.full((16, -(-32 // form.block_size) * form.block_bytes), 0x11, np.uint8)
    codes = form.unpack(raw)
    data = aligned((1, panel.panel_bytes(32)), np.uint8)
    cut = codes.minimum[:, : 32 // panel.group] if codes.minimum is not None else None
    pack_integers(panel, type(codes)(codes.codes[:, :32], codes.scale[:, : 32 // panel.group], cut), data)
    held = read_integers(panel, data, 64)
    assert not held.scale[:, panel.groups :].any()
    assert held.minimum is None or not held.minimum[:, panel.groups :].any()


@pytest.mark.parametrize("key", KEYS)
def test_panels_are_aligned_and_hold_what_they_say(key: str) -> None:
    panel = panel_for(FORMATS.get(key))
    assert panel.panel_bytes(64) % 64 == 0
    if isinstance(panel, IntegerPanel):
        assert IntegerPanel.parse(panel.key) == panel
        assert panel.codes_at % 64 == 0
        assert panel.record_bytes % 64 == 0
        assert panel.panel_bytes(65) == 2 * panel.record_bytes
