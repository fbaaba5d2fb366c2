"""Pictures: well-formed whatever the texts are, readable in light and dark, bars as long as their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.charts.page import ChartPage, check_chart, write_chart
from edgeinfer.app.charts.panels import (
    Bar,
    BarGroup,
    BarPanel,
    BarPart,
    ChartCurve,
    CurvePanel,
    PartedRow,
    PartsPanel,
    Spot,
    shortened,
)
from edgeinfer.app.charts.svg import DARK, LIGHT, Drawing
from edgeinfer.errors import BadSetting
from tests.unit.app.charts.drawn import inside, rects, texts

HOSTILE = "<script>alert('\"&')</script>\x1b[2J\x00\u202e"


def page(*panels: BarPanel | PartsPanel | CurvePanel) -> str:
    return ChartPage("title", ("told",), panels, ("note",), "edgeinfer bench").svg()


def bars(*values: float) -> BarPanel:
    return BarPanel("speed", "tok/s", (BarGroup("512 tokens", tuple(Bar(f"b{v}", v, 0) for v in values)),))


def test_texts_of_files_are_texts_and_nothing_else() -> None:
    drawn = Drawing(100, HOSTILE)
    drawn.text(1, 2, HOSTILE)
    drawn.rect(0, 0, 10, 10, "f0", HOSTILE)
    drawn.dot(1, 1, "f0", HOSTILE)
    svg = drawn.render(50)
    assert texts(svg) == ["<script>alert('\"&')</script>[2J"]
    assert "\x1b" not in svg
    assert "\u202e" not in svg


def test_bars_are_as_long_as_their_values() -> None:
    svg = page(bars(10.0, 20.0, 40.0))
    (zero, ten), (_, twenty), (_, forty) = rects(svg, "f0")
    assert twenty == pytest.approx(2 * ten, abs=0.2)
    assert forty == pytest.approx(4 * ten, abs=0.3)
    assert zero == rects(svg, "f0")[2][0]
    assert [text for text in texts(svg) if text in ("10", "20", "40")][:3]
    assert texts(svg)[:4] == ["title", "told", "speed", "0"]
    assert texts(svg)[-2:] == ["note", "$ edgeinfer bench"]
    inside(svg)


def test_every_colour_has_one_for_dark_pages_that_differs() -> None:
    svg = page(bars(1.0))
    light, _, dark = svg.partition("@media (prefers-color-scheme:dark)")
    for number_of, (one, other) in enumerate(zip(LIGHT, DARK, strict=True)):
        assert one != other
        assert f".f{number_of}{{fill:{one}}}" in light
        assert f".f{number_of}{{fill:{other}}}" in dark


def test_a_bar_shows_the_least_and_the_most_of_its_runs() -> None:
    svg = page(BarPanel("", "s", (BarGroup("", (Bar("a", 10, 1, 5, 20),)),)))
    assert svg.count('class="range"') == 3
    inside(svg)


def test_parts_lie_end_to_end_and_a_part_without_a_style_is_a_gap() -> None:
    parts = (BarPart("first", 1.0, "f0"), BarPart("waits", 2.0, ""), BarPart("last", 1.0, "f1"))
    svg = page(PartsPanel("time", "ms", (PartedRow("cpu", parts, "4 ms"),), (("work", "f0"),)))
    ((start, width),) = [each for each in rects(svg, "f0") if each[1] != 11]  # 11: in the legend
    ((last, _),) = rects(svg, "f1")
    assert last == pytest.approx(start + 3 * width, abs=0.3)
    inside(svg)


@pytest.mark.parametrize("limit", [pytest.param(2.0, id="near"), pytest.param(1e6, id="far")])
def test_a_limit_is_marked_where_it_is_near_and_named_always(limit: float) -> None:
    rows = (PartedRow("memory", (BarPart("weights", 1.0, "f0"),), "1 GB", limit, f"of {limit:g} GB"),)
    svg = page(PartsPanel("", "GB", rows, ()))
    assert f"1 GB of {limit:g} GB" in texts(svg)
    assert ('class="range"' in svg) == (limit == 2.0)
    inside(svg)


def test_curves_and_spots_lie_on_the_same_axes() -> None:
    roof = ChartCurve("roof", ((1.0, 10.0), (10.0, 100.0), (100.0, 100.0)), "l0")
    svg = page(CurvePanel("", "madds a byte", "G madds/s", (roof,), (Spot("decode", (1.0, 10.0), "f1"),)))
    assert "madds a byte" in texts(svg)
    assert "G madds/s" in texts(svg)
    first = svg.partition('<path d="M')[2].partition("L")[0].split()
    assert f'<circle cx="{first[0]}" cy="{first[1]}"' in svg
    inside(svg)


def test_long_names_are_cut_with_an_ellipsis() -> None:
    assert shortened("x" * 100, 80).endswith("x…")
    assert shortened("short", 80) == "short"


@pytest.mark.parametrize(
    ("name", "told"),
    [("a.png", ".svg, not one with .png"), ("a", "without a suffix"), ("no/a.svg", "there is no folder")],
    ids=["png", "bare", "folder"],
)
def test_other_kinds_of_files_are_refused_with_what_would_work(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--chart") as raised:
        check_chart(tmp_path / name)
    assert told in str(raised.value)


def test_a_chart_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(BadSetting, match="is a folder"):
        check_chart(tmp_path / "a.svg")
    with pytest.raises(BadSetting, match="cannot be written"):
        write_chart(ChartPage("t", (), ()), tmp_path / "a.svg")
