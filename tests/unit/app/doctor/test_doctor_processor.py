"""Instruction set, cores, load, clocks and heat, judged from recorded facts."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgeinfer.app.doctor.checks import clocks, cores, heat, instruction_set, load
from edgeinfer.app.doctor.checks.clocks import ClockPolicy, Clocks
from edgeinfer.app.doctor.checks.cores import CoreCounts
from edgeinfer.app.doctor.checks.heat import Heat
from edgeinfer.app.doctor.checks.instruction_set import CpuFeatures
from edgeinfer.app.doctor.checks.load import Busy, MachineLoad
from edgeinfer.app.doctor.machine import Counters, ProcessTime, SampledInterval, ThisSystem, throttling, watch
from edgeinfer.engine.measure import idle
from edgeinfer.scheduling.workers.governor import Condition
from tests.unit.app.doctor.recorded_machine import RecordedSystem, by_name, machine_at, write
from tests.unit.scheduling.machine.topology.recorded import lay_out

AVX2 = frozenset({"avx2", "fma", "f16c"})
VNNI = AVX2 | {"avx512f", "avx512bw", "avx512vnni"}
TILES = VNNI | {"amx-tile", "amx-int8", "amx-bf16"}
VNNI_FLAGS = AVX2 | {"avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"}
TILE_FLAGS = VNNI_FLAGS | {"amx_tile", "amx_int8", "amx_bf16"}


def test_the_best_instruction_set_is_fine() -> None:
    (finding,) = instruction_set.judge(CpuFeatures("x86_64", VNNI_FLAGS, VNNI))
    assert (finding.status, finding.value, finding.unit) == ("ok", 512, "bit")
    assert "avx512vnni" in finding.message


@pytest.mark.parametrize(
    ("facts", "status", "words", "fix"),
    [
        (CpuFeatures("x86_64", VNNI_FLAGS, VNNI, forced="avx2"), "slow", "forces avx2, avx512vnni", "EDGEINFER_SIMD"),
        (CpuFeatures("x86_64", VNNI_FLAGS, VNNI, forced="avx512vnni"), "ok", "512 bits", None),
        (CpuFeatures("x86_64", AVX2, AVX2, forced="avx512vnni"), "wrong", "cannot run avx512vnni", "EDGEINFER_SIMD"),
        (CpuFeatures("x86_64", AVX2, AVX2, forced="mmx"), "wrong", "'mmx'", "EDGEINFER_SIMD"),
        (CpuFeatures("x86_64", TILE_FLAGS, VNNI), "slow", "AMX", "5.16"),
        (CpuFeatures("x86_64", TILE_FLAGS, TILES), "ok", "amx, 512 bits", None),
        (CpuFeatures("x86_64", VNNI_FLAGS, AVX2), "slow", "has avx512vnni, LLVM makes code for avx2", "llvmlite"),
        (CpuFeatures("x86_64", VNNI_FLAGS, AVX2, stated=("NUMBA_CPU_NAME",)), "slow", "NUMBA_CPU_NAME", "unset NUMBA"),
        (CpuFeatures("x86_64", AVX2, AVX2, stated=("NUMBA_CPU_NAME",)), "note", "NUMBA_CPU_NAME", "unset NUMBA"),
        (
            CpuFeatures("x86_64", frozenset({"fma", "hypervisor"}), frozenset({"fma"})),
            "slow",
            "avx2, f16c",
            "host-pass",
        ),
        (CpuFeatures("x86_64", frozenset(), frozenset()), "slow", "avx2, fma, f16c", "smaller"),
        (CpuFeatures("aarch64", frozenset({"asimd", "asimddp"}), frozenset({"neon", "dotprod"})), "ok", "neon", None),
        (CpuFeatures("aarch64", frozenset({"asimd"}), frozenset({"neon"})), "slow", "no dotprod", "smaller"),
    ],
)
def test_instruction_sets(facts: CpuFeatures, status: str, words: str, fix: str | None) -> None:
    (finding,) = instruction_set.judge(facts)
    assert finding.status == status
    assert words in finding.message
    assert (finding.fix is None) if fix is None else (fix in (finding.fix or ""))


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor: 0\nflags\t\t: avx2 hypervisor\n\nprocessor: 1\nflags: none\n")
    machine = machine_at(tmp_path, environ={"EDGEINFER_SIMD": "avx2", "NUMBA_CPU_NAME": "haswell"})
    facts = instruction_set.read(machine)
    assert facts.flags == {"avx2", "hypervisor"}
    assert (facts.forced, facts.stated) == ("avx2", ("NUMBA_CPU_NAME",))
    assert machine.is_virtual


def test_all_cores_may_compute() -> None:
    (finding,) = cores.judge(CoreCounts(8, 8, 8, ("performance",) * 4, ("performance",) * 4, smt=True))
    assert (finding.status, finding.value) == ("ok", 4)
    assert finding.message == "4 of 4 cores compute, one thread each"


def test_hybrid_cores_are_told_apart(tmp_path: Path) -> None:
    (finding,) = cores.judge(cores.read(machine_at(lay_out(tmp_path, "ultra7-155h"))))
    assert finding.status == "ok"
    assert "14 of 16 cores compute (6 performance, 8 efficiency)" in finding.message
    assert "2 low-power left out" in finding.message


def test_a_cpuset_is_slow() -> None:
    (finding,) = cores.judge(CoreCounts(16, 16, 4, ("performance",) * 4, ("performance",) * 4))
    assert (finding.status, finding.value) == ("slow", 4)
    assert "4 of 16 processors may be used" in finding.message
    assert "--cpuset-cpus" in (finding.fix or "")


@pytest.mark.parametrize(("smt_control", "is_told"), [("on", True), ("", True), ("off", False), ("forceoff", False)])
def test_processors_switched_off(smt_control: str, is_told: bool) -> None:
    found = by_name(cores.judge(CoreCounts(8, 6, 6, ("performance",) * 6, ("performance",) * 6, True, smt_control)))
    assert ("cores-offline" in found) == is_told
    if is_told:
        assert found["cores-offline"].value == 2
        assert "2 of 8" in found["cores-offline"].message


@pytest.mark.parametrize(
    ("quota", "status", "fix"),
    [
        (1.5, "slow", "--cpus 2, or use 1 (edgeinfer config set threads 1)"),
        (0.5, "slow", "--cpus 1"),
        (2.0, "note", "--cpus 4"),
        (4.0, "ok", None),
        (4.5, "ok", None),
        (8.0, "ok", None),
        (9.5, "ok", None),
    ],
)
def test_quotas(quota: float, status: str, fix: str | None) -> None:
    kinds = ("performance",) * 4
    found = by_name(cores.judge(CoreCounts(8, 8, 8, kinds, kinds, smt=True, quota=quota)))["quota"]  # type: ignore[arg-type]
    assert (found.status, found.value) == (status, quota)
    assert (found.fix is None) if fix is None else fix in (found.fix or "")
    assert f"{quota:g}" in found.message


def test_the_quota_of_a_container_is_read(tmp_path: Path) -> None:
    facts = cores.read(machine_at(lay_out(tmp_path, "docker-quota")))
    assert facts.quota is not None
    assert facts.quota == machine_at(tmp_path).topology.quota


@pytest.mark.parametrize(("idle_share", "n_workers", "status"), [(0.97, 4, "ok"), (0.6, 4, "slow"), (0.6, 2, "ok")])
def test_load_is_slow_when_workers_lack_cores(
    idle_share: float, n_workers: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as `engine.measure.idle` says, of a machine with four cores."""
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 4)
    assert idle.is_busy(idle_share, n_workers) == (status == "slow")
    (finding,) = load.judge(MachineLoad(idle_share, 0.0, 4, 1.0, n_workers, (Busy("backup", 1.25),)))
    assert finding.status == status
    assert finding.value == pytest.approx(100 * (1 - idle_share))
    assert f"{100 * (1 - idle_share):.0f} % of the processors' time" in finding.message
    assert finding.message.endswith("backup 1.25")


