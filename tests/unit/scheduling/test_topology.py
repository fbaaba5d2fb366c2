"""Cores and memory from recorded system trees."""

from pathlib import Path

import psutil
import pytest

from edgeinfer.scheduling.topology import available_bytes, core_quota, one_per_core, usable_cores


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def siblings(groups: list[str]) -> dict[str, str]:
    """Topology files of CPUs 0.., each with its siblings as the kernel lists them."""
    return {
        f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{group}\n" for cpu, group in enumerate(groups)
    }


def test_one_hardware_thread_per_core(tmp_path):
    smt = tree(tmp_path, siblings(["0,4", "1,5", "2", "3", "0,4", "1,5"]))
    assert one_per_core([0, 1, 2, 3, 4, 5], smt) == [0, 1, 2, 3]
    assert one_per_core([2, 4, 5], smt) == [2, 4, 5]


def test_without_topology_every_cpu_counts(tmp_path):
    assert one_per_core([0, 1, 7], tmp_path) == [0, 1, 7]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"fs/cgroup/cpu.max": "5000 100000\n"}, 1),
        ({"fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_container_of_64_cores_uses_its_quota(tmp_path, files, expected):
    assert core_quota(64, tree(tmp_path, files)) == expected


def test_this_machine_has_a_core():
    assert len(usable_cores()) >= 1


def test_memory_is_bounded_by_the_cgroup(tmp_path):
    v2 = tree(tmp_path / "v2", {"fs/cgroup/memory.max": "1000000\n", "fs/cgroup/memory.current": "400000\n"})
    assert available_bytes(v2) == 600_000
    v1_files = {
        "fs/cgroup/memory/memory.limit_in_bytes": "500000\n",
        "fs/cgroup/memory/memory.usage_in_bytes": "700000\n",
    }
    assert available_bytes(tree(tmp_path / "v1", v1_files)) == 0
    assert (
        0 < available_bytes(tree(tmp_path / "none", {"fs/cgroup/memory.max": "max\n"})) <= psutil.virtual_memory().total
    )
