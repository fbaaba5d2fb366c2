"""What holds on every machine: who works, and that no content of a file is believed beyond reason."""

import math
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st

from edgeinfer.scheduling.machine.topology import Core, Node, Topology, read_topology
from tests.unit.scheduling.machine.topology.recorded import TREES, files_of, write_files

CPU = "sys/devices/system/cpu"
QUIET = hypothesis.settings(deadline=None, max_examples=60)
MACHINES = {name: files_of((TREES / f"{name}.txt").read_text()) for name in ("rk3588", "ultra7-258v", "docker-v1")}
JUNK = st.sampled_from(
    (
        *(
            "",
            "\n",
            "max",
            "-1",
            "0",
            "0-",
            "-",
            ",",
            "3-1",
            "0-99999",
            "0-900",
            "7,3,3-4",
            "9" * 30,
            "1e9",
            "NaN",
            "0x10",
        ),
        *("\x00\xff", "12K", "12 34", "a: b: c", "0::/", "0::relative", "4:cpu,memory:/..", "MemTotal: 5 kB"),
        *("1 0 0:31 / /sys/fs/cgroup ro - cgroup2 cgroup rw", "1 0 0:31 / / ro - cgroup", "Cpus_allowed_list:\t900"),
    )
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, str], set[int], set[frozenset[int]]]:
    """Files of a machine, the CPUs allowed, and its cores as sets of threads."""
    cpus = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True))
    width = draw(st.integers(1, 3))
    cores = [sorted(cpus[start : start + width]) for start in range(0, len(cpus), width)]
    allowed = draw(st.sets(st.sampled_from(cpus), min_size=1))
    files = {f"{CPU}/online": ",".join(map(str, sorted(cpus)))}
    files["proc/self/status"] = "Cpus_allowed_list:\t" + ",".join(map(str, sorted(allowed)))
    for core in cores:
        clock = draw(st.sampled_from(["5000000", "3300000", "2400000", ""]))
        for cpu in core:
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, core))
            files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = clock
    for name, members in draw(
        st.dictionaries(st.sampled_from(["core", "atom", "lowpower"]), st.sets(st.sampled_from(cpus)))
    ).items():
        files[f"sys/devices/cpu_{name}/cpus"] = ",".join(map(str, sorted(members)))
    if draw(st.booleans()):
        files["sys/fs/cgroup/cpu.max"] = f"{draw(st.integers(1000, 1_500_000))} 100000"
    return files, allowed, {frozenset(core) for core in cores}


@QUIET
@hypothesis.given(trees())
def test_workers_are_allowed_one_per_core_and_within_the_quota(tree):
    files, allowed, cores = tree
    with tempfile.TemporaryDirectory() as folder:
        machine = read_topology(write_files(Path(folder), files))
    workers = machine.workers()
    assert workers
    assert allowed.issuperset(workers)
    assert list(workers) == sorted(set(workers))
    assert all(len(core.intersection(workers)) <= 1 for core in cores)
    n_most = len(machine.cores) if machine.quota is None else math.ceil(machine.quota)
    assert len(workers) <= n_most
    if machine.quota is None and "low-power" not in {core.kind for core in machine.cores}:
        assert len(workers) == sum(bool(core & allowed) for core in cores)
    assert sorted(cpu for core in machine.cores for cpu in core.cpus) == sorted(allowed)


@QUIET
@hypothesis.given(st.data())
def test_no_content_of_a_file_is_fatal(data):
    files = dict(MACHINES[data.draw(st.sampled_from(sorted(MACHINES)))])
    broken = data.draw(st.dictionaries(st.sampled_from(sorted(files)), JUNK, min_size=1, max_size=12))
    with tempfile.TemporaryDirectory() as folder:
        machine = read_topology(write_files(Path(folder), files | broken))
    assert machine.workers()
    assert 0 <= machine.available_bytes <= machine.total_bytes
    assert sorted(core for node in machine.nodes for core in node.cores) == [core.number for core in machine.cores]


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["performance", "efficiency", "low-power"]), st.none() | st.floats(1e9, 6e9)),
        min_size=1,
    ),
    st.none() | st.floats(0.01, 40),
)
def test_no_core_left_out_is_better_than_one_that_works(cores, quota):
    made = tuple(Core((2 * n,), kind, 0, 0, n, -1, hz) for n, (kind, hz) in enumerate(cores))
    machine = Topology(made, (Node(0, (), 0, None, ()),), 99, quota, False, 0, 0, 0, 0)
    workers = set(machine.workers())
    kinds = ["performance", "efficiency", "low-power"]
    worst = max((kinds.index(core.kind), -(core.max_hz or 0)) for core in made if core.number in workers)
    left = [(kinds.index(core.kind), -(core.max_hz or 0)) for core in made if core.number not in workers]
    assert all(worst <= core for core in left)