def test_time_that_a_host_takes() -> None:
    found = by_name(load.judge(MachineLoad(0.8, 0.125, 2, 1.0, 1)))
    assert (found["steal"].status, found["steal"].value) == ("slow", 12.5)
    assert "steal" not in by_name(load.judge(MachineLoad(0.8, 0.001, 2, 1.0, 1)))


def test_processes_by_what_they_took() -> None:
    """Same names are added, a process that began meanwhile counts, one whose counter went back does not."""
    before = (ProcessTime(1, "init", 10.0), ProcessTime(2, "job", 1.0), ProcessTime(3, "job", 1.0))
    after = (
        *(ProcessTime(1, "init", 10.001), ProcessTime(2, "job", 1.25), ProcessTime(3, "job", 1.15)),
        *(ProcessTime(4, "new", 0.3), ProcessTime(5, "a", 0.04), ProcessTime(6, "b", 0.05)),
    )
    window = SampledInterval(Counters(processes=before), Counters(processes=after), 0.5, 0.5)
    assert [(each.name, pytest.approx(each.cores)) for each in load.busiest(window)] == [
        ("job", 0.8),
        ("new", 0.6),
        ("b", 0.1),
    ]
    again = SampledInterval(Counters(processes=(ProcessTime(2, "job", 5.0),)), Counters(processes=before), 0.5, 0.5)
    assert [each.name for each in load.busiest(again)] == ["init", "job"]


