"""`edgeinfer probe`: what was measured is kept, printed as TOML or JSON, and can be planned with."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app import machine_profile
from edgeinfer.app.cli import build_app
from edgeinfer.engine.probing.machine import fingerprint_of
from edgeinfer.engine.profiles import ProfileStore
from edgeinfer.scheduling.profile import Profile
from edgeinfer.scheduling.profile_toml import parse_profile, read_profile
from edgeinfer.scheduling.topology import read_topology
from tests.unit.scheduling.profiles import machine


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


def test_a_file_that_cannot_be_written_is_named(measured: list[dict[str, object]], tmp_path: Path) -> None:
    result = run("--out", str(tmp_path / "no" / "such" / "folder.toml"))
    assert result.exit_code == 1
    assert "folder.toml cannot be written" in result.stderr
    assert not measured  # known before anything took time
    result = run("--out", str(tmp_path))
    assert result.exit_code == 1
    assert "cannot be written: Is a directory" in result.stderr
