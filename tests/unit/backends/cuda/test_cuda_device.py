"""What the cuda device says and does without a GPU: refusals, packed weights, nothing heavy imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DEVICES, DeviceOptions, open_device
from edgeinfer.backends.cuda.device import VRAM_VARIABLE, number_in
from edgeinfer.backends.cuda.layout import BLOCK, SUPER_BLOCKS, IntegerForm, form_of
from edgeinfer.backends.cuda.packing import packed_rows
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.models.quants import FORMATS, BlockFormat, decode_rows
from tests.unit.backends.random_blocks import ordinary_rows

BLOCK_FORMATS = [key for key, entry in FORMATS.entries().items() if isinstance(entry, BlockFormat)]


def test_the_entry_imports_no_compiler() -> None:
    code = "import sys; from edgeinfer.backends.base import kind_of; kind_of('cuda'); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("missing", ["numba_cuda", "cuda"])
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else found(name, *rest)
    )
    with pytest.raises(DeviceUnavailable, match=r"numba-cuda.*pip install 'edgeinfer\[cuda\]'"):
        DEVICES.get("cuda").open(DeviceOptions())


def test_targets_are_numbers() -> None:
    pytest.importorskip("numba_cuda")
    with pytest.raises(BadSetting, match="cuda:1"):
        open_device("cuda:first")


@pytest.mark.parametrize("text", ["12 GB", "-1", "0"])
def test_limits_are_numbers_above_zero(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VRAM_VARIABLE, text)
    with pytest.raises(BadSetting, match=VRAM_VARIABLE):
        number_in(VRAM_VARIABLE, "4000000000")


def test_a_limit_that_is_not_set_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VRAM_VARIABLE, raising=False)
    assert number_in(VRAM_VARIABLE, "1") is None


@pytest.mark.parametrize("key", BLOCK_FORMATS)
def test_packed_weights_lose_no_bit(key: str) -> None:
    """Random blocks of two super blocks, read back from their regions as the kernels read them."""
    quant = FORMATS.get(key)
    assert isinstance(quant, BlockFormat)
    random = np.random.default_rng(11)
    raw = ordinary_rows(quant, 3, 512, random)
    form = form_of(quant)
    assert isinstance(form, IntegerForm)
    regions = packed_rows(raw, quant, form)
    sizes = {name: region.size for name, region in regions.items()}
    assert sizes == form.regions(3, 512)
    found = unpacked(regions, form)
    assert np.array_equal(found, decode_rows(raw, quant), equal_nan=True)


def unpacked(regions: dict[str, NDArray[np.uint8]], form: IntegerForm) -> NDArray[np.float32]:
    """The values of packed rows of 512 columns."""
    n_rows, n_blocks = len(regions["codes"]), 512 // BLOCK
    held = regions["codes"].reshape(n_rows, n_blocks, -1)
    if form.code_bits == 8:
        codes = held.view(np.int8).astype(np.int32)
    else:
        codes = np.concatenate([held & 15, held >> 4], axis=-1).astype(np.int32) + form.low
    if form.code_bits == 6:
        pairs = regions["high"].reshape(n_rows, n_blocks, 2, 1, 4) >> (2 * np.arange(4, dtype=np.uint8))[:, None] & 3
        codes += pairs.reshape(n_rows, n_blocks, 32).astype(np.int32) << 4
    kinds = {"half": np.float16, "multiple": np.int8, "float": np.float32}
    numbers = regions["scales"].view(kinds[form.scales]).astype(np.float32)
    numbers = numbers.reshape(n_rows, n_blocks, 1 + form.has_minimum, BLOCK // form.group)
    if form.scales == "multiple":
        units = regions["units"].view(np.float16).astype(np.float32).reshape(n_rows, -1, 1 + form.has_minimum)
        numbers = numbers * np.repeat(units, SUPER_BLOCKS, axis=1)[..., None]
    grouped = codes.reshape(n_rows, n_blocks, -1, form.group).astype(np.float32) * numbers[:, :, 0, :, None]
    if form.has_minimum:
        grouped = grouped + numbers[:, :, 1, :, None]
    found: NDArray[np.float32] = grouped.reshape(n_rows, -1)
    return found