def test_a_window_is_what_happens_while_idle_time_is_measured(tmp_path: Path) -> None:
    told = iter([Counters(processors_s=10.0, steal_s=1.0), Counters(processors_s=14.0, steal_s=2.0)])
    clock = iter([3.0, 3.5])

    class Ticking(RecordedSystem):
        def counters(self) -> Counters:
            return next(told)

    window = watch(Ticking(), idle=lambda: 0.75, clock=lambda: next(clock))
    facts = load.read(machine_at(tmp_path, window=window))
    assert (window.seconds, facts.idle_share, facts.steal_share) == (0.5, 0.75, 0.25)


def test_this_systems_counters_grow(tmp_path: Path) -> None:
    first, second = ThisSystem(tmp_path).counters(), ThisSystem(tmp_path).counters()
    assert 0 < first.processors_s <= second.processors_s
    assert first.n_throttled is None
    assert all(process.pid > 0 for process in first.processes)
    assert ThisSystem().free_bytes(tmp_path / "not" / "there") == pytest.approx(
        psutil.disk_usage(str(tmp_path)).free, 0.2
    )


PSTATE = ClockPolicy("intel_pstate", "powersave", "balance_performance", 2.1e9, 4.7e9, 4.7e9)


def test_powersave_of_a_driver_that_chooses_itself_is_fine() -> None:
    (finding,) = clocks.judge(Clocks((PSTATE, PSTATE), True, "balanced"))
    assert (finding.status, finding.value, finding.unit) == ("ok", 4700, "MHz")
    assert "2.10 of 4.70 GHz" in finding.message


@pytest.mark.parametrize(
    ("facts", "name", "status", "value"),
    [
        (Clocks((ClockPolicy("acpi-cpufreq", "powersave", "", 1.4e9, 3.6e9, 3.6e9),)), "governor", "slow", 1400),
        (Clocks((ClockPolicy("intel_cpufreq", "powersave"),)), "governor", "slow", None),
        (Clocks((ClockPolicy("intel_pstate", "powersave", "power"),)), "energy-preference", "slow", None),
        (Clocks((ClockPolicy("amd-pstate-epp", "powersave", "balance_power"),)), "energy-preference", "note", None),
        (Clocks((PSTATE, ClockPolicy("x", "performance", "", 1e9, 2e9, 4e9)), True), "clock-limit", "slow", 50.0),
        (Clocks((ClockPolicy("x", "performance", "", 1e9, 2e9, 4e9),), False), "turbo", "slow", None),
        (Clocks(profile="low-power"), "power-profile", "slow", None),
    ],
)
def test_what_keeps_clocks_down(facts: Clocks, name: str, status: str, value: float | None) -> None:
    (finding,) = clocks.judge(facts)
    assert (finding.name, finding.status, finding.value) == (name, status, value)
    assert finding.fix


