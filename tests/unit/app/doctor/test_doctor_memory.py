"""Memory, its channels, and models that do not fit, judged from recorded facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.doctor.checks import channels, memory, models
from edgeinfer.app.doctor.checks.channels import Channels
from edgeinfer.app.doctor.checks.memory import MemoryUse
from edgeinfer.app.doctor.checks.models import ModelNeed, ModelNeeds
from edgeinfer.app.doctor.machine import Counters, SampledInterval, Swap
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed
from tests.conftest import write_tiny_llama
from tests.tiny_models import write_hollow_llama
from tests.unit.app.doctor.recorded_machine import RecordedSystem, by_name, machine_at, profile_of, write
from tests.unit.scheduling.machine.topology.recorded import lay_out

GB = 10**9
GIB = 1 << 30


def test_enough_memory_is_fine() -> None:
    found = by_name(memory.judge(MemoryUse(16 * GB, 12 * GB, 16 * GB, 4 * GB, GB, 0.0, "madvise", 0.0)))
    assert {name: finding.status for name, finding in found.items()} == {
        "memory": "ok",
        "swap": "ok",
        "huge-pages": "ok",
    }
    assert found["memory"].message == "12.0 GB of 16.0 GB are available"
    assert (found["swap"].value, found["swap"].unit) == (1.0, "GB")


def test_a_containers_limit_is_named() -> None:
    (finding,) = memory.judge(MemoryUse(4 * GB, 3 * GB, 32 * GB))
    assert finding.status == "ok"
    assert "within the container's limit (the machine has 32.0 GB)" in finding.message


def test_memory_that_is_nearly_full() -> None:
    (finding,) = memory.judge(MemoryUse(16 * GB, 2 * GB))
    assert (finding.status, finding.value, finding.unit) == ("note", 2.0, "GB")


@pytest.mark.parametrize(
    ("facts", "name", "status", "value"),
    [
        (MemoryUse(swap_bytes=8 * GB, swapped_bytes=3 * GB, swapping_bytes_s=25e6), "swap", "slow", 25.0),
        (MemoryUse(16 * GB, 9 * GB, swap_bytes=8 * GB, swapped_bytes=3 * GB), "swap", "note", 3.0),
        (MemoryUse(pressure_percent=12.5), "memory-pressure", "slow", 12.5),
        (MemoryUse(huge_pages="never"), "huge-pages", "slow", 4),
    ],
)
def test_memory_that_is_a_disk(facts: MemoryUse, name: str, status: str, value: float) -> None:
    found = by_name(memory.judge(facts))[name]
    assert (found.status, found.value) == (status, value)
    assert found.fix


def test_memory_is_read(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n")
    write(tmp_path, "proc/pressure/memory", "some avg10=2.53 avg60=0.00 avg300=0.00 total=9\nfull avg10=1.00\n")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    window = SampledInterval(
        Counters(swapped_in_bytes=4096, swapped_out_bytes=100), Counters(0, 0, 1004096, 4000100), seconds=0.5
    )
    machine = machine_at(tmp_path, window=window, system=RecordedSystem(swap_space=Swap(8 * GB, GB)))
    facts = memory.read(machine)
    assert facts == MemoryUse(16000000 << 10, 8000000 << 10, 16000000 << 10, 8 * GB, GB, 10e6, "never", 2.53)


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    facts = memory.read(machine_at(lay_out(tmp_path, "xeon-4314-2s", "docker-quota")))
    assert 0 < facts.total_bytes < facts.host_bytes


@pytest.mark.parametrize(
    ("n_cores", "alone", "together", "is_virtual", "status"),
    [
        (8, 18e9, 21e9, False, "note"),
        (8, 18e9, 38e9, False, "ok"),  # two channels
        (8, 18e9, 21e9, True, "ok"),  # a virtual machine's share says nothing
        (2, 18e9, 21e9, False, "ok"),  # too few cores to tell
        (8, 60e9, 66e9, False, "ok"),  # one core of an M1 reads nearly all there is
    ],
)
def test_channels_by_rates(n_cores: int, alone: float, together: float, is_virtual: bool, status: str) -> None:
    (finding,) = channels.judge(Channels(is_virtual, n_cores, alone, together))
    assert (finding.status, finding.value, finding.unit) == (status, together / 1e9, "GB/s")
    assert ("perhaps a single channel" in finding.message) == (status == "note")


def test_rates_of_the_profile_are_read(tmp_path: Path) -> None:
    profile = profile_of(alone_gb_s=20, together_gb_s=38, n_cores=4)
    assert channels.read(machine_at(tmp_path, profile=profile)) == Channels(False, 4, 20e9, 38e9)
    assert channels.judge(channels.read(machine_at(tmp_path))) == []


def test_models_that_fit() -> None:
    small = ModelNeed("small", MemoryNeed(GB, 1, 0, 0, 0))
    (finding,) = models.judge(ModelNeeds((small, small), 8 * GB, 16 * GB))
    assert (finding.status, finding.value) == ("ok", 2)


@pytest.mark.parametrize(
    ("need", "fix"),
    [
        (MemoryNeed(3 * GB, 100_000, 80_000 * 100_000, 0, 80_000), "--ctx"),
        (MemoryNeed(10 * GB, 1, 0, 0, 0), "close what takes"),
        (MemoryNeed(70 * GB, 1, 0, 0, 0), "a smaller quant of it"),
    ],
)
def test_models_that_do_not(need: MemoryNeed, fix: str) -> None:
    (finding,) = models.judge(ModelNeeds((ModelNeed("large", need),), 8 * GB, 16 * GB))
    missing = need.total_bytes - int(8 * GB * 0.95)
    assert (finding.status, finding.value) == ("note", round(missing / 1e9, 3))
    assert "large needs" in finding.message
    assert fix in (finding.fix or "")


def test_a_model_that_runs_from_disk_is_not_called_unfit() -> None:
    streams = "4.00 GB of the 10.00 GB of weights are read from disk for every token"
    (finding,) = models.judge(ModelNeeds((ModelNeed("large", MemoryNeed(10 * GB, 1, 0, 0, 0), streams),), 8 * GB, GB))
    assert finding.message.startswith("large runs with a part of its weights in memory")
    assert finding.message.endswith(streams)
    assert "edgeinfer pack large" in (finding.fix or "")


@pytest.mark.parametrize(("rate_gb_s", "words"), [(None, "edgeinfer probe"), (2.0, "tok/s at most"), (0.001, None)])
def test_what_would_run_from_disk_is_planned(
    tmp_path: Path, home: Path, rate_gb_s: float | None, words: str | None
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    size = write_hollow_llama(folder / "wide.gguf").stat().st_size
    profile = profile_of(alone_gb_s=20, together_gb_s=38, n_cores=4, disk_gb_s=rate_gb_s)
    machine = machine_at(tmp_path, profile=profile)
    tight = replace(machine.topology, total_bytes=size // 2, available_bytes=size // 2)
    (found,) = models.read(replace(machine, topology=tight)).models
    assert (found.streams is None) == (words is None)  # a minute a token is not offered
    (finding,) = models.judge(ModelNeeds((found,), tight.available_bytes, tight.total_bytes))
    assert finding.status == "note"
    assert (words or "wide needs") in finding.message


def test_models_are_read_from_their_headers_where_it_matters(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = write_tiny_llama(folder / "tiny.gguf")
    machine = machine_at(tmp_path)
    tight = replace(machine.topology, total_bytes=GIB, available_bytes=path.stat().st_size * 2)
    (found,) = models.read(replace(machine, topology=tight)).models
    assert (found.name, found.need.n_context) == ("tiny", 512)
    assert models.judge(models.read(replace(machine, topology=tight)))[0].status == "note"
    roomy = replace(machine.topology, total_bytes=64 * GIB, available_bytes=32 * GIB)
    small = folder / "small.gguf"
    small.write_bytes(path.read_bytes())
    with path.open("ab") as file:
        file.write(b"\0" * 64)
    found = {model.name: model.need for model in models.read(replace(machine, topology=roomy)).models}
    assert found["small"].total_bytes == small.stat().st_size + PROGRAM_BYTES
    assert found["tiny"].n_context == 512  # the largest one is always read: what doctor says of it is what plan says
