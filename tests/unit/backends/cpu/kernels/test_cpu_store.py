"""Writing, copying and moving the slots of KV pages, float16 and rounded, against the reference device's rounding."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import meanings
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, read_pages, slot_copying, write_pages
from edgeinfer.backends.cpu.layout.step_records import STEP
from edgeinfer.backends.meanings import FORMS, RoundedForm
from edgeinfer.graph.step import PAGE
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, call, same_bits

Floats = NDArray[np.float32]
N_PAGES = 20
"""More than one bank."""
SLOTS = np.array([0, 1, 63, 64, 130, 1000, 100], np.int32)
FILLED = 7


@pytest.fixture(params=get_args(KVKind))
def kind(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def stored(library: KernelLibrary, kind: KVKind, keys: Floats, values: Floats, workers: int = 1) -> KVPool:
    """A pool that holds keys and values [len(SLOTS), kv_heads, width] in SLOTS, and FILLED bytes elsewhere."""
    kv_heads, widths = keys.shape[1], (keys.shape[2], values.shape[2])
    pool = KVPool(PageLayout(kind, *widths), N_PAGES, kv_heads)
    pool.keys[:], pool.values[:] = FILLED, FILLED
    rows = []
    for given, width in zip((keys, values), widths, strict=True):
        row = aligned((len(SLOTS) + 1, kv_heads, padded(width)), np.float32)
        row[:-1, :, :width] = given
        row[-1] = UNTOUCHED
        rows.append(row)
    step = np.zeros(1, STEP)
    step["n_tokens"], step["slots"] = len(SLOTS), SLOTS.ctypes.data
    call(
        library,
        catalogue.store_kv(pool.layout),
        workers,
        key=rows[0],
        key_stride=rows[0].strides[0],
        key_head_stride=rows[0].strides[1],
        value=rows[1],
        value_stride=rows[1].strides[0],
        value_head_stride=rows[1].strides[1],
        kv_heads=kv_heads,
        key_width=widths[0],
        value_width=widths[1],
        keys=pool.keys,
        values=pool.values,
        bank_pages=pool.bank_pages,
        bank_bytes=pool.bank_bytes,
        places=pool.places,
        key_bytes=pool.layout.key_bytes,
        value_bytes=pool.layout.value_bytes,
        step=step,
    )
    return pool


def held(pool: KVPool, slots: NDArray[np.int32]) -> list[Floats]:
    """What keys and values of slots stand for, rotated if they are rounded, float32[len(slots), G, padded width]."""
    parts = [part[pool.place(slots)] for part in pool.parts()]
    forms = FORMS[pool.layout.kind]
    if forms is None:
        return [part.astype(np.float32) for part in parts]
    found = []
    for form, codes, scales, offset in zip(forms, parts[::2], parts[1::2], (128, 0), strict=True):
        start = codes.shape[:2]
        if form == "q8":
            numbers = codes.astype(np.float32).reshape(*start, -1, 32) - np.float32(offset)
        else:
            bytes_ = codes.reshape(*start, -1, 16)
            numbers = np.stack([bytes_ & 15, bytes_ >> 4], axis=3).reshape(*start, -1, 16) - np.float32(7.5)
        found.append((numbers * scales.astype(np.float32)[..., None]).reshape(*start, -1))
    return found


def rounded(given: Floats, form: RoundedForm | None) -> Floats:
    """What `held` should find."""
    if form is None:
        return given.astype(np.float16).astype(np.float32)
    return meanings.round_numbers(meanings.rotated(given), form)


WIDTHS = ((1, 16, 16), (3, 24, 24), (2, 80, 80), (2, 96, 96), (1, 128, 128), (2, 96, 64), (3, 24, 80))
"""KV heads, and widths of keys and of values."""


@pytest.mark.parametrize(("kv_heads", "key_width", "value_width"), WIDTHS)
def test_pages_hold_rounded_keys_and_values(
    library: KernelLibrary, kind: KVKind, kv_heads: int, key_width: int, value_width: int
) -> None:
    random, widths = np.random.default_rng(key_width), (key_width, value_width)
    given = [random.standard_normal((len(SLOTS), kv_heads, width)).astype(np.float32) * 100 for width in widths]
    given[0][2], given[1][0, 0] = 0, 1e-38
    given[1][1] *= np.float32(1e-9)
    forms = FORMS[kind] or (None, None)
    expected = [rounded(part, form) for part, form in zip(given, forms, strict=True)]
    for workers in (1, 3):
        pool = stored(library, kind, *given, workers)
        for found, wanted, width, form in zip(held(pool, SLOTS), expected, widths, forms, strict=True):
            assert same_bits(np.ascontiguousarray(found[..., :width]) + 0, wanted + 0)  # + 0: -0 is 0
            assert form == "q4" or not found[..., width:].any()  # no level of 4 bits is zero
        others = np.setdiff1d(np.arange(N_PAGES * PAGE), SLOTS)
        for part in pool.parts():
            kept = part[pool.place(others)]
            assert np.all(np.ascontiguousarray(kept).view(np.uint8) == FILLED)


@pytest.mark.parametrize(("kind", "most"), [("q8", 127), ("q4", 7.5)])
def test_huge_numbers_in_rounded_pages_shrink_and_stay_finite(
    library: KernelLibrary, kind: RoundedForm, most: float
) -> None:
    given = np.random.default_rng(0).standard_normal((len(SLOTS), 2, 64)).astype(np.float32)
    given *= np.logspace(5, 36, len(SLOTS), dtype=np.float32)[:, None, None]
    turned = meanings.rotated(given)
    for found in held(stored(library, kind, given, given), SLOTS):
        assert same_bits(found + 0, meanings.round_numbers(turned, kind) + 0)  # + 0: -0 is 0
        assert np.isfinite(found).all()
        largest = np.abs(found).reshape(len(SLOTS), -1).max(axis=1)
        limit = np.minimum(np.abs(turned).reshape(len(SLOTS), -1).max(axis=1) * 1.001, most * 65504)
        assert np.all(largest <= limit)
        assert np.array_equal(np.sign(found[np.abs(found) > 0]), np.sign(turned[np.abs(found) > 0]))


@pytest.mark.parametrize("widths", [(16, 16), (24, 24), (80, 80), (128, 128), (96, 64), (24, 80)])
def test_compiled_copies_are_those_of_the_twin(library: KernelLibrary, kind: KVKind, widths: tuple[int, int]) -> None:
    random = np.random.default_rng(widths)
    layers = []
    for kv_heads in (1, 3):
        keys, values = (random.standard_normal((len(SLOTS), kv_heads, width)).astype(np.float32) for width in widths)
        layers.append([stored(library, kind, keys, values) for _ in range(2)])
    targets = np.array([5, 17, 80, 127, 1128, 190, 3], np.int32)
    for twin, _ in layers:
        twin.copy_slots(SLOTS, targets)
    places = slot_copying([pool for _, pool in layers])
    copy = library.function(catalogue.copy_slots(kind))
    copy(places.ctypes.data, len(places), SLOTS.ctypes.data, targets.ctypes.data, len(SLOTS))
    for twin, pool in layers:
        assert (pool.keys == twin.keys).all()
        assert (pool.values == twin.values).all()


@pytest.mark.parametrize(("kind", "share"), [("q8", 34 / 64), ("q8q4", 27 / 64), ("q4", 20 / 64)])
def test_rounded_pages_take_a_half_to_a_third_of_the_bytes(kind: KVKind, share: float) -> None:
    for width in (32, 64, 96, 128, 256):
        whole = PageLayout("f16", width, width).position_bytes
        assert PageLayout(kind, width, width).position_bytes / whole == share
    assert KV_ELEMENT_BYTES[kind] == 2 * share


def test_slots_and_pages_move_whole(library: KernelLibrary, kind: KVKind) -> None:
    random = np.random.default_rng(1)
    keys, values = (random.standard_normal((len(SLOTS), 2, 80)).astype(np.float32) for _ in range(2))
    pool = stored(library, kind, keys, values)
    before = held(pool, SLOTS)
    targets = np.array([5, 17, 80, 127, 1128, 190, 3], np.int32)
    pool.copy_slots(SLOTS, targets)
    for found, wanted in zip(held(pool, targets), before, strict=True):
        assert same_bits(found, wanted)
    other = stored(library, kind, values, keys)
    order = np.array([15, 0], np.int32)
    contents = read_pages([pool, other], order)
    assert contents.shape == (2, sum(each.nbytes for each in (pool, other)) // N_PAGES)
    write_pages([other, pool], order[::-1].copy(), contents)
    assert not same_bits(read_pages([other, pool], order), contents)
    assert same_bits(read_pages([other, pool], order[::-1].copy()), contents)
