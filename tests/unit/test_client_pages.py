"""Pages of clients: every client of the table has a section in the same form, for the version that the table names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "clients"
LINK = r"\[[^\]]+\]\((?P<page>[\w-]+\.md)(?:#(?P<place>[\w-]+))?\)"
ROW = re.compile(rf"^\| (?P<client>[^|]+) \| (?P<version>[^|]+) \|.*{LINK} \|$", re.M)
ROWS = [match.groupdict() for match in ROW.finditer((FOLDER / "README.md").read_text(encoding="utf-8"))]


def section_of(page: str, place: str | None) -> str:
    """The text of a page, or of the section of it that has this anchor."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    if place is None:
        return text
    sections = {part.partition("\n")[0].lower().replace(" ", "-"): part for part in re.split(r"(?m)^## ", text)[1:]}
    return sections[place]


def test_the_table_has_all_clients() -> None:
    assert len(ROWS) == 25
    assert len({row["client"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["client"])
def test_a_client_has_settings_its_version_and_what_keeps_it_silent(row: dict[str, str]) -> None:
    section = section_of(row["page"], row["place"])
    before, _, _ = section.partition("\n- Seen with ")
    assert "```" in before
    (said,) = re.findall(r"(?m)^- Seen with (.*)", section)
    assert row["version"] in said
    assert re.search(r"(?m)^- Silent: ", section)
