"""Kernels of wheels for other systems and CPUs: they link, need nothing else, and compute the same where they can run.

Instructions are read by LLVM's programs. ARM's kernels are run by qemu-aarch64 (Debian: llvm, qemu-user,
gcc-aarch64-linux-gnu).
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.memory import step
from edgeinfer.jit.code import entry
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.prebuilt import TARGETS
from tests.unit.backends.cpu import kernel_calls
from tests.unit.backends.cpu.arm_machine import MISSING, Recorder, arm_name, replay
from tests.unit.backends.cpu.kernel_calls import RUNNABLE
from tests.unit.backends.cpu.kernels import test_cpu_matmul, test_cpu_rows
from tests.unit.jit.wheel_code import EVERY_WHEEL, TRIPLES, WheelLibrary, link, make, unpack

PRODUCT = "product-i4-32-f16"
ISAS = ("amx", "avx512fp16", "avx512vnni", "avxvnni", "avx2", "neon")
NAMES = ("rms_norm", "round_rows", "read_ticks", "serve", *(f"{PRODUCT}-{isa}" for isa in ISAS))
PLACES = [
    (tag, name)
    for tag, triple in TRIPLES.items()
    for name, target in TARGETS.items()
    if target.machine == triple.split("-")[0].replace("arm64", "aarch64") and (name != "amx" or "linux" in triple)
]
DISASSEMBLER = "llvm-objdump"
WANTED = {
    "amx": {"tdpbusd|tdpbsud|tdpbssd|tdpbuud"},
    "avx512fp16": {"vpdpbusd.*zmm"},
    "avx512vnni": {"vpdpbusd.*zmm"},
    "avxvnni": {r"\{vex\}\s+vpdpbusd"},
    "avx2": {"vpmaddubsw"},
    "neon-i8mm": {"sdot"},
    "neon": {"sdot"},
}
"""What the fastest product of a target must be made of."""
NO_TILES, NO_512 = r"%tmm|\btile|\btdp", r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]"
BEYOND_FP16 = r"bf16|vperm[it2]*b\b|vpmadd52|vpopcnt|vpcompress[bw]|vpexpand[bw]|vpsh[lr]d|gf2p8|vaes|vpclmul"
FP16 = r"\bv(?!cvtps2ph)\w*[ps]h\b|ph2psx|ps2phx"
BEYOND_V4 = f"{BEYOND_FP16}|{FP16}"
LACKED = {
    "amx": BEYOND_V4,
    "avx512fp16": f"{BEYOND_FP16}|{NO_TILES}",
    "avx512vnni": f"{BEYOND_V4}|{NO_TILES}",
    "avxvnni": f"{BEYOND_V4}|{NO_TILES}|{NO_512}",
    "avx2": f"{BEYOND_V4}|{NO_TILES}|{NO_512}|vpdp",
    "neon-i8mm": "<unknown>",
    "neon": "<unknown>",
}
"""What no object file of a target may have. ARM's instructions are read by their features, x86's always."""
FORMATS = {
    "manylinux_2_17_x86_64": ("elf64-x86-64", "x86_64"),
    "manylinux_2_17_aarch64": ("elf64-littleaarch64", "aarch64"),
    "win_amd64": ("COFF-x86-64", "x86_64"),
    "macosx_10_15_x86_64": ("Mach-O 64-bit x86-64", "x86_64"),
    "macosx_11_0_arm64": ("Mach-O arm64", "aarch64"),
}
"""The kind of each wheel's object files and their machine, as LLVM's programs call them."""
OF_SYSTEMS = {"memcpy", "memset", "_fltused"}
"""What any system's C library has; Windows marks with the last one that numbers with a fraction are used."""

read = pytest.mark.skipif(shutil.which(DISASSEMBLER) is None, reason=f"needs {DISASSEMBLER}")
emulated = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")
runnable = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or "avx2" not in cpu_features(),
    reason="needs an x86 processor with AVX2 under Linux",
)

