"""What of a machine a container or a slice leaves to a process."""

import pytest

from edgeinfer.scheduling.machine.topology import available_bytes, read_topology, usable_cores
from tests.unit.scheduling.machine.topology.recorded import write_files

KIB, GIB = 1 << 10, 1 << 30
CGROUP = "sys/fs/cgroup"
NO_NODES = {f"sys/devices/system/node/node{node}/meminfo": "" for node in (0, 1)}


def test_two_of_64_cpus_by_quota(recorded):
    """ollama #5554, #17916: threads for the whole host, stopped by the quota at every barrier."""
    root = recorded("xeon-4314-2s", "docker-quota")
    machine = read_topology(root)
    assert (machine.n_installed, len(machine.cores), machine.quota) == (64, 32, 2.0)
    assert machine.workers() == usable_cores(root) == (0, 1)
    assert machine.total_bytes == 8 * GIB
    assert machine.available_bytes == available_bytes(root) == 8 * GIB - 500_000_000


def test_cpus_and_nodes_by_cpuset(recorded):
    machine = read_topology(recorded("xeon-4314-2s", "docker-cpuset"))
    assert [core.cpus for core in machine.cores] == [(20,), (21, 53)]
    assert machine.workers() == (20, 21)
    assert [node.cores for node in machine.nodes] == [(), (20, 21)]
    assert (machine.nodes[0].total_bytes, machine.nodes[0].free_bytes) == (0, 0)
    assert machine.quota is None
    assert machine.total_bytes == machine.nodes[1].total_bytes == 132104192 * KIB
    assert machine.available_bytes == machine.nodes[1].free_bytes == (121872340 + 1892336 + 5201044 + 904112) * KIB


@pytest.mark.parametrize("name", ["cpuset.cpus.effective", "cpuset.cpus"])
def test_cpuset_counts_where_the_status_does_not_tell(recorded, name):
    files = {
        "proc/self/status": "Name:\tpython3\n",
        f"{CGROUP}/cpuset.cpus.effective": "",
        f"{CGROUP}/{name}": "3,35\n",
    }
    assert read_topology(write_files(recorded("xeon-4314-2s", "docker-cpuset"), files)).workers() == (3,)


def test_limits_of_slices_above(recorded):
    machine = read_topology(recorded("ryzen9-7950x", "nested-slices"))
    assert machine.quota == 4.0
    assert machine.workers() == (0, 1, 2, 3)
    assert machine.total_bytes == 30 * GIB, "memory.high is the lower of the two"
    assert machine.available_bytes == 30 * GIB - (30212254720 - 4000000000)


def test_version_1(recorded):
    machine = read_topology(recorded("xeon-4314-2s", "docker-v1"))
    assert machine.quota == 7.65
    assert machine.workers() == tuple(range(8))
    assert (machine.total_bytes, machine.available_bytes) == (32 * GIB, 28 * GIB)


def test_version_1_without_limits(recorded):
    unlimited = {
        f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    machine = read_topology(write_files(recorded("xeon-4314-2s", "docker-v1"), unlimited))
    assert machine.quota is None
    assert (machine.total_bytes, machine.available_bytes) == (263571456 * KIB, 254912404 * KIB)


def test_version_1_where_neither_limits_nor_memory_are_told(recorded):
    files = {f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n", "proc/meminfo": "", **NO_NODES}
    machine = read_topology(write_files(recorded("xeon-4314-2s", "docker-v1"), files))
    assert (machine.total_bytes, machine.available_bytes) == (0, 0)


def test_a_group_within_a_container_of_version_1(recorded):
    """Paths are the host's: what lies above the container's mount is cut off, what lies below is followed."""
    root = recorded("xeon-4314-2s", "docker-v1")
    path = next(line for line in (root / "proc/self/cgroup").read_text().splitlines() if ":cpu,cpuacct:" in line)
    inner = {
        "proc/self/cgroup": f"{path}/worker\n",
        f"{CGROUP}/cpu,cpuacct/worker/cpu.cfs_quota_us": "250000\n",
        f"{CGROUP}/cpu,cpuacct/worker/cpu.cfs_period_us": "100000\n",
    }
    assert read_topology(write_files(root, inner)).quota == 2.5


def test_usual_places_where_no_mounts_are_told(recorded):
    root = recorded("xeon-4314-2s")
    limits = {
        f"{CGROUP}/cpu/cpu.cfs_quota_us": "300000\n",
        f"{CGROUP}/cpu/cpu.cfs_period_us": "100000\n",
        f"{CGROUP}/memory/memory.limit_in_bytes": "500000\n",
        f"{CGROUP}/memory/memory.usage_in_bytes": "700000\n",
    }
    machine = read_topology(write_files(root, limits))
    assert (machine.quota, machine.total_bytes, machine.available_bytes) == (3.0, 500_000, 0)


@pytest.mark.parametrize(
    "path", ["/kubepods.slice/pod1.slice/cri-7f.scope", "/../../init.scope", "/..", "/" + "long" * 99]
)
def test_a_path_that_the_mount_does_not_reach_means_its_top(recorded, path):
    root = write_files(recorded("xeon-4314-2s", "docker-quota"), {"proc/self/cgroup": f"0::{path}\n"})
    assert read_topology(root).quota == 2.0


@pytest.mark.parametrize(
    ("text", "quota", "n_workers"),
    [
        ("max 100000", None, 32),
        ("150000 100000", 1.5, 2),
        ("5000 100000", 0.05, 1),
        ("9900000 100000", 99.0, 32),
        ("0 100000", None, 32),
        ("200000 0", None, 32),
        ("many 100000", None, 32),
        ("", None, 32),
    ],
)
def test_quotas(recorded, text, quota, n_workers):
    machine = read_topology(write_files(recorded("xeon-4314-2s", "docker-quota"), {f"{CGROUP}/cpu.max": f"{text}\n"}))
    assert machine.quota == quota
    assert len(machine.workers()) == n_workers


def test_a_quota_keeps_the_fastest_cores_of_one_node(recorded):
    """CPUs are numbered by turns over both nodes here, and the first two cores of the second have a higher clock."""
    turns = {f"sys/devices/system/node/node{node}/cpulist": ",".join(map(str, range(node, 64, 2))) for node in (0, 1)}
    root = write_files(recorded("xeon-4314-2s", "docker-quota"), turns)
    assert read_topology(root).workers() == (0, 2)
    fast = {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "3500000\n" for cpu in (7, 9)}
    assert read_topology(write_files(root, fast)).workers() == (7, 9)


def test_a_quota_keeps_performance_cores(recorded):
    machine = read_topology(write_files(recorded("rk3588"), {f"{CGROUP}/cpu.max": "300000 100000\n"}))
    assert machine.workers() == (4, 6, 7), "the two fastest, then one of the equally big ones"


def test_this_machine_has_cores_and_memory():
    machine = read_topology()
    assert machine.workers() == usable_cores()
    assert 0 < len(machine.workers()) <= len(machine.cores) <= machine.n_installed
    assert 0 < machine.available_bytes <= machine.total_bytes
