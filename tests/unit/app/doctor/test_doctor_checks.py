"""Every check of the registry, and what holds for all findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.doctor import CHECKS, STATUSES, Check, Finding, doctor_record, examine, finding_lines, run_check
from edgeinfer.errors import EdgeInferError
from tests.unit.app.doctor.recorded_machine import machine_at, write
from tests.unit.scheduling.machine.topology.recorded import TREES, lay_out

KEYS = CHECKS.keys()
READ = (
    *("proc/cpuinfo", "proc/meminfo", "proc/uptime", "proc/pressure/memory"),
    *(
        "sys/kernel/mm/transparent_hugepage/enabled",
        "sys/devices/system/cpu/online",
        "sys/firmware/acpi/platform_profile",
    ),
    *(f"sys/devices/system/cpu/cpufreq/policy0/scaling_{name}" for name in ("governor", "max_freq", "cur_freq")),
    *("sys/class/drm/renderD128/device/vendor", "sys/devices/system/cpu/smt/control", "sys/fs/cgroup/cpu.max"),
)


def test_the_folder_holds_every_check() -> None:
    asked = {"instruction_set", "cores", "load", "memory", "channels", "clocks", "heat", "kernels", "extras", "disk"}
    assert asked | {"versions", "profile", "models", "settings"} <= set(KEYS)


def test_orders_and_summaries_are_distinct() -> None:
    checks = CHECKS.entries().values()
    assert len({check.order for check in checks}) == len({check.summary for check in checks}) == len(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_of_unknown_facts_nothing_bad_is_said(key: str) -> None:
    check = CHECKS.get(key)
    assert check.summary
    findings = check.judge(check.unknown)
    assert {finding.status for finding in findings} <= {"ok", "note"}


@pytest.mark.parametrize("key", KEYS)
def test_a_machine_that_tells_nothing_is_read(key: str, tmp_path: Path, home: Path) -> None:
    check = CHECKS.get(key)
    for finding in check.judge(check.read(machine_at(tmp_path))):
        assert finding.name
        assert finding.message
        assert "\n" not in finding.message + (finding.fix or "")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("content", ["", "\x00" * 64, "-1", "9" * 400, "[[[", "a: b\nflags", "max max\n" * 3])
def test_files_with_nonsense_do_no_harm(key: str, content: str, tmp_path: Path, home: Path) -> None:
    for name in READ:
        write(tmp_path, name, content)
    check = CHECKS.get(key)
    assert all(finding.status in STATUSES for finding in check.judge(check.read(machine_at(tmp_path))))


@pytest.mark.parametrize("key", KEYS)
def test_folders_in_the_place_of_files_do_no_harm(key: str, tmp_path: Path, home: Path) -> None:
    for name in READ:
        (tmp_path / name).mkdir(parents=True)
    check = CHECKS.get(key)
    check.judge(check.read(machine_at(tmp_path)))


@pytest.mark.parametrize("tree", sorted(path.stem for path in TREES.glob("*.txt")))
def test_recorded_machines_are_examined(tree: str, tmp_path: Path, home: Path) -> None:
    findings = examine(machine_at(lay_out(tmp_path, tree)))
    assert [STATUSES.index(finding.status) for finding in findings] == sorted(
        STATUSES.index(finding.status) for finding in findings
    )
    assert not [finding for finding in findings if "could not be looked at" in finding.message]
    names = [finding.name for finding in findings]
    assert "cores" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("status", "fix"), [("slow", None), ("note", None), ("wrong", None), ("ok", "do something")])
def test_a_finding_has_a_fix_unless_it_is_ok(status: str, fix: str | None) -> None:
    with pytest.raises(ValueError, match="fix"):
        Finding("a", status, "b", fix)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", [OSError("gone"), EdgeInferError("gone"), ImportError("gone"), ValueError("gone")])
def test_a_check_that_fails_says_so_and_no_more(reason: Exception, tmp_path: Path) -> None:
    def read(machine: object) -> None:
        raise reason

    check = Check(1, "the weather", read, lambda facts: [], None)
    (finding,) = run_check("some_thing", check, machine_at(tmp_path))
    assert (finding.name, finding.status) == ("some-thing", "note")
    assert "the weather" in finding.message
    assert "gone" in finding.message


FINDINGS = (
    Finding("memory-channels", "slow", "a single channel", "a second module", 1, "channels"),
    Finding("disk", "ok", "5.0 GB free", value=5.0, unit="GB"),
)


def test_lines_are_aligned_and_end_with_counts() -> None:
    assert list(finding_lines(FINDINGS)) == [
        "slow   memory-channels  a single channel",
        "                        → a second module",
        "ok     disk             5.0 GB free",
        "1 slow, 1 ok",
    ]


def test_records_have_all_keys(tmp_path: Path) -> None:
    told = doctor_record(machine_at(tmp_path), FINDINGS)
    assert set(told) == {"machine", "findings"}
    assert told["findings"] == [
        {
            "name": "memory-channels",
            "status": "slow",
            "message": "a single channel",
            "fix": "a second module",
            "value": 1,
            "unit": "channels",
        },
        {"name": "disk", "status": "ok", "message": "5.0 GB free", "fix": None, "value": 5.0, "unit": "GB"},
    ]
