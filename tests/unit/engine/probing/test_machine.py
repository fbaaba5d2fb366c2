"""What a machine is called, and when its profile no longer holds."""

from dataclasses import replace
from pathlib import Path

from edgeinfer.engine.measure.profiles import fingerprint_of, machine_name
from edgeinfer.scheduling.machine.topology import read_topology


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some   CPU @ 3 GHz\nflags : a\n")
    assert machine_name(info) == "Some CPU @ 3 GHz"
    assert machine_name(tmp_path / "missing")


def test_the_fingerprint_follows_cores_and_quota_but_not_what_others_use() -> None:
    topology = read_topology()
    known = fingerprint_of(topology)
    assert known == fingerprint_of(replace(topology, available_bytes=topology.available_bytes // 2))
    assert known != fingerprint_of(replace(topology, quota=0.5))
    assert known != fingerprint_of(replace(topology, cores=topology.cores[:1] * 2))
