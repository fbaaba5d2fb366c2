"""Every quant format of the registry against the gguf package: sizes, claims, and values bit for bit.

Formats that the package cannot read yet are judged by llama.cpp's own library.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.models.quants import FORMATS, BlockFormat, FloatFormat, QuantFormat, dequantise, format_of

KEYS = FORMATS.keys()
BLOCK_KEYS = [key for key in KEYS if isinstance(FORMATS.get(key), BlockFormat)]

# Draws from few byte values give what random bytes hardly ever do: zero, subnormal, infinite and extreme scales,
# lowest and highest codes.
BYTE_SETS = {
    "random": tuple(range(256)),
    "zeros": (0,),
    "ones": (255,),
    "tiny": (0, 1),
    "subnormal": (0, 1, 2, 128),
    "negative zero": (0, 128),
    "large": (0x7B, 0xFF),
    "infinite": (0x00, 0x7C, 0xFC, 0x80),
    "unit": (0x00, 0x3C, 0xFF),
}


def kind_of(form: QuantFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType(form.ggml_type)


def is_in_package(form: QuantFormat) -> bool:
    """Whether the gguf package can read the format."""
    try:
        gguf.quants.dequantize(np.zeros((1, form.block_bytes), np.uint8), kind_of(form))
    except (NotImplementedError, ValueError):
        return False
    return True


def can_be_quantised(key: str) -> bool:
    """Whether the gguf package can quantise to the format."""
    try:
        gguf.quants.quantize(np.zeros((1, 256), np.float32), kind_of(FORMATS.get(key)))
    except (NotImplementedError, ValueError):
        return False
    return True


def draw(form: QuantFormat, rows: int, blocks: int, name: str = "random", seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.choice(np.array(BYTE_SETS[name], np.uint8), (rows, blocks * form.block_bytes))


def ggml_values(raw: NDArray[np.uint8], form: QuantFormat) -> NDArray[np.float32]:
    """What llama.cpp's library makes of rows of blocks."""
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        pytest.skip(f"the gguf package cannot read {form.name}, and llama-cpp-python is not installed")
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    paths = [path for path in (Path(package.origin).parent / "lib" / name for name in names) if path.exists()]
    read = getattr(ctypes.CDLL(str(paths[0])), f"dequantize_row_{form.name.lower()}", None)
    if read is None:
        pytest.skip(f"neither the gguf package nor this llama-cpp-python can read {form.name}")
    raw = np.ascontiguousarray(raw)
    values = np.empty((len(raw), raw.shape[1] // form.block_bytes * form.block_size), np.float32)
    read.restype, read.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    read(raw.ctypes.data, values.ctypes.data, values.size)
    return values


def scaled_values(raw: NDArray[np.uint8], form: QuantFormat) -> NDArray[np.float32]:
    """The values of NVFP4 blocks that begin with one more scale: judged by those without it."""
    blocks = raw.reshape(len(raw), -1, form.block_bytes)
    scales, codes = np.split(blocks[..., 4:], [form.block_size // 16], axis=-1)
    parts = [part.reshape(*blocks.shape[:2], form.block_size // 64, -1) for part in (scales, codes)]
    plain = np.concatenate(parts, axis=-1).reshape(len(raw), -1)
    factor = np.ascontiguousarray(blocks[..., :4]).view("<f4")
    doubled, is_scale = nvfp4_codes(plain), np.arange(plain.shape[1]) % 36 < 4
    ones = np.where(is_scale, plain, 0x22).astype(np.uint8)  # codes that mean 1
    with np.errstate(all="ignore"):
        unit = reference(ones, FORMATS.get("nvfp4")) / 2
        each = (unit.reshape(*blocks.shape[:2], -1) * factor).reshape(len(raw), -1)
        values: NDArray[np.float32] = each * doubled
    return values


def nvfp4_codes(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Twice the e2m1 values of NVFP4 rows: those of blocks whose scales are all one."""
    ones = np.where(np.arange(raw.shape[1]) % 36 < 4, 0x38, raw).astype(np.uint8)
    return 2 * reference(ones, FORMATS.get("nvfp4"))


def reference(raw: NDArray[np.uint8], form: QuantFormat) -> NDArray[np.float32]:
    if form.ggml_type < 0:
        return scaled_values(raw, form)
    if not is_in_package(form):
        return ggml_values(raw, form)
    with np.errstate(all="ignore"):
        values: NDArray[np.float32] = gguf.quants.dequantize(raw, kind_of(form))
    return values


def assert_same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit; a nan need only be a nan, as its bits depend on the processor."""
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("key", KEYS)
def test_name_type_and_sizes_are_those_of_ggml(key: str) -> None:
    form = FORMATS.get(key)
    assert isinstance(form, BlockFormat | FloatFormat)
    assert form.name.lower() == key
    assert format_of(form.ggml_type) is form
    if form.ggml_type not in set(gguf.GGMLQuantizationType):
        pytest.skip(f"the gguf package does not know {form.name}")
    assert kind_of(form).name == form.name
    assert gguf.GGML_QUANT_SIZES[kind_of(form)] == (form.block_size, form.block_bytes)


@pytest.mark.parametrize("name", BYTE_SETS)
@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("key", KEYS)
def test_values_equal_the_gguf_package(key: str, rows: int, name: str) -> None:
    form = FORMATS.get(key)
    for blocks in (1, 2, 9):
        raw = draw(form, rows, blocks, name, seed=rows * 10 + blocks)
        raw.setflags(write=False)
        with np.errstate(all="warn", under="ignore"):
            values = dequantise(raw, (rows, blocks * form.block_size), form.ggml_type)
        assert_same_bits(values, reference(raw, form))


@pytest.mark.parametrize("key", [key for key in KEYS if can_be_quantised(key)])
def test_values_of_quantised_weights_equal_the_gguf_package(key: str) -> None:
    form = FORMATS.get(key)
    weights = (np.random.default_rng(3).standard_normal((5, 1024)) * 0.02).astype(np.float32)
    raw = gguf.quants.quantize(weights, kind_of(form)).view(np.uint8)
    values = dequantise(raw, weights.shape, form.ggml_type)
    assert_same_bits(values, reference(raw, form))
    is_ternary = isinstance(form, BlockFormat) and form.name.startswith("TQ")
    assert np.abs(values - weights).max() < (0.51 * np.abs(weights).max() if is_ternary else 0.02)


@pytest.mark.parametrize("shape", [(6, 2), (2, 3, 2), (12,), (0, 2), (1, 1, 1)])
@pytest.mark.parametrize("key", KEYS)
def test_shapes(key: str, shape: tuple[int, ...]) -> None:
    form = FORMATS.get(key)
    raw = draw(form, int(np.prod(shape[:-1])), shape[-1])
    full = (*shape[:-1], shape[-1] * form.block_size)
    values = dequantise(raw.reshape(-1), full, form.ggml_type)
    assert values.shape == full
    assert values.flags.writeable
    if raw.size:
        assert_same_bits(values.reshape(raw.shape[0], -1), reference(raw, form))


@pytest.mark.parametrize("key", BLOCK_KEYS)
def test_codes_keep_their_claims(key: str) -> None:
    form = FORMATS.get(key)
    assert isinstance(form, BlockFormat)
    rows, blocks = 17, 32
    raw = draw(form, rows, blocks)
    unpacked = form.unpack(raw)
    columns = blocks * form.block_size
    assert form.group in (16, 32)
    assert (unpacked.codes.dtype, unpacked.codes.shape) == (np.int8, (rows, columns))
    assert (int(unpacked.codes.min()), int(unpacked.codes.max())) == form.code_range
    assert (unpacked.minimum is not None) == form.has_minimum
    parts = [unpacked.scale] if unpacked.minimum is None else [unpacked.scale, unpacked.minimum]
    for part in parts:
        assert (part.dtype, part.shape) == (np.float32, (rows, columns // form.group))
    finite = np.concatenate([part[np.isfinite(part)] for part in parts])
    with np.errstate(over="ignore"):
        assert form.f16_scales == bool(np.all(finite.astype(np.float16).astype(np.float32) == finite))


@pytest.mark.parametrize("key", BLOCK_KEYS)
def test_values_are_codes_times_scale_plus_minimum(key: str) -> None:
    form = FORMATS.get(key)
    assert isinstance(form, BlockFormat)
    raw = draw(form, 5, 3)
    unpacked = form.unpack(raw)
    with np.errstate(all="ignore"):
        values = np.repeat(unpacked.scale, form.group, axis=1) * unpacked.codes.astype(np.float32)
        if unpacked.minimum is not None:
            values += np.repeat(unpacked.minimum, form.group, axis=1)
    assert_same_bits(values, reference(raw, form))


@pytest.mark.parametrize("key", KEYS)
def test_rows_may_be_strided_views(key: str) -> None:
    form = FORMATS.get(key)
    wide = draw(form, 8, 6)
    before = wide.copy()
    view = wide[1::3, form.block_bytes : 4 * form.block_bytes]
    values = dequantise(view, (view.shape[0], 3 * form.block_size), form.ggml_type)
    assert_same_bits(values, reference(view.copy(), form))
    if isinstance(form, BlockFormat):
        assert np.array_equal(form.unpack(view).codes, form.unpack(view.copy()).codes)
    else:
        assert_same_bits(form.decode(view), values)
    assert np.array_equal(wide, before)
