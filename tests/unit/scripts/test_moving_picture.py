"""The moving picture: what is on the screen at a moment is visible then, and nothing else is."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from scripts.moving_picture import Row, Run, TerminalFrame, moving_svg, spans_of
from scripts.record_app import row_of

GROUND, INK = "#121212", "#e0e0e0"
SVG = "{http://www.w3.org/2000/svg}"


def row(text: str, width: int = 12) -> Row:
    return (Run(text.ljust(width), width, INK, GROUND),)


def frame(began_s: float, *texts: str) -> TerminalFrame:
    return TerminalFrame(began_s, tuple(row(text) for text in texts))


FRAMES = (frame(0, "title", ""), frame(1, "title", "Hi"), frame(2.5, "title", "Hi there"), frame(4, "title", "Hi"))
ENDS_S, STILL_S = 8.0, 3.0


def visible(svg: str, moment_s: float) -> list[str]:
    """The texts that are shown at a moment, as a browser animates them."""
    rules = dict(re.findall(r"@keyframes (k\d+)\{((?:[\d.]+%\{[^}]*\})+)\}", svg))
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        name = (group.get("style") or "").removeprefix("animation-name:")
        steps = re.findall(r"([\d.]+)%\{visibility:(\w+)\}", rules[name]) if name else [("0", "visible")]
        state = [shown for share, shown in steps if float(share) <= 100 * moment_s / ENDS_S + 1e-9][-1]
        if state == "visible":
            found += [text.text or "" for text in group.iter(f"{SVG}text")]
    return found


@pytest.mark.parametrize(
    ("moment_s", "shown"),
    [
        (0.0, ["title"]),
        (1.0, ["title", "Hi"]),
        (3.0, ["title", "Hi there"]),
        (4.0, ["title", "Hi"]),
        (7.9, ["title", "Hi"]),
    ],
)
def test_at_each_moment_its_frame_is_shown(moment_s: float, shown: list[str]) -> None:
    svg = moving_svg(FRAMES, ENDS_S, STILL_S, GROUND, "t", "c")
    assert visible(svg, moment_s) == shown


def test_what_comes_twice_is_drawn_once_and_what_stays_is_not_animated() -> None:
    svg = moving_svg(FRAMES, ENDS_S, STILL_S, GROUND, "t", "c")
    assert svg.count(">Hi</text>") == 1
    assert svg.count(">title</text>") == 1
    assert svg.count("@keyframes") == 2
    spans = spans_of(FRAMES, ENDS_S)
    assert [(span.began_s, span.ended_s) for span in spans if span.place == 1] == [(0, 1), (1, 2.5), (2.5, 4), (4, 8)]


def test_without_animation_the_still_is_shown() -> None:
    svg = moving_svg(FRAMES, ENDS_S, STILL_S, GROUND, "t", "c")
    hidden = re.findall(r'<g class="r h"[^>]*>(.*?)</g>', svg)
    assert len(hidden) == 1
    assert ">Hi</text>" in hidden[0]
    assert "prefers-reduced-motion" in svg


def test_texts_are_as_wide_as_their_cells_and_ask_for_no_font() -> None:
    wide = (Run("  日本 <&", 9, INK, "#ff0000", is_bold=True),)
    svg = moving_svg((TerminalFrame(0, (wide,)),), 1.0, 0.0, GROUND, "<t>", "&")
    (text,) = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if each.get("textLength")]
    assert text.text == "日本 <&"
    assert float(text.get("textLength", "0")) == pytest.approx(7 * 8.4, abs=0.1)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in svg
    assert 'fill="#ff0000"' in svg


def test_cells_of_the_app_keep_their_colours() -> None:
    ground = Color.parse("#102030")
    strip = Strip(
        [
            Segment("a", Style(color="#ffffff", bgcolor="#000000")),
            Segment("b", Style(color="#ffffff", bgcolor="#000000")),
            Segment("c", Style(color="#ffffff", bgcolor="#000000", dim=True)),
            Segment("d", Style(color="#ffffff", bgcolor=ground, reverse=True)),
            Segment("e"),
        ]
    )
    runs = row_of(strip)
    assert [run.text for run in runs] == ["ab", "c", "d", "e"]
    assert runs[1].colour == "#999999"
    assert (runs[2].colour, runs[2].ground) == ("#102030", "#ffffff")
    assert sum(run.n_cells for run in runs) == 5