CASES: dict[str, Callable[[KernelLibrary], None]] = {
    "norm": lambda library: test_cpu_rows.test_rms_norm(library, 40, 1),
    "product": lambda library: test_cpu_matmul.test_integer_products(library, "i4-32-f16", 96),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the object files of every wheel."""
    wheels = make(tmp_path_factory.mktemp("wheels"), *EVERY_WHEEL, "--only", *NAMES)
    assert len(wheels) == len(TRIPLES)
    folder = unpack(wheels, tmp_path_factory.mktemp("objects"))
    assert {(path.parent.name, path.name) for path in folder.glob("*/*")} == set(PLACES)
    return folder


@pytest.mark.parametrize(("tag", "target"), PLACES)
def test_objects_link(objects: Path, tag: str, target: str) -> None:
    assert {path.stem for path in (objects / tag / target).iterdir()} >= {"rms_norm"}
    link(objects, tag, target)


@runnable
@pytest.mark.parametrize("tag", [tag for tag, target in PLACES if target == "avx2"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_of_every_system_compute_the_same(objects: Path, tag: str, case: str) -> None:
    library = WheelLibrary(objects, tag, "avx2", kernel_library())
    CASES[case](library)  # type: ignore[arg-type]
    assert library.names


@read
@pytest.mark.parametrize(("tag", "target"), PLACES)
def test_objects_are_of_their_system_and_need_nothing_else(objects: Path, tag: str, target: str) -> None:
    paths = sorted((objects / tag / target).iterdir())
    headers = said("llvm-readobj", "--file-headers", *paths)
    assert re.findall("^Format: (.*)$", headers, re.MULTILINE) == [FORMATS[tag][0]] * len(paths)
    assert re.findall("^Arch: (.*)$", headers, re.MULTILINE) == [FORMATS[tag][1]] * len(paths)
    prefix = "_" if tag.startswith("macosx") else ""
    for path in paths:
        symbols = [line.split()[-2:] for line in said("llvm-nm", path).splitlines()]
        assert ["T", f"{prefix}{entry(path.stem)}"] in symbols
        assert {name.removeprefix(prefix) for kind, name in symbols if kind == "U"} <= OF_SYSTEMS


@read
@pytest.mark.parametrize(("machine", "counter"), [("x86_64", "rdtsc"), ("aarch64", "CNTVCT_EL0")])
def test_ticks_are_those_of_a_counter_that_programs_may_read(objects: Path, machine: str, counter: str) -> None:
    paths = list((objects / f"manylinux_2_17_{machine}").glob("*/read_ticks.o"))
    assert paths
    assert all(counter in instructions(path, "") for path in paths)


@read
@pytest.mark.parametrize("target", TARGETS)
def test_objects_have_the_instructions_of_their_target(objects: Path, target: str) -> None:
    of = TARGETS[target]
    tag = f"manylinux_2_17_{of.machine}"
    products = ""
    for path in sorted((objects / tag / target).iterdir()):
        lines = instructions(path, of.flags if of.machine == "aarch64" else "")
        assert "ret" in lines
        found = re.search(LACKED[target], lines)
        assert found is None, f"{path}: {found}"
        products += lines if path.stem.startswith(PRODUCT) else ""
    assert all(re.search(pattern, products) for pattern in WANTED[target])


@read
@pytest.mark.parametrize(("target", "lesser"), [("amx", "avx512vnni"), ("avx512vnni", "avxvnni"), ("avxvnni", "avx2")])
def test_reading_finds_instructions_that_a_cpu_lacks(objects: Path, target: str, lesser: str) -> None:
    lines = instructions(objects / "manylinux_2_17_x86_64" / target / f"{PRODUCT}-{target}.o", "")
    assert re.search(LACKED[lesser], lines)


@emulated
@pytest.mark.parametrize("target", ["neon-i8mm", "neon"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_for_arm_give_the_same_bits(
    objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, case: str
) -> None:
    recorder = Recorder()
    for module in (kernel_calls, test_cpu_matmul, test_cpu_rows):
        monkeypatch.setattr(module, "call", recorder.call)
    monkeypatch.setattr(step, "address", recorder.address)
    CASES[case](kernel_library())
    own = [call for call in recorder.calls if not call.kernel.name.endswith(RUNNABLE[1:])]
    assert any(call.before != call.after for call in own)
    for call in own:
        name = arm_name(call.kernel, RUNNABLE[0])
        renamed = ["aarch64-linux-gnu-objcopy", "--redefine-sym", f"edgeinfer.{name}=kernel"]
        wheel_code = objects / "manylinux_2_17_aarch64" / target / f"{name}.o"
        subprocess.run([*renamed, wheel_code, tmp_path / f"{name}.o"], check=True)
        for here, there in zip(call.after, replay(call, name, tmp_path), strict=True):
            assert there.holds_addresses or there.content == here.content


def instructions(path: Path, features: str) -> str:
    """The instructions of an object file, one a line; `features`: those whose instructions are known."""
    options = ["-d", "--no-show-raw-insn", "--no-leading-addr", *([f"--mattr={features}"] if features else [])]
    lines = (line.strip() for line in said(DISASSEMBLER, *options, path).splitlines() if line.startswith(("\t", " ")))
    return "\n".join(re.sub(r"<.*>", "", line).split("#")[0] for line in lines) + "\n"


def said(*command: str | Path) -> str:
    """What a program writes."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
