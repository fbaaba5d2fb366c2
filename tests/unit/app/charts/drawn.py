"""Reads a drawn picture: its texts, and the places of its shapes."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def root_of(svg: str) -> ElementTree.Element:
    """The picture, which must be well-formed and ask for nothing from outside."""
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "@import" not in svg
    assert "<script" not in svg
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    """All lines of text, in the order in which they are drawn."""
    return [each.text or "" for each in root_of(svg).iter(f"{SVG}text")]


def rects(svg: str, style: str) -> list[tuple[float, float]]:
    """Left end and width of all rectangles of a style."""
    found = [each for each in root_of(svg).iter(f"{SVG}rect") if each.get("class") == style]
    return [(float(each.get("x", "0")), float(each.get("width", "0"))) for each in found]


def inside(svg: str) -> None:
    """Every shape and text begins within the picture."""
    root = root_of(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for each in root.iter():
        for name, most in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            place = each.get(name)
            assert place is None or 0 <= float(place) <= most, (each.tag, each.attrib, each.text)
