"""The meters and the context bar: what they say at each width, and that they draw only what has changed."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from edgeinfer.app.tui.widgets.chat_bars import (
    ContextBar,
    ContextBarState,
    MeterFigures,
    Meters,
    context_line,
    meter_line,
)

ALL = MeterFigures(50.25, 1234.0, 1024, 8192, 1_230_000_000, 45_000_000, 1.45, 0.12)
READING = MeterFigures(n_used=1024, n_context=8192, ram_bytes=10**9, prompt=(1024, 4096))


class Line(App[None]):
    """A meter and a context bar."""

    def compose(self) -> ComposeResult:
        yield Meters()
        yield ContextBar()


def test_everything_is_there_where_there_is_room() -> None:
    assert meter_line(ALL, 140) == (
        "decode  50.2 tok/s │ prefill 1,234 tok/s │ ctx 1,024/8,192 │ RAM  1.23 GB │ KV   45 MB"
        " │  1.45 tokens per step │  0.12 J/token"
    )


def test_a_narrow_line_keeps_speed_and_context() -> None:
    assert meter_line(ALL, 40) == "decode  50.2 tok/s │ ctx 1,024/8,192"
    assert meter_line(ALL, 62) == "decode  50.2 tok/s │ prefill 1,234 tok/s │ ctx 1,024/8,192"


@pytest.mark.parametrize("width", range(10, 140, 7))
@pytest.mark.parametrize("figures", [ALL, READING, MeterFigures()])
def test_no_width_is_exceeded(figures: MeterFigures, width: int) -> None:
    assert len(meter_line(figures, width)) <= width


def test_the_same_parts_have_the_same_places_whatever_the_figures() -> None:
    other = MeterFigures(9.5, 12.0, 7, 8192, 800_000_000, 2_000_000, 1.0, 12.5)
    assert [place for place, sign in enumerate(meter_line(ALL, 140)) if sign == "│"] == [
        place for place, sign in enumerate(meter_line(other, 140)) if sign == "│"
    ]


def test_what_is_unknown_is_a_dash() -> None:
    assert meter_line(MeterFigures(), 40) == "decode     – tok/s │ ctx –/–"


def test_a_prompt_that_is_read_has_a_count_and_a_bar() -> None:
    assert meter_line(READING, 80).startswith("reading the prompt ██░░░░░░░░ 1,024 of 4,096 tokens │ ctx")
    assert meter_line(READING, 40) == "reading ██░░░░░░░░ 1,024 of 4,096"


def test_a_small_prompt_has_a_small_bar() -> None:
    assert "███" in meter_line(MeterFigures(prompt=(1, 3)), 80)
    assert "█" not in meter_line(MeterFigures(prompt=(0, 3)), 80)


async def test_an_unchanged_line_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Line().run_test(size=(100, 5)) as pilot:
        meters = pilot.app.query_one(Meters)
        drawn: list[object] = []
        before = meters.update
        monkeypatch.setattr(meters, "update", lambda *args, **kw: (drawn.append(args), before(*args, **kw)))
        meters.show(ALL)
        meters.show(MeterFigures(50.2499, 1234.1, 1024, 8192, 1_230_000_400, 45_000_000, 1.45, 0.12))
        assert len(drawn) == 1
        await pilot.pause()
        assert meters.text in str(meters.render())


async def test_both_follow_the_width() -> None:
    async with Line().run_test(size=(100, 5)) as pilot:
        meters, context = pilot.app.query_one(Meters), pilot.app.query_one(ContextBar)
        meters.show(ALL)
        context.show(3012, 120, 4096, 4)
        assert context.has_class("-cuts")
        assert context.text.endswith("the 4 oldest messages would be left out: /compact summarises them")
        await pilot.resize_terminal(40, 5)
        await pilot.pause()
        assert meters.text == "decode  50.2 tok/s │ ctx 1,024/8,192"
        assert context.text == "4 oldest left out: /compact"
        context.show(10, 0, 4096, 0)
        assert not context.has_class("-cuts")
        context.show(0, 0, 0)
        assert context.text == ""


def test_the_context_says_what_is_used_and_what_the_draft_adds() -> None:
    use = ContextBarState(3012, 120, 4096)
    assert context_line(use, 100) == ("███████████████▒░░░░ 3,012 of 4,096 tokens used, the draft adds 120, 964 left")
    assert context_line(use, 40) == "██████▒░ 3,012 + 120 of 4,096 tokens"
    long = ContextBarState(12, 220_113, 4096, is_too_long=True)
    assert context_line(long, 100).endswith("the draft is too long: 220,113 tokens, the context holds 4,096")
    assert context_line(long, 40) == "the draft is too long: 220,113 tokens"
    assert context_line(ContextBarState(0, 0, 4096), 80) == "░░░░░░░░░░░░░░░░░░░░ 0 of 4,096 tokens used, 4,096 left"


def test_one_message_is_one() -> None:
    line = context_line(ContextBarState(4000, 200, 4096, 1), 100)
    assert line.endswith("the oldest message would be left out: /compact summarises them")


@pytest.mark.parametrize("width", range(10, 120, 5))
def test_the_context_keeps_to_its_width(width: int) -> None:
    for use in (ContextBarState(3012, 120, 4096), ContextBarState(130_000, 9000, 131_072, 12)):
        assert len(context_line(use, width)) <= width
