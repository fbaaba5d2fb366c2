"""`edgeinfer doctor`: what it prints, its record, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app import doctor as doctor_package
from edgeinfer.app.cli import build_app
from edgeinfer.app.doctor import STATUSES, Finding, examine, finding_lines
from edgeinfer.app.doctor import machine as machine_module
from edgeinfer.app.doctor.machine import SampledInterval, System, this_machine

KEYS = {"name", "status", "message", "fix", "value", "unit"}


@pytest.fixture
def quiet(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the half second in which others are watched."""

    def watch(system: System) -> SampledInterval:
        return SampledInterval(system.counters(), system.counters(), 0.5, 1.0)

    monkeypatch.setattr(machine_module, "watch", watch)


@pytest.fixture
def unchanging(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is looked at once: its load and free memory do not change from one command to the next."""
    monkeypatch.setenv("EDGEINFER_SIMD", "mmx")
    found = examine(this_machine())
    monkeypatch.setattr(doctor_package, "examine", lambda machine, progress: found)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["doctor", *arguments])


@pytest.mark.usefixtures("quiet")
def test_json_has_the_contract_keys() -> None:
    result = run("--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {"machine", "findings"} <= set(told)
    assert {"cpu", "cores", "ram_bytes", "system", "python"} <= set(told["machine"])
    assert told["findings"]
    for finding in told["findings"]:
        assert set(finding) == KEYS
        assert finding["status"] in STATUSES
        assert (finding["fix"] is None) == (finding["status"] == "ok")
        assert finding["value"] is None or isinstance(finding["value"], int | float)
        assert finding["unit"] is None or finding["value"] is not None
    order = [STATUSES.index(finding["status"]) for finding in told["findings"]]
    assert order == sorted(order)
    assert not [finding for finding in told["findings"] if "could not be looked at" in finding["message"]]


@pytest.mark.usefixtures("unchanging")
def test_people_are_told_the_same() -> None:
    told = json.loads(run("--json").stdout)
    result = run("--verbose")
    assert result.exit_code == 0
    shown = result.stdout.splitlines()
    n_fixes = sum(finding["fix"] is not None for finding in told["findings"])
    assert len(shown) == len(told["findings"]) + n_fixes + 1
    assert sum(line.strip().startswith("→") for line in shown) == n_fixes
    assert "\x1b" not in result.stdout
    names = [line.split()[1] for line in shown[:-1] if not line.startswith(" ")]
    assert names == [finding["name"] for finding in told["findings"]]


@pytest.mark.usefixtures("unchanging")
def test_what_asks_for_something_is_shown_and_what_is_ok_is_counted() -> None:
    findings = json.loads(run("--json").stdout)["findings"]
    pressing = [finding for finding in findings if finding["status"] != "ok"]
    *shown, last = run().stdout.splitlines()
    assert [line.split()[1] for line in shown if not line.startswith(" ")] == [each["name"] for each in pressing]
    assert len(shown) == 2 * len(pressing)
    assert last.endswith(f", {len(findings) - len(pressing)} ok; --verbose shows those that are ok")


def test_where_all_is_ok_it_says_so() -> None:
    fine = [Finding("disk", "ok", "81 GB free"), Finding("load", "ok", "others use 1 %")]
    assert list(finding_lines(fine, is_whole=False)) == ["nothing to do: 2 ok; --verbose shows those that are ok"]
    assert len(list(finding_lines(fine))) == 3


@pytest.mark.usefixtures("quiet")
def test_what_is_wrong_comes_first_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_SIMD", "mmx")
    monkeypatch.setenv("EDGEINFER_SPEC", "off")
    result = run("--json")
    assert result.exit_code == 0
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert next(iter(found.values()))["name"] == "instruction-set"
    assert (found["instruction-set"]["status"], found["instruction-set"]["fix"]) == ("wrong", "unset EDGEINFER_SIMD")
    assert (found["setting-spec"]["status"], found["setting-spec"]["fix"]) == ("slow", "unset EDGEINFER_SPEC")


def test_neither_a_compiler_nor_a_terminal_is_loaded(home: Path) -> None:
    """In a process of its own, the whole command, half second included."""
    code = (
        "import sys; from edgeinfer.app.cli import build_app\n"
        "try:\n    build_app()(['doctor', '--json'])\n"
        "except SystemExit as left:\n    assert not left.code, left.code\n"
        "assert not {'numba', 'textual', 'onnxruntime', 'openvino', 'llama_cpp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"]
