"""What is remembered of this CPU is what LLVM says, and is asked again when it may no longer hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.jit import cpu, machine_code


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(cpu, "cache_root", lambda: tmp_path / "kernels")
    cpu._cpu.cache_clear()
    yield tmp_path / "kernels"
    cpu._cpu.cache_clear()


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often LLVM is asked."""
    count = [0]

    def ask() -> frozenset[str]:
        count[0] += 1
        return frozenset({"avx2"})

    monkeypatch.setattr(machine_code, "all_features", ask)
    return count


def test_it_is_what_llvm_says(root: Path) -> None:
    found = cpu.this_cpu()
    assert (found.name, found.flags) == (machine_code.cpu_name(), machine_code.cpu_feature_flags())
    assert found.features == machine_code.all_features()
    cpu._cpu.cache_clear()
    assert cpu.this_cpu() == found


@pytest.mark.skipif(not cpu.CPU_INFO.exists(), reason="this system does not report its CPU")
def test_llvm_is_asked_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = asked(monkeypatch)
    for _ in range(2):
        cpu._cpu.cache_clear()
        cpu.this_cpu()
    assert count == [1]


def test_another_cpu_is_asked_about(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A disk moved to another computer, and one that says nothing of its CPU."""
    count = asked(monkeypatch)
    cpu.this_cpu()
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")
    cpu.CPU_INFO.write_text("vendor_id\t: Another\nflags\t\t: sse2\ncpu MHz\t: 1000\n\nvendor_id\t: Another\n")
    for _ in range(2):
        cpu._cpu.cache_clear()
        cpu.this_cpu()
    assert count == [2]
    cpu.CPU_INFO.unlink()
    for _ in range(2):
        cpu._cpu.cache_clear()
        cpu.this_cpu()
    assert count == [4]


def test_the_clock_of_the_moment_does_not_matter(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = asked(monkeypatch)
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")
    for clock in (1000, 2000):
        cpu.CPU_INFO.write_text(f"vendor_id\t: One\nflags\t\t: sse2\ncpu MHz\t: {clock}\n")
        cpu._cpu.cache_clear()
        cpu.this_cpu()
    assert count == [1]


def test_the_environment_names_another_cpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cpu.this_cpu()
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
    found = cpu.this_cpu()
    assert (found.name, found.flags) == ("haswell", "")
    monkeypatch.undo()
    cpu._cpu.cache_clear()
    assert own.name == machine_code.cpu_name()


@pytest.mark.parametrize("content", [b"", b"not json", b"[1]", b'{"name": 1}', json.dumps(["a", "b", 3]).encode()])
def test_a_damaged_answer_is_replaced(root: Path, content: bytes) -> None:
    found = cpu.this_cpu()
    for path in root.glob("cpu-*.json"):
        path.write_bytes(content)
    cpu._cpu.cache_clear()
    assert cpu.this_cpu() == found


def test_a_folder_that_cannot_be_written_does_no_harm(root: Path) -> None:
    root.write_text("a file where the folder should be")
    assert cpu.this_cpu().name == machine_code.cpu_name()


@pytest.mark.skipif(not cpu.CPU_INFO.exists(), reason="this system does not report its CPU")
def test_llvm_is_not_loaded_for_a_known_cpu() -> None:
    program = "import sys; from edgeinfer.jit.cpu import cpu_features; cpu_features(); print('llvmlite' in sys.modules)"
    outputs = [subprocess.check_output([sys.executable, "-c", program], text=True).strip() for _ in range(2)]
    assert outputs[1] == "False"
