"""Rows of kept chats: of the width there is, with the match in sight and nothing in them that steers a terminal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END, Hit, KeptSession
from edgeinfer.app.tui.widgets.session_list import (
    AGE_WIDTH,
    ChatRow,
    age_word,
    content_of,
    rows_of_hits,
    rows_of_sessions,
)

NOW_S = 1_700_000_000.0


@given(
    title=st.text(),
    snippet=st.text(st.characters(exclude_characters=MARK_BEGIN)),
    width=st.integers(24, 200),
    message=st.none() | st.just(3),
    is_open=st.booleans(),
)
def test_rows_are_as_wide_as_there_is_room(
    title: str, snippet: str, width: int, message: int | None, is_open: bool
) -> None:
    row = ChatRow(1, title, NOW_S - 50, message, f"{snippet}{MARK_BEGIN}match{MARK_END}{snippet}", "you", 3, "model")
    lines = content_of(row, width, NOW_S, is_open=is_open).split("\n")
    assert len(lines) == (1 if message is None else 2)
    assert lines[0].cell_length == width
    assert lines[-1].cell_length <= width
    if message is not None:
        assert "match" in lines[1].plain
    assert not any(c < " " or "\x7f" <= c <= "\x9f" for line in lines for c in line.plain)


def test_columns_come_with_the_width() -> None:
    (row,) = rows_of_sessions([KeptSession(1, "t [b]x[/]", None, "tiny", None, 0, NOW_S - 7200, 12)])
    narrow, middle, wide = (content_of(row, width, NOW_S, is_open=True).plain for width in (40, 60, 100))
    assert narrow.split() == ["•", "t", "[b]x[/]", "2", "h"]
    assert middle.split()[-3:] == ["12", "2", "h"]
    assert wide.split()[-4:] == ["tiny", "12", "2", "h"]
    assert "untitled" in content_of(ChatRow(1, " ", 0), 60, NOW_S, is_open=False).plain


def test_a_title_is_shown_only_where_nothing_else_was_found() -> None:
    hits = [
        Hit(1, "tea", -1, "user", f"{MARK_BEGIN}tea{MARK_END}", 0),
        Hit(1, "tea", 7, "assistant", f"green {MARK_BEGIN}tea{MARK_END}", 0),
        Hit(2, "tea too", -1, "user", f"{MARK_BEGIN}tea{MARK_END} too", 0),
    ]
    rows = rows_of_hits(hits)
    assert [(row.session, row.message) for row in rows] == [(1, 7), (2, None)]
    content = content_of(rows[1], 40, NOW_S, is_open=False)
    assert content.plain.strip().startswith("tea too")
    assert [content.plain[span.start : span.end] for span in content.spans if "bold" in str(span.style)] == ["tea"]


@pytest.mark.parametrize(
    ("age_s", "word"),
    [(-5, "now"), (59, "now"), (61, "1 min"), (3599, "59 min"), (7200, "2 h"), (6 * 86_400, "6 d")],
)
def test_ages(age_s: float, word: str) -> None:
    assert age_word(NOW_S - age_s, NOW_S) == word


def test_old_ones_have_their_day() -> None:
    day = time.mktime((2023, 3, 12, 12, 0, 0, 0, 0, -1))
    assert age_word(day, NOW_S).startswith("12 ")
    assert age_word(day, NOW_S + 2 * 365 * 86_400).endswith(" 2023")
    assert len(age_word(0.0, NOW_S)) <= AGE_WIDTH
