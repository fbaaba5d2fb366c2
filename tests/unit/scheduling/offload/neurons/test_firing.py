"""What is expected to be read of neurons, against neurons drawn at random and the reads that are really planned."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.offload.neurons.reads import page_reads
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.neurons.firing import Firing, FiringNeurons
from edgeinfer.scheduling.offload.reads import READ_BYTES, SMALL_READERS, ReadTimes, read_times

LAYERS, WIDE = 4, 16384


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("record_bytes", [1088, 2176, 8704])
@pytest.mark.parametrize("gap_bytes", [4096, 36864, 90_000])
def test_reads_are_those_of_neurons_that_lie_at_random(share: float, record_bytes: int, gap_bytes: int) -> None:
    draw, n_reads, n_bytes = np.random.default_rng(7), 0, 0
    memory = np.zeros((WIDE, record_bytes), np.uint8)
    for _ in range(LAYERS):
        starts = np.flatnonzero(draw.random(WIDE) < share) * record_bytes
        planned = page_reads(starts, np.arange(len(starts)), memory, READ_BYTES, gap_bytes).reads
        n_reads, n_bytes = n_reads + len(planned), n_bytes + int(planned[:, 1].sum())
    times = ReadTimes(2 * gap_bytes * 0.5e-9, 0.5e-9)
    found = FiringNeurons(LAYERS * WIDE, record_bytes, LAYERS, 0.0, Firing(share), times).reads()
    assert found.n_bytes == pytest.approx(n_bytes, rel=0.1)
    assert found.n_reads == pytest.approx(n_reads, rel=0.25, abs=2 * LAYERS)
    assert found.seconds == pytest.approx(times.seconds(n_reads, n_bytes), rel=0.1)


def test_what_was_seen_says_what_is_found() -> None:
    seen = Firing(0.1, ((0.1, 0.5), (0.3, 0.8)), 100)
    assert [seen.found_share(held) for held in (0.0, 0.05, 0.1, 0.2, 0.3, 1.0)] == pytest.approx(
        [0, 0, 0.5, 0.65, 0.8, 1]
    )
    assert [Firing(0.1).found_share(held) for held in (0.05, 0.1, 0.4, 1.0)] == pytest.approx([0, 0.1, 0.4, 1])
    assert "assumed" in Firing().says
    assert "100 tokens" in seen.says


def test_all_neurons_in_memory_are_read_no_more_and_too_few_are_of_no_use() -> None:
    times = read_times(None, SMALL_READERS)
    whole, none, few = (FiringNeurons(1000, 2176, 2, held, Firing(), times).reads() for held in (1000, 0, 60))
    assert (whole.n_reads, whole.n_bytes, whole.seconds) == (0, 0, 0)
    assert few == none
    many = FiringNeurons(1000, 2176, 2, 500, Firing(), times)
    assert many.reads(8).n_bytes > many.reads().n_bytes


@pytest.mark.parametrize("missing", [1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("times", [ReadTimes(8e-3, 7e-9), ReadTimes(0.0, 5e-10), read_times(None, SMALL_READERS)])
def test_few_small_records_are_a_read_each_at_most(missing: float, times: ReadTimes) -> None:
    found = FiringNeurons(36864, 384, 12, 0.0, Firing(missing), times).reads()
    assert 0 < found.n_reads <= 1.01 * 36864 * missing


def test_a_disk_that_counts_reads_alone_reads_no_gap_that_is_cut() -> None:
    disk = Disk({16: Curve((4096, 1 << 18, 1 << 20), (4096 / 3e-4, (1 << 18) / 3.000001e-4, 1e9))})
    times = read_times(disk, SMALL_READERS)
    assert times.read_s == pytest.approx(3e-4, rel=1e-3)
    assert times.gap_bytes == READ_BYTES
    assert FiringNeurons(100_000, 640, 12, 0.0, Firing(0.1), times).reads().n_reads < 100_000


def test_reads_take_what_was_measured_of_small_and_large_ones() -> None:
    disk = Disk({16: Curve((4096, 1 << 18, 1 << 20), (2e8, 2e9, 2e9))})
    times = read_times(disk, 16)
    assert times.seconds(1, 4096) == pytest.approx(4096 / 2e8)
    assert times.seconds(1, 1 << 18) == pytest.approx((1 << 18) / 2e9)
    assert times.gap_bytes == pytest.approx(times.read_s / times.byte_s / 2, abs=1)
    short = read_times(Disk({4: Curve.level(1e9)}), 16)
    assert short.byte_s == 1e-9
    assert short.read_s > 0
