"""Drawings: those in the repository are those that the script draws, complete, and load nothing."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from scripts.docs_site.assemble import ROOT
from scripts.docs_site.drawings import DRAWINGS, Drawing

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_files_are_up_to_date(name: str) -> None:
    """Else: `python -m scripts.docs_site.drawings docs/pictures`."""
    assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == DRAWINGS[name]().svg()


@pytest.mark.parametrize("name", DRAWINGS)
def test_it_is_whole_and_loads_nothing(name: str) -> None:
    drawing = DRAWINGS[name]()
    root = ElementTree.fromstring(drawing.svg())
    assert root.find(f"{SVG}title") is not None
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("x", 0)) + float(box.get("width", 0)) <= drawing.width
        assert float(box.get("y", 0)) + float(box.get("height", 0)) <= drawing.height
    assert not [each for each in root.iter() if each.get("href") or each.tag in (f"{SVG}script", f"{SVG}image")]


def test_words_are_text() -> None:
    drawing = Drawing(10, 10, "a < b")
    drawing.words(1, 1, "<script> & co")
    root = ElementTree.fromstring(drawing.svg())
    assert [text.text for text in root.iter(f"{SVG}text")] == ["<script> & co"]
