"""Where workers are, as the system says, and memory that each node's worker touches first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.jit.memory import HUGE, aligned
from edgeinfer.models.load import open_model

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where threads may run")


def compiled(model: Path, options: DeviceOptions) -> CpuLane:
    with open_model(model, 128) as opened:
        return CpuDevice(options).compile(opened.spec, opened.file, limits_for(128))


@linux
def test_each_worker_is_read_back_on_its_core(tiny_model: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    lane = compiled(tiny_model, DeviceOptions(len(cores), tuple(cores)))
    try:
        assert lane.affinity == tuple((core,) for core in cores)
    finally:
        lane.close()
    assert lane.affinity == ()


@linux
def test_workers_that_are_not_pinned_may_run_anywhere(tiny_model: Path) -> None:
    before = os.sched_getaffinity(0)
    lane = compiled(tiny_model, DeviceOptions(2, tuple(sorted(before))[:2], pins=False))
    try:
        assert lane.affinity == ()
        threads = [thread for thread in lane._worker_pool._threads if thread.native_id]
        assert all(os.sched_getaffinity(thread.native_id or 0) == before for thread in threads)
    finally:
        lane.close()
    assert os.sched_getaffinity(0) == before


@linux
@pytest.mark.parametrize("huge", [True, False])
def test_memory_for_several_nodes_is_kept_off_huge_pages(huge: bool) -> None:
    memory = aligned((4 * HUGE,), np.uint8, huge=huge)
    memory[:] = 1
    assert vm_flags(memory.ctypes.data) & {"hg", "nh"} == ({"hg"} if huge else {"nh"})


def vm_flags(address: int) -> set[str]:
    """The flags of the mapping that an address belongs to."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not line.startswith("VmFlags"):
            low, _, high = first.partition("-")
            inside = int(low, 16) <= address < int(high, 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return set()