def test_clocks_are_read(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpufreq/policy0"
    for name, text in (
        ("scaling_driver", "acpi-cpufreq"),
        ("scaling_governor", "powersave"),
        ("scaling_cur_freq", "1400000"),
        ("scaling_max_freq", "3600000"),
        ("cpuinfo_max_freq", "3600000"),
    ):
        write(tmp_path, f"{folder}/{name}", f"{text}\n")
    write(tmp_path, "sys/devices/system/cpu/cpufreq/boost", "0\n")
    write(tmp_path, "sys/firmware/acpi/platform_profile", "quiet\n")
    facts = clocks.read(machine_at(tmp_path))
    assert facts.policies == (ClockPolicy("acpi-cpufreq", "powersave", "", 1.4e9, 3.6e9, 3.6e9),)
    assert (facts.turbo, facts.profile) == (False, "quiet")
    assert set(by_name(clocks.judge(facts))) == {"governor", "turbo", "power-profile"}
    write(tmp_path, "sys/devices/system/cpu/intel_pstate/no_turbo", "0\n")
    assert clocks.read(machine_at(tmp_path)).turbo is True


@pytest.mark.parametrize(
    ("now", "high", "critical", "status"),
    [
        (45.0, 80.0, 100.0, "ok"),
        (72.0, 80.0, 100.0, "note"),
        (81.0, 80.0, 100.0, "slow"),
        (97.0, 105.0, 95.0, "slow"),  # limits the wrong way round
        (50.0, None, None, "ok"),
        (90.0, None, None, "slow"),
    ],
)
def test_temperatures(now: float, high: float | None, critical: float | None, status: str) -> None:
    (finding,) = heat.judge(Heat(Condition(None, None, now, high, critical)))
    assert (finding.name, finding.status, finding.value, finding.unit) == ("temperature", status, now, "°C")
    assert f"{now:.0f} °C" in finding.message


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (Heat(n_throttled=0), "ok", "0 times"),
        (Heat(n_throttled=12, throttled_s=0.5, uptime_s=7200.0), "ok", "12 times since the start, 0.5 s"),
        (Heat(n_throttled=900, throttled_s=720.0, uptime_s=7200.0), "note", "10 % of the time"),
        (Heat(n_throttled=900, n_throttled_now=3), "slow", "3 times in half a second"),
    ],
)
def test_slowing_down_for_heat(facts: Heat, status: str, words: str) -> None:
    (finding,) = heat.judge(facts)
    assert (finding.name, finding.status) == ("throttling", status)
    assert words in finding.message


@pytest.mark.parametrize(
    ("plugged_in", "percent", "status", "words"),
    [
        (True, 80.0, "ok", "plugged in, 80 % charged"),
        (False, 80.0, "note", "on battery, 80 % left"),
        (False, 12.0, "slow", "12 % left"),
        (False, None, "note", "on battery"),
    ],
)
def test_batteries(plugged_in: bool, percent: float | None, status: str, words: str) -> None:
    (finding,) = heat.judge(Heat(Condition(plugged_in, percent)))
    assert (finding.name, finding.status, finding.value) == ("battery", status, percent)
    assert words in finding.message


def test_counters_of_heat_are_read(tmp_path: Path) -> None:
    for cpu, count, milliseconds in ((0, 5, 1500), (1, 7, 40)):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        write(tmp_path, f"{folder}/core_throttle_count", f"{count}\n")
        write(tmp_path, f"{folder}/core_throttle_total_time_ms", f"{milliseconds}\n")
    assert throttling(tmp_path) == (12, 1.5)
    write(tmp_path, "proc/uptime", "5000.25 9000.00\n")
    window = SampledInterval(Counters(n_throttled=10), Counters(n_throttled=12, throttled_s=1.5), 0.5, 1.0)
    system = RecordedSystem(Condition(True, 50.0, 60.0))
    facts = heat.read(machine_at(tmp_path, window=window, system=system))
    assert facts == Heat(Condition(True, 50.0, 60.0), 12, 2, 1.5, 5000.25)
    assert throttling(tmp_path / "elsewhere") == (None, None)
