"""Reading patterns: every one reads each line exactly once, and the measurement gives a rate for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.probing import memory
from edgeinfer.engine.probing.memory import READ_PATTERNS
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import LINE_BYTES, LINES_PER_ROUND, address, aligned

ROUNDS = 3


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return memory.reading_library()


@pytest.mark.parametrize("name", READ_PATTERNS)
def test_a_pattern_reads_every_line_once_and_nothing_else(library: KernelLibrary, name: str) -> None:
    streams, read = READ_PATTERNS[name]
    lines = LINES_PER_ROUND * ROUNDS
    buffer = aligned((1 + streams * lines + 1, LINE_BYTES // 8), np.int64)
    buffer[:] = np.random.default_rng(0).integers(-(2**62), 2**62, buffer.shape)
    inside = buffer[1:-1]
    compiled = library.function(read)
    assert compiled(address(inside), lines) == np.bitwise_xor.reduce(inside, axis=None)


def test_every_pattern_is_measured(library: KernelLibrary) -> None:
    readings = memory.measure((0, 0), 1 << 20, library)
    assert [reading.pattern for reading in readings] == list(READ_PATTERNS)
    assert all(reading.bytes_per_s > 0 for reading in readings)


def test_the_buffer_is_larger_than_the_caches_and_no_larger_than_a_quarter_of_memory(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "2048K", "262144K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert memory.buffer_bytes(64 << 30, tmp_path) == 1 << 30
    assert memory.buffer_bytes(1 << 30, tmp_path) == 1 << 28
    assert memory.buffer_bytes(64 << 30, tmp_path / "missing") == memory.BYTES_MIN
