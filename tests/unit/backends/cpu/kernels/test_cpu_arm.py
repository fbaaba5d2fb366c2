"""Kernels on a 64-bit ARM processor: compiled for it by Numba, and under an emulator the same bits as here.

The assembly is read on any machine. Running needs qemu-aarch64 and aarch64-linux-gnu-gcc (Debian: qemu-user,
gcc-aarch64-linux-gnu).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.memory import step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.targets import CODE_BITS, MOST_STEPS, target
from tests.unit.backends.cpu import (
    attention_calls,
    kernel_calls,
)
from tests.unit.backends.cpu.arm_machine import MISSING, Recorder, arm_name, compile_for_arm, replay, run_function
from tests.unit.backends.cpu.attention_calls import Pages, Shape, chain, tree
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, SINGLE_KINDS
from tests.unit.backends.cpu.kernels import test_cpu_activations, test_cpu_matmul, test_cpu_rows
from tests.unit.jit.target_modules import ARM, dot_function, expected_sums, lookup_function

emulated = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")

CALLERS = (kernel_calls, attention_calls, test_cpu_matmul, test_cpu_rows)
"""Modules that call kernels by a name of their own."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of kernels compiled for ARM."""
    return tmp_path_factory.mktemp("arm")


def attention(library: KernelLibrary) -> None:
    for kind in SINGLE_KINDS:
        pages = Pages(library, Shape(heads=4, kv_heads=2, width=40, cap=20.0), kind)
        for split in (False, True):
            pages.run(chain(120, 20), split, workers=2)
            pages.run(tree([70], [[-1, 0, 0, 1]], attention_calls.tables_of(1)), split)


CASES: dict[str, Callable[[KernelLibrary], None]] = {
    "activations": lambda library: test_cpu_activations.test_records_hold_what_the_reference_rounds_to(library, 3),
    "norm": lambda library: test_cpu_rows.test_rms_norm(library, 40, 1),
    "peaks": lambda library: test_cpu_rows.test_peaks(library, 1000),
    "soft cap": lambda library: test_cpu_rows.test_soft_cap(library, 30.0),
    "attention": attention,
    "4 bits": lambda library: test_cpu_matmul.test_integer_products(library, "i4-32-f16", 96),
    "8 bits": lambda library: test_cpu_matmul.test_integer_products(library, "i8-32-f16", 96),
}


def test_products_and_attention_compile_for_arm(compiled: Path) -> None:
    kinds = ("f16-narrow", "q8-neon", "q4-neon")
    names = ["product-i4-32-f16-neon", "round_rows", *(f"attend_by_tile-{kind}" for kind in kinds)]
    # the others of attention too, if they will be run: one process compiles once what they share
    compile_for_arm([*names, *([] if MISSING else [f"attend_by_chunk-{kind}" for kind in kinds])], compiled)
    product, rounding, attend, rounded, small = ((compiled / f"{name}.s").read_text() for name in names)
    assert product.count("\tsdot\t") > 100
    assert rounded.count("\tsdot\t") > 100
    assert small.count("\tsdot\t") > 100
    assert "\tfmla\t" in attend
    assert "sdot" not in attend + rounding


@emulated
@pytest.mark.parametrize("case", CASES)
def test_kernels_give_the_same_bits_on_arm(
    library: KernelLibrary, compiled: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    recorder = Recorder()
    for module in CALLERS:
        monkeypatch.setattr(module, "call", recorder.call)
    for module in (step, attention_calls):
        monkeypatch.setattr(module, "address", recorder.address)
    CASES[case](library)
    names = {call.kernel.name: arm_name(call.kernel, RUNNABLE[0]) for call in recorder.calls}
    own = [call for call in recorder.calls if not call.kernel.name.endswith(RUNNABLE[1:])]
    wanted = {names[call.kernel.name] for call in own}
    compile_for_arm(sorted(name for name in wanted if not (compiled / f"{name}.o").exists()), compiled)
    assert any(call.before != call.after for call in own)
    for call in own:
        there = replay(call, names[call.kernel.name], compiled)
        for here, segment in zip(call.after, there, strict=True):
            assert segment.holds_addresses or segment.content == here.content


@emulated
@pytest.mark.parametrize(("code_bits", "signed"), [*((code_bits, False) for code_bits in CODE_BITS), (8, True)])
def test_neon_dots(tmp_path: Path, code_bits: int, signed: bool) -> None:
    random = np.random.default_rng(code_bits)
    weights = random.integers(0, 2**code_bits, (MOST_STEPS, 64)).astype(np.uint8)
    weights[0], weights[1] = 0, 2**code_bits - 1
    activations = random.integers(-127, 128, (MOST_STEPS, 64)).astype(np.int8)
    initial = random.integers(-(2**24), 2**24, 16).astype(np.int32)
    dot = dot_function(target("neon"), code_bits, MOST_STEPS, signed)
    *_, sums = run_function(dot, ARM, tmp_path, weights, activations, initial)
    assert np.array_equal(sums, expected_sums(weights, activations, initial, less=128 if signed else 0))


@emulated
def test_neon_lookups(tmp_path: Path) -> None:
    table = tuple(range(-128, 128, 16))
    indices = np.random.default_rng(1).permutation(np.arange(64, dtype=np.uint8) % 16)
    _, out = run_function(lookup_function(target("neon"), table), ARM, tmp_path, indices, np.zeros(64, np.uint8))
    assert np.array_equal(out, np.array(table)[indices].astype(np.uint8))
