"""What a CPU's name and a feature string stand for."""

from __future__ import annotations

import os
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from edgeinfer.jit import targets
from edgeinfer.jit.cpu import TILE_FEATURES, cpu_features, may_use_tiles
from edgeinfer.jit.machine_code import ASKED, features_of

X86 = "x86_64-unknown-linux-gnu"
AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw"}

CHOSEN = """
from edgeinfer.jit import targets
from edgeinfer.jit.cpu import cpu_features
print(targets.choose(cpu_features()))
"""


@pytest.fixture(autouse=True)
def every_architecture() -> None:
    llvm.initialize_all_targets()


@pytest.mark.parametrize(
    ("cpu", "stated", "expected"),
    [
        ("generic", "", set()),
        ("sandybridge", "", set()),
        ("haswell", "", AVX2),
        ("alderlake", "", AVX2 | {"avxvnni"}),
        ("skylake-avx512", "", AVX512),
        ("znver4", "", AVX512 | {"avx512vnni", "avx512bf16"}),
        ("icelake-server", "+avx512fp16", AVX512 | {"avx512vnni", "avx512fp16"}),
        ("haswell", "-fma", {"avx2", "f16c"}),
        ("haswell", "-avx", set()),
        ("haswell", "+avxvnni", AVX2 | {"avxvnni"}),
        ("generic", "+fma,+f16c,-sse4.2", {"fma", "f16c"}),
    ],
)
def test_x86(cpu: str, stated: str, expected: set[str]) -> None:
    assert features_of(X86, cpu, stated) & set(ASKED["x86_64"]) == expected


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin23.0.0"])
def test_arm(triple: str) -> None:
    assert features_of(triple, "generic", "") == {"neon"}
    assert features_of(triple, "cortex-a72", "") == {"neon"}
    assert features_of(triple, "cortex-a76", "") == {"neon", "dotprod", "fullfp16"}
    assert features_of(triple, "cortex-a76", "-dotprod") == {"neon", "fullfp16"}
    assert features_of(triple, "apple-m1", "") == {"neon", "dotprod", "fullfp16"}


def test_another_architecture_has_what_is_stated() -> None:
    assert features_of("riscv64-unknown-linux-gnu", "sifive-u74", "+v,-zfh") == {"v"}


def test_everything_that_targets_need_is_asked_for() -> None:
    asked = {name for names in ASKED.values() for name in names}
    for needs in targets.NEEDS.values():
        assert asked.issuperset(needs)


def test_this_cpu() -> None:
    stated = {name for name, is_there in llvm.get_host_cpu_features().items() if is_there}
    refused = set() if may_use_tiles() else {*TILE_FEATURES}
    assert stated - refused <= cpu_features()


@pytest.mark.skipif("x86_64" not in llvm.get_process_triple(), reason="names x86 processors")
def test_the_named_cpu_decides() -> None:
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", CHOSEN], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "avx2\n"
