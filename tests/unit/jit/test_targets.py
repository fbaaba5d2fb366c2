"""Dots and look-ups of every instruction set against NumPy, and the instructions that they become."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.jit import targets
from edgeinfer.jit.targets import CODE_BITS, MOST_STEPS, NEEDS, Target, target
from tests.unit.backends.cpu.kernel_calls import RUNNABLE
from tests.unit.jit.target_modules import (
    ALDER_LAKE,
    ARM,
    HASWELL,
    SKYLAKE,
    dot_function,
    expected_sums,
    gather_function,
    levels_function,
    lookup_function,
)

VECTORS = [name for name in NEEDS if name not in catalogue.TILED]
SIGNED = [name for name in RUNNABLE if target(name).signed_bytes]
TABLES = [tuple(range(16)), tuple(range(-128, 128, 16)), tuple(range(255, 15, -15))]


def operands(code_bits: int, n_steps: int, kind: str) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int32]]:
    """Weights, activations and initial sums: random, or the largest sums of either sign."""
    random = np.random.default_rng([code_bits, n_steps])
    top = 2**code_bits - 1
    if kind == "random":
        weights = random.integers(0, top + 1, (n_steps, 64))
        activations = random.integers(-127, 128, (n_steps, 64))
    else:
        weights = np.full((n_steps, 64), top if kind != "lowest" else 0)
        activations = np.full((n_steps, 64), -127 if kind == "negative" else 127)
    initial = random.integers(-(2**24), 2**24, 16)
    return weights.astype(np.uint8), activations.astype(np.int8), initial.astype(np.int32)


def test_avx512_with_float16_differs_in_gathering_alone() -> None:
    """So that kernels that look nothing up are the same code, and are tested once."""
    assert replace(target("avx512fp16"), name="avx512vnni", gather=None) == target("avx512vnni")


@pytest.mark.parametrize("name", VECTORS)
def test_wide_sets_hold_many_vectors(name: str) -> None:
    """Which is all that attention over float16 pages knows of an instruction set."""
    assert (name in targets.WIDE) == (target(name).vectors >= 32)


@pytest.mark.parametrize("kind", ["random", "positive", "negative"])
@pytest.mark.parametrize("code_bits", CODE_BITS)
@pytest.mark.parametrize("name", RUNNABLE)
def test_dots(name: str, code_bits: int, kind: str) -> None:
    for n_steps in (1, 3, MOST_STEPS):
        weights, activations, sums = operands(code_bits, n_steps, kind)
        expected = expected_sums(weights, activations, sums)
        dot_function(target(name), code_bits, n_steps).run(weights, activations, sums)
        assert np.array_equal(sums, expected)


@pytest.mark.parametrize("kind", ["random", "positive", "negative", "lowest"])
@pytest.mark.parametrize("name", SIGNED)
def test_signed_dots(name: str, kind: str) -> None:
    weights, activations, sums = operands(8, MOST_STEPS, kind)
    weights[0], weights[1] = 0, 1  # the codes -128 and -127
    expected = expected_sums(weights, activations, sums, less=128)
    dot_function(target(name), 8, MOST_STEPS, signed=True).run(weights, activations, sums)
    assert np.array_equal(sums, expected)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", RUNNABLE)
def test_lookups(name: str, table: tuple[int, ...]) -> None:
    indices = np.random.default_rng(1).permutation(np.arange(64, dtype=np.uint8) % 16)
    out = np.zeros(64, np.uint8)
    lookup_function(target(name), table).run(indices, out)
    assert np.array_equal(out, np.array(table)[indices].astype(np.uint8))


@pytest.mark.parametrize("name", RUNNABLE)
def test_levels_of_four_bits(name: str) -> None:
    codes = np.random.default_rng(2).permutation(256)[:16].astype(np.uint8)
    out = np.zeros((2, 16), np.float32)
    levels_function(target(name)).run(codes, out)
    assert np.array_equal(out, np.stack([codes & 15, codes >> 4]) - np.float32(7.5))


@pytest.mark.parametrize("name", [name for name in RUNNABLE if target(name).gather is not None])
@pytest.mark.parametrize("n_bytes", [4, 8])
def test_gathers(name: str, n_bytes: int) -> None:
    table = np.random.default_rng(3).integers(0, 2**32, 2 * 512, np.uint32)
    places = np.random.default_rng(4).integers(0, 512, 16).astype(np.int32)
    places[:2] = 0, 511
    out = np.zeros((16, n_bytes // 4), np.uint32)
    gather_function(target(name), n_bytes).run(table, places, out)
    assert np.array_equal(out, table.reshape(512, 2)[places, : n_bytes // 4])


def test_avx_512_gathers_eight_or_sixteen_at_a_time() -> None:
    for n_bytes, name, count in ((4, "vpgatherdd", 1), (8, "vpgatherdq", 2)):
        assert gather_function(target("avx512fp16"), n_bytes).assembly(*SKYLAKE).count(name) == count


def test_avx_512_looks_levels_up() -> None:
    text = levels_function(target("avx512vnni")).assembly(*SKYLAKE)
    assert text.count("\tvperm") == 2
    assert "vcvtdq2ps" not in text


def test_every_target_says_what_it_is() -> None:
    for name in VECTORS:
        found = target(name)
        assert found.name == name
        assert 64 % found.register_bytes == 0
        assert found.signed_bytes == (found.signed_dot is not None)
    assert list(NEEDS.values()).count(()) == 1  # one of them runs anywhere
    assert NEEDS[targets.choose(frozenset())] == ()


def instructions(of: Target, code_bits: int, machine: tuple[str, str, str], signed: bool = False) -> str:
    return dot_function(of, code_bits, MOST_STEPS, signed).assembly(*machine)


def test_avx2_widens_no_more_often_than_it_must() -> None:
    for code_bits, n_widened in ((2, 1), (3, 1), (4, 1), (5, 2), (6, 4)):
        text = instructions(target("avx2"), code_bits, HASWELL)
        assert (text.count("vpmaddubsw"), text.count("vpmaddwd")) == (16, 2 * n_widened)
        assert "zmm" not in text
    assert instructions(target("avx2"), 8, HASWELL, signed=True).count("vpmaddubsw") == 16
    assert instructions(target("avx2"), 8, HASWELL).count("vpmaddubsw") == 32
    assert lookup_function(target("avx2"), TABLES[0]).assembly(*HASWELL).count("vpshufb") == 2


def test_avx_vnni_is_two_instructions_a_step() -> None:
    for code_bits in CODE_BITS:
        text = instructions(target("avxvnni"), code_bits, ALDER_LAKE)
        assert text.count("{vex}\tvpdpbusd") == 16
        assert "zmm" not in text


def test_neon_is_four_sdots_a_step() -> None:
    for code_bits, signed in ((4, False), (6, False), (8, True)):
        text = instructions(target("neon"), code_bits, ARM, signed)
        assert text.count("\tsdot\t") == 32
    assert lookup_function(target("neon"), TABLES[1]).assembly(*ARM).count("\ttbl\t") == 4
