"""CHANGELOG.md: the newest release first, changes under the headings that users look for, links that lead somewhere."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
RELEASE = re.compile(r"## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2}(?:, not published)?)\)")
KINDS = ["Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"]
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def headings(mark: str) -> list[str]:
    return [line for line in LINES if line.startswith(f"{mark} ")]


def test_releases_have_versions_and_dates_and_the_newest_is_first() -> None:
    found = [RELEASE.fullmatch(line) for line in headings("##")]
    assert all(found), headings("##")
    versions = [Version(match[1]) for match in found if match]
    assert all(newer > older for newer, older in pairwise(versions))
    assert [match[2] for match in found if match][1:].count("unreleased") == 0


def test_changes_stand_under_the_usual_headings_in_their_order() -> None:
    releases = "\n".join(LINES).split("\n## ")[1:]
    for release in releases:
        kinds = [line.removeprefix("### ") for line in release.splitlines() if line.startswith("### ")]
        assert kinds
        assert [KINDS.index(kind) for kind in kinds] == sorted({KINDS.index(kind) for kind in kinds})
        for part in re.split(r"^#{3,4} .*$", release, flags=re.MULTILINE)[1:]:
            changes = [line for line in part.splitlines() if line]
            assert all(line.startswith(("- ", "  ")) for line in changes), changes


def test_links_lead_to_files_that_are_there() -> None:
    targets = [target for line in LINES for target in LINK.findall(line)]
    assert len(targets) > 4
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
