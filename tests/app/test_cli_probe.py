"""`edgeinfer probe`: what was measured is kept, printed as TOML or JSON, and can be planned with."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.plans import measured as machine_profile
from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.probing import combination
from edgeinfer.scheduling.machine.profile import DeviceRates, Link, Profile
from edgeinfer.scheduling.machine.profile_file import parse_profile, read_profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.unit.scheduling.profiles import device, machine


@pytest.fixture
def measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What each probe was asked for."""
    asked: list[dict[str, object]] = []

    def probe(*, short: bool, **options: object) -> Profile:
        asked.append({"short": short, **options})
        return replace(machine(), fingerprint=fingerprint_of(read_topology()), short=short, idle_share=0.98)

    monkeypatch.setattr(machine_profile, "measured_profile", probe)
    return asked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["probe", *arguments])


@pytest.mark.usefixtures("measured")
def test_the_profile_is_printed_and_kept(tmp_path: Path) -> None:
    result = run("--out", str(tmp_path / "here.toml"))
    assert result.exit_code == 0, result.output
    kept = ProfileStore().find(fingerprint_of(read_topology()))
    assert kept is not None
    assert parse_profile(result.stdout, "stdout") == kept == read_profile(tmp_path / "here.toml")
    assert "kept in" in result.stderr


@pytest.mark.usefixtures("measured")
def test_json_has_the_tables_of_the_file_and_where_it_is() -> None:
    record = json.loads(run("--json").stdout)
    path = Path(record.pop("path"))
    assert record == tomllib.loads(path.read_text())


@pytest.mark.usefixtures("measured")
def test_a_short_look_does_not_replace_a_whole_profile() -> None:
    assert run("--short").exit_code == 0
    first = ProfileStore().find(fingerprint_of(read_topology()))
    assert first is not None
    assert first.short
    run()
    assert "measured before" in run("--short").stderr
    kept = ProfileStore().find(fingerprint_of(read_topology()))
    assert kept is not None
    assert not kept.short


def test_some_cores_alone_are_no_profile_of_the_machine(measured: list[dict[str, object]]) -> None:
    result = run("--cores", "0", "--json")
    assert json.loads(result.stdout)["path"] is None
    assert measured[0]["cores"] == (0,)
    assert ProfileStore().find(fingerprint_of(read_topology())) is None


@pytest.fixture
def opened(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, DeviceOptions]]:
    """Other devices that were measured, and what they were opened with; the machine was before."""
    found: list[tuple[str, DeviceOptions]] = []

    def rates(name: str, options: DeviceOptions, *others: object) -> DeviceRates:
        found.append((name, options))
        return device(name, link=Link(1e10, 1e10, 1e-6))

    monkeypatch.setattr(combination, "accelerator_rates", rates)
    ProfileStore().save(replace(machine(), fingerprint=fingerprint_of(read_topology())))
    return found


def test_other_devices_are_measured_on_as_many_cores_and_kept(opened: list[tuple[str, DeviceOptions]]) -> None:
    result = run("--device", "openvino", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    (name, options), *others = opened
    assert (name, options.n_workers, others) == ("openvino", 1, [])
    path = Path(json.loads(result.stdout)["path"])
    assert "-openvino-1" in path.name
    assert [rates.name for rates in read_profile(path).devices] == ["cpu", "openvino"]
    assert str(path) in run("--device", "openvino", "--threads", "1").stderr.replace("\n", "")


def test_other_devices_have_no_short_look(opened: list[tuple[str, DeviceOptions]]) -> None:
    result = run("--device", "openvino", "--short")
    assert result.exit_code == 1
    assert "--short measures this machine alone" in result.stderr
    assert not opened


def test_the_cpu_alone_is_this_machine(measured: list[dict[str, object]]) -> None:
    result = run("--device", "cpu", "--short", "--json")
    assert result.exit_code == 0, result.output
    assert [asked["short"] for asked in measured] == [True]
    assert json.loads(result.stdout)["path"] == str(ProfileStore().path(fingerprint_of(read_topology())))
    assert len([*ProfileStore().folder.glob("*.toml")]) == 1


def test_a_file_that_cannot_be_written_is_named(measured: list[dict[str, object]], tmp_path: Path) -> None:
    result = run("--out", str(tmp_path / "no" / "such" / "folder.toml"))
    assert result.exit_code == 1
    assert "folder.toml cannot be written" in result.stderr
    assert not measured  # known before anything took time
    result = run("--out", str(tmp_path))
    assert result.exit_code == 1
    assert "cannot be written: Is a directory" in result.stderr
