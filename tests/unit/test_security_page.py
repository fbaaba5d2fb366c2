"""SECURITY.md names defences and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([\w/.]+(?:\.py|/\w+))`")


def rows() -> list[list[str]]:
    """The cells of all tables, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] != "attack"]


def test_every_attack_has_a_defence_and_a_test() -> None:
    assert len(rows()) > 30
    for attack, defence, proof in rows():
        assert defence, attack
        tests = NAME.findall(proof)
        assert tests, attack
        for test in tests:
            assert (ROOT / "tests" / test).is_file(), f"{attack}: there is no {test}"
            assert "def test" in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_files_that_defend_are_there() -> None:
    named = {name for _, defence, _ in rows() for name in NAME.findall(defence)}
    assert len(named) > 15
    package = ROOT / "edgeinfer"
    assert [
        name for name in named if not any((each / name).exists() for each in (package, package / "app/server"))
    ] == []
