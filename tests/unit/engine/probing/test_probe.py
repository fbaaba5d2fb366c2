"""The probe on this machine, with models small enough for a test: what comes out is whole, sane and can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.measure import idle
from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.probing import disk, memory, probe, rates
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.machine.profile import Curve, ProductRates
from edgeinfer.scheduling.machine.profile_file import parse_profile, profile_text
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.steps import no_progress


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured, but little of it."""
    monkeypatch.setattr(probe, "footprint", lambda topology: 8 << 20)
    monkeypatch.setattr(probe, "FORMATS", ("Q4_0", "F16"))
    monkeypatch.setattr(rates, "SIZES", {1: 1, 8: 1, 64: 1})
    monkeypatch.setattr(memory, "LARGEST_BYTES", 16 << 20)
    monkeypatch.setattr(probe, "MOST_ROUNDS", 1)
    for name, value in (("FILE_BYTES", 16 << 20), ("SIZES", (4096, 1 << 20)), ("DEPTHS", (1, 4)), ("WINDOW_S", 0.01)):
        monkeypatch.setattr(disk, name, value)


@pytest.mark.usefixtures("small")
def test_everything_is_measured_and_can_be_kept(tmp_path: Path) -> None:
    said: list[str] = []
    topology = read_topology()
    found = probe.probe(
        topology, probe.ProbeRequest(formats=("Q8_0",)), tmp_path, lambda what, done, total: said.append(what)
    )
    cpu = found.cpu
    assert set(cpu.products) == {"Q4_0", "F16", "Q8_0"}
    assert {rates.head_width for rates in cpu.attention} == {64, 128}
    assert [core.number for core in cpu.cores] == list(topology.workers())
    assert max(core.speed for core in cpu.cores) == 1.0
    assert all(product.cached is not None and product.wide is not None for product in cpu.products.values())
    assert cpu.products["Q4_0"].bytes_per_weight == 0.5625
    assert all(rate > 0 for product in cpu.products.values() for rate in product.rate.values)
    assert cpu.pass_s > 0
    assert found.idle_share is not None
    assert parse_profile(profile_text(found), "here") == found
    assert "preparing Q8_0" in said
    assert not list(tmp_path.iterdir())  # the disk's file is gone


@pytest.mark.usefixtures("small")
def test_a_short_probe_measures_the_formats_asked_for_alone(tmp_path: Path) -> None:
    found = probe.probe(read_topology(), probe.ProbeRequest(short=True, formats=("Q8_0",)), tmp_path)
    assert set(found.cpu.products) == {"Q8_0"}
    assert found.short


def test_numbers_are_kept_with_four_digits() -> None:
    """A person reads the profile, and no measurement is better than that."""
    assert probe.significant(123456789.0) == 123500000.0
    assert probe.significant(0.000123456) == 0.0001235
    assert probe.significant(0.0) == 0.0


def test_a_round_that_others_disturbed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.psutil, "cpu_count", lambda: 2)
    # busy, own, all: others take 0.5 s of 2 s in the first round, 0.01 s in the second
    counters = iter([(9.0, 5.0, 99.0), (10.0, 5.0, 100.0), (11.5, 6.0, 102.0), (11.5, 6.0, 102.0), (12.51, 7.0, 104.0)])
    monkeypatch.setattr(idle, "_counters", lambda: next(counters))
    meter = QuietMeter()
    meter.begin()
    assert not meter.end()
    meter.begin()
    assert meter.end()
    assert meter.idle_share == pytest.approx(1 - 0.51 / 4)


class Timed:
    """A part that takes some seconds of a clock."""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        self.seconds, self.clock, self.n_rounds = seconds, clock, 0

    def round(self) -> None:
        self.n_rounds += 1
        self.clock[0] += self.seconds

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("seconds", "is_quiet", "expected"), [(1.0, True, 5), (1.0, False, 8), (4.0, True, 4), (40.0, True, 1)]
)
def test_rounds_go_on_until_enough_were_quiet_or_time_is_up(
    seconds: float, is_quiet: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(probe.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(QuietMeter, "end", lambda meter: is_quiet)
    part = Timed(seconds, clock)
    probe._measure([part], 0.0, False, no_progress)
    assert part.n_rounds == expected
    probe._measure([part], clock[0], True, no_progress)
    assert part.n_rounds == expected + 1  # a short probe is one round, however busy


def test_what_opening_takes_leaves_less_time_for_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10.0]
    monkeypatch.setattr(probe.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(QuietMeter, "end", lambda meter: True)
    part = Timed(2.0, clock)
    probe._measure([part], 0.0, False, no_progress)
    assert part.n_rounds == 3


def test_cores_that_cannot_be_used_are_refused_before_any_thread_starts(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="core 9999 cannot be used here"):
        probe.probe(read_topology(), probe.ProbeRequest(short=True, cores=(9999,)), tmp_path)


def test_memory_is_as_fast_as_products_were_seen_to_read_it() -> None:
    product = ProductRates(0.5, Curve((1, 8), (60e9, 300e9)), wide=Curve((1, 8), (40e9, 300e9)), wide_columns=4096)
    found = rates.FormatRates("Q4_0", product, 0.0, Curve.level(1e9), None, ())
    read = probe._as_fast_as_products(Curve((1e6, 1e9), (90e9, 25e9)), [found])
    assert read.values == (90e9, 30e9)


@pytest.mark.parametrize("blocked", ["full", "no direct reads"])
def test_a_disk_that_cannot_be_read_directly_is_left_out(
    blocked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocked == "full":
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    else:

        def refuse(file: object, path: Path) -> None:
            raise OSError(22, "Invalid argument")

        monkeypatch.setattr(disk._DirectFile, "__init__", refuse)
    measured = disk.DiskProbe(tmp_path, short=True)
    measured.round()
    assert measured.result() is None
    measured.close()
    assert not list(tmp_path.iterdir())


def test_reads_of_more_are_never_faster() -> None:
    curve = memory._falling({10: 5.0, 20: 7.0, 40: 3.0})
    assert curve.values == (7.0, 7.0, 3.0)


def test_a_slow_disk_is_read_no_longer_than_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of this one takes ten milliseconds, as a head that moves does."""
    path, now_s, n_reads = tmp_path / "bytes", 0.0, 0
    path.write_bytes(bytes(1 << 20))

    def read(descriptor: int, memory: list[object], offset: int) -> int:
        nonlocal now_s, n_reads
        now_s, n_reads = now_s + 0.01, n_reads + 1
        return 4096

    monkeypatch.setattr(disk.os, "preadv", read)
    monkeypatch.setattr(disk.time, "perf_counter", lambda: now_s)
    assert disk._rate(path, 1 << 20, 4096, 1) == pytest.approx(4096 / 0.01)
    assert n_reads == 3
