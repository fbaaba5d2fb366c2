"""What the panels of the machine screen say for given readings, at several widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.app.readings.records import (
    CoreReading,
    Cores,
    DraftingReading,
    Energy,
    PlanStrip,
    Reached,
    Roofline,
    Stretch,
)
from edgeinfer.app.tui.widgets.machine_charts import plan_lines, roofline_lines
from edgeinfer.app.tui.widgets.machine_panels import Line, core_lines, draft_lines, energy_lines, memory_lines, plain
from edgeinfer.app.tui.widgets.roofline_plot import ACROSS, BRAILLE, GUTTER, UP
from tests.app.tui.machine_source import CORES, DRAFTING, ENERGY, MEMORY, ROOFLINE, STORED, TWO_DEVICES, one_device


def test_layers_of_one_device_are_a_strip_with_sums() -> None:
    assert plain(plan_lines(one_device(), 40)) == [
        "SmolLM2-135M",
        "cpu, 4 ms a token, one at a time",
        "███▓▓▓███▓▓▓███▓▓▓███▓▓▓███▓▓▓██████████",
        "30 layers 3 ms, each 100 µs",
        "head 1 ms",
        "products 88 %, attention 10 %, others 2 %",
        "stages measured",
    ]


def test_layers_that_are_read_look_different_and_say_how_fast() -> None:
    lines = plain(plan_lines(one_device(n_read=12), 64))
    assert lines[2].count("░") == pytest.approx(64 * 0.3, abs=1)
    assert "12 of 31 stages stay whole, 1.20 GB" in lines
    assert "2.30 GB a token from disk, 2.10 GB/s" in lines
    assert "83 % of the time waiting for it" in lines


def test_several_devices_have_a_strip_each_on_one_axis_of_time() -> None:
    lines = plain(plan_lines(TWO_DEVICES, 59))
    cpu, cuda = lines[2], lines[3]
    assert cpu == "cpu      " + "█" * 5 + " " * 20 + "▓" * 25
    assert cuda == "cuda     " + " " * 5 + "█" * 25 + " " * 20
    assert "both work in 20 % of the lesser's time" in lines
    assert lines[1] == "cpu+cuda, 10 ms in the last pass"


def test_a_plan_that_was_not_measured_says_so_and_how_it_could_be() -> None:
    stretches = (Stretch("cpu", "blk.0", 0.0, 0.5), Stretch("cpu", "head", 0.5, 1.0))
    lines = plain(plan_lines(PlanStrip("m", "cpu", stretches, None, "by bytes", note="r measures each op"), 40))
    assert lines == ["m", "cpu", "█" * 40, "not measured yet; r measures each op"]
    assert plain(plan_lines(PlanStrip(note="no model is loaded yet"), 40)) == ["no model is loaded yet"]


def test_a_models_name_cannot_control_the_terminal() -> None:
    assert "\x1b" not in "".join(plain(plan_lines(replace(one_device(), model="a\x1b[2Jb"), 40)))


def _column_and_row(lines: list[str], letter: str) -> tuple[int, int]:
    return next((text.index(letter), row) for row, text in enumerate(lines) if letter in text)


@pytest.mark.parametrize("height", [pytest.param(9, id="compact"), pytest.param(16, id="with_words")])
def test_the_roof_rises_and_then_is_level_with_both_phases_below_it(height: int) -> None:
    lines = plain(roofline_lines(ROOFLINE, 40, height))
    axis = next(row for row, text in enumerate(lines) if "└" in text)
    plot, words = [text for text in lines[:axis] if "┤" in text or "│" in text], lines[-3:]
    tops = [
        min(row for row, text in enumerate(plot) if text[column] != " ")
        for column in range(GUTTER, 40)
        if not any(text[column] in "PD" for text in plot)
    ]
    assert tops == sorted(tops, reverse=True), "the roof never falls"
    assert tops[0] > tops[-1]
    decode, prefill = _column_and_row(plot, "D"), _column_and_row(plot, "P")
    assert decode[0] < prefill[0], "decoding has fewer multiply-adds for a byte"
    assert decode[1] > prefill[1], "and does fewer of them"
    assert words == [
        "P 2.0 GB/s, 200 G/s, 71 % of roof",
        "D 30.0 GB/s, 30 G/s, 75 % of roof",
        "roof 40.0 GB/s, 280 G multiply-adds/s",
    ]


@pytest.mark.parametrize("width", [40, 60, 90])
def test_the_axes_say_what_they_show_and_their_figures_are_where_the_roof_is(width: int) -> None:
    lines = plain(roofline_lines(ROOFLINE, width, 20))
    assert lines[0] == UP
    axis = next(row for row, text in enumerate(lines) if "└" in text)
    assert lines[axis + 2].strip() == ACROSS
    columns = [column for column, sign in enumerate(lines[axis]) if sign == "┴"]
    figures = lines[axis + 1].split()
    assert len(columns) == len(figures)
    marks = dict(zip(map(float, figures), columns, strict=True))
    assert list(marks) == sorted(marks)
    rates = {text[: GUTTER - 2].strip(): row for row, text in enumerate(lines) if "┤" in text}
    assert all(rate.endswith((" G", " T")) for rate in rates)
    # the ridge lies at 280 / 40 = 7 multiply-adds a byte, 280 G a second: right of 3, left of 10, above 100 G
    level = next(row for row, text in enumerate(lines[1:axis], 1) if text[-1] != " ")
    ridge = next(column for column, sign in enumerate(lines[level]) if column >= GUTTER and sign != " ")
    assert marks[3] < ridge < marks[10]
    assert rates["500 G"] < level < rates["100 G"]


def test_a_small_plot_names_the_unit_of_its_axis_and_a_very_small_one_has_none() -> None:
    small = plain(roofline_lines(ROOFLINE, 52, 9))
    assert small[-4].endswith("a byte")
    assert "└" not in "".join(plain(roofline_lines(ROOFLINE, 27, 9)))


def test_where_there_is_room_everything_is_spelt() -> None:
    words = plain(roofline_lines(ROOFLINE, 60, 12))[-3:]
    assert words[1] == "D decode  30.0 GB/s, 30 G multiply-adds/s, 75 % of roof"


def test_without_a_profile_there_are_dots_but_no_roof() -> None:
    roofline = Roofline((Reached("decode", 3e10, 30e9),), note="edgeinfer probe measures the roof")
    lines = plain(roofline_lines(roofline, 40, 10))
    assert not any(ord(sign) >= BRAILLE for text in lines for sign in text)
    assert any("D" in text for text in lines[:-2])
    assert lines[-2:] == ["D 30.0 GB/s, 30 G multiply-adds/s", "edgeinfer probe measures the roof"]


def test_where_there_is_no_room_for_a_plot_there_are_words() -> None:
    assert plain(roofline_lines(ROOFLINE, 40, 4)) == plain(roofline_lines(ROOFLINE, 40, 12))[-3:]
    assert plain(roofline_lines(Roofline(note="no model is loaded yet"), 40, 10)) == ["no model is loaded yet"]


def test_cores_have_bars_of_their_share_and_say_how_fast_they_were() -> None:
    lines = plain(core_lines(CORES, 40, 10))
    assert lines == [
        "3 of 4 workers, last step 2.7 ms",
        "  0 P ███████████  40 % ×1.00 busy  97 %",
        "  1 P ███████████  40 % ×0.98 busy  95 %",
        "  2 E ██████░░░░░  20 % ×0.51 busy  90 %",
        "  3 L ░░░░░░░░░░░   – %       busy   2 %",
    ]
    assert plain(core_lines(CORES, 60, 10))[1].endswith(" 4.8 GHz")


def test_cores_that_have_no_room_are_counted() -> None:
    many = Cores(tuple(CoreReading(number) for number in range(64)))
    lines = plain(core_lines(many, 40, 10))
    assert len(lines) == 10
    assert lines[0] == "64 cores, no model is loaded yet"
    assert lines[-1] == "and 56 more"


def test_workers_without_a_core_of_their_own_are_listed_after_the_cores() -> None:
    cores = Cores((CoreReading(0), CoreReading(0, "", True, 1.0, 1.0)), 1, 1, 1e-3, "workers have no core of their own")
    assert plain(core_lines(cores, 50, 10))[-1].startswith(" w0 ")


def test_drafters_are_counted_for_the_last_answer_and_for_all() -> None:
    lines = plain(draft_lines(DRAFTING, 40, 10))
    assert lines[:4] == [
        "1.45 tokens per step in the last answer",
        "drafter       last answer  since loaded",
        "ngram            12 of 20    120 of 200",
        "recycling         9 of 45     90 of 450",
    ]
    assert lines[4:] == ["a pass of 1 token takes 2.6 ms", "2 tokens ×1.12, 4 ×1.35, 8 ×2.31"]
    assert plain(draft_lines(DRAFTING, 80, 10))[2].endswith("██████░░░░  60 %")
    timed = plain(draft_lines(replace(DRAFTING, time_share=0.018), 40, 10))
    assert timed == [*lines[:4], "drafting took 1.8 % of the last answer", *lines[4:]]


def test_no_drafting_is_said() -> None:
    assert plain(draft_lines(DraftingReading(), 40, 10)) == ["nothing is drafted with this model"]
    assert plain(draft_lines(DraftingReading(is_on=True), 40, 10)) == ["nothing was drafted yet"]


def test_memory_is_in_bars_of_what_it_is_a_part_of() -> None:
    assert plain(memory_lines(MEMORY, 50)) == [
        "machine   10.00 GB / 16.00 GB ████████████░░░░░░░░",
        "process    1.50 GB / 16.00 GB ██░░░░░░░░░░░░░░░░░░",
        "weights    1.10 GB / 16.00 GB █░░░░░░░░░░░░░░░░░░░",
        "KV cache     30 MB / 200 MB   ███░░░░░░░░░░░░░░░░░",
        "          1,280 of 8,448 tokens",
        "available  6.00 GB",
    ]
    assert "2.30 GB a token from disk, 2.10 GB/s" in plain(memory_lines(replace(MEMORY, stored=STORED), 50))
    known = plain(memory_lines(replace(MEMORY, buffer_bytes=30_000_000, program_bytes=340_000_000), 50))
    assert known[5:7] == ["buffers      30 MB", "program     340 MB"]


def test_energy_that_nobody_tells_is_said_so() -> None:
    assert plain(energy_lines(Energy(), 40)) == [
        "governor  no model is loaded yet",
        "power     not reported by this system",
        "battery   none, or not reported",
        "CPU       not reported by this system",
    ]
    assert plain(energy_lines(ENERGY, 40))[1:] == [
        "power     14.2 W, all programs together",
        "energy    0.12 J a token, last answer",
        "battery   80 %, plugged in",
        "CPU       71 of 95 °C",
    ]


@pytest.mark.parametrize("width", [36, 40, 48, 60, 96, 200])
def test_lines_keep_to_the_width(width: int) -> None:
    pages: list[list[Line]] = [
        plan_lines(replace(one_device(12), kinds=()), width),
        plan_lines(TWO_DEVICES, max(width, 38)),
        core_lines(CORES, width, 10),
        memory_lines(MEMORY, width),
        energy_lines(replace(ENERGY, policy="quiet: 2 of 4 cores, computing 60 % of the time, on battery"), width),
    ]
    for text in (text for page in pages for text in plain(page)):
        assert len(text) <= max(width, 40)
