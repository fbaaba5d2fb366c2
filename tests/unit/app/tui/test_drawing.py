"""Blocks as lines of cells: nothing of them is left out in any width, and none of them takes too long."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it.token import Token
from rich.style import Style

from edgeinfer.app.tui.text import markdown
from edgeinfer.app.tui.text.drawing import MOST_SIGNS, Drawer, Palette, text_of
from edgeinfer.app.tui.text.markdown import block_parser
from edgeinfer.app.tui.widgets.entries import AnswerEntry

CODE = 'def f(x):\n    """One\n    two"""\n    return {"a": x}  # why\n'
LETTERS = "abcdefghijkl"


def shown(text: str, width: int = 60, palette: Palette | None = None) -> str:
    """A text as it is seen."""
    return text_of(AnswerEntry(1, text).lines(Drawer(width, palette or Palette())))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(6, 60), st.sampled_from(("", "> ", "- ")))
def test_every_cell_of_a_table_is_shown_in_any_width(n_columns: int, n_letters: int, width: int, around: str) -> None:
    rows = ["X|" * n_columns, "-|" * n_columns, "".join(f"{letter * n_letters}|" for letter in LETTERS[:n_columns])]
    counts = Counter(
        shown("\n".join(f"{'  ' if around == '- ' and i else around}|{row}" for i, row in enumerate(rows)), width)
    )
    assert [counts[letter] for letter in LETTERS[:n_columns]] == [n_letters] * n_columns
    assert counts["X"] == n_columns


def test_a_narrow_table_names_its_cells() -> None:
    table = "| name | size | |\n|-|-|-|\n| a | 1 | x |\n| b | 2 | y |"
    assert shown(table, 20).rstrip() == "name: a\nsize: 1\nx\n\nname: b\nsize: 2\ny"
    assert shown("| name | size |\n|-|-|", 10).rstrip() == "name\nsize"


@pytest.mark.parametrize(
    "text",
    [
        "".join("  " * depth + f"- {letter * 7}\n" for depth, letter in enumerate(LETTERS[:7])),
        "".join("    " * depth + f"10. {letter * 7}\n" for depth, letter in enumerate(LETTERS[:7])),
        "> > > - - aaaaaaa",
        "> > ```\n> > aaaaaaa\n> > ```",
        "> > | X | Y |\n> > |-|-|\n> > | aaaaaaa | bbbbbbb |",
    ],
)
@pytest.mark.parametrize("width", [*range(3, 40, 3), 100])
def test_nothing_is_left_out_however_little_room_there_is(text: str, width: int) -> None:
    counts = Counter(shown(text, width))
    assert all(counts[letter] >= text.count(letter) for letter in LETTERS)


@pytest.mark.parametrize("theme", ["ansi_dark", "ansi_light", "monokai", "friendly"])
def test_code_has_the_same_colours_at_the_top_and_in_items(theme: str) -> None:
    drawer = Drawer(60, Palette(code_theme=theme))
    inside = "".join(f"   {line}\n" for line in CODE.splitlines())
    top, item = AnswerEntry(1, f"```python\n{CODE}```"), AnswerEntry(2, f"1. x\n\n   ```python\n{inside}   ```")
    colours = [
        [
            (segment.text.strip(), segment.style and segment.style.color)
            for line in answer.lines(drawer)
            for segment in line
        ]
        for answer in (top, item)
    ]
    words = [
        [word for word in found if word[0].strip("─") not in ("", "1. x", "1.", "x", " 1 python ")] for found in colours
    ]
    assert words[0]
    assert words[0] == words[1]
    assert len({colour for _, colour in words[0]}) > 2


def test_code_has_no_colours_where_none_are_wanted() -> None:
    lines = Drawer(60, Palette(has_colour=False)).code(CODE, "python")
    styles = [segment.style or Style.null() for line in lines for segment in line]
    assert all(style.color is None and style.bgcolor is None for style in styles)
    assert text_of(lines) == CODE.rstrip()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.sampled_from(("", "python", "no such language")))
def test_lines_of_code_that_are_too_long_are_broken(width: int, language: str) -> None:
    lines = Drawer(width, Palette()).code(CODE * 2, language)
    assert all(line.cell_length <= width for line in lines)
    assert "".join(text_of(lines).split()) == "".join((CODE * 2).split())


def test_too_many_signs_are_shown_as_they_are() -> None:
    text = "*_" * MOST_SIGNS
    assert "".join(shown(text).split()) == text
    assert shown("*word* " * 10).split() == ["word"] * 10


def test_tabs_of_tinted_text_stand_where_they_would() -> None:
    answer = AnswerEntry(1, "ab\tc\r\nd\te\r\nf")
    answer.runs = ((1, None), (2, "ngram"), (2, None), (1, "ngram"))
    answer.toggle_tint()
    assert text_of(answer.lines(Drawer(40, Palette()))[:3]) == "ab  c\nd   e\nf"


@pytest.mark.parametrize(
    "text",
    [
        "- item\n\n  ```python\n  x = 1\n  ```\n\n" * 100,
        "- item\n" + "  ```python\n  x = 1\n  ```\n\n" * 100,
        "- item\n" + "  ```\n" * 401,
        "text\n" + "```\nx\n```\n" * 100,
    ],
)
def test_fences_in_items_are_found_in_about_one_look(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_lines: list[int] = []

    class Counting:
        def parse(self, source: str) -> list[Token]:
            n_lines.append(source.count("\n"))
            return block_parser().parse(source)

    monkeypatch.setattr(markdown, "block_parser", Counting)
    assert "".join(block.source for block in markdown.blocks_of(text)).count("x") == text.count("x")
    assert sum(n_lines) < 20 * text.count("\n")


@pytest.mark.parametrize(
    "prose", ["Run `a | b | c` or a | b.\nThen c | d.", "| is a pipe\n|| is or", "x | y\n--- and so on | z"]
)
def test_prose_with_pipes_is_no_table(prose: str) -> None:
    assert shown(prose, 80).split() == prose.replace("`", "").split()


MIXED = "مرحبا بالعالم، 12 يوما.\n\n| اسم | 名前 |\n|-|-|\n| ألف | 家族 👨\u200d👩\u200d👧 |\n\nEnd."


@pytest.mark.parametrize("width", [8, 20, 40, 100])
def test_an_answer_of_many_scripts_is_shown_as_it_grows(width: int) -> None:
    for end in range(1, len(MIXED) + 1):
        lines = AnswerEntry(1, MIXED[:end]).lines(Drawer(width, Palette()))
        assert all(line.cell_length <= width for line in lines)
    found = Counter(shown(MIXED, width))
    letters = [sign for sign in MIXED if sign.isalnum()]
    assert all(found[letter] >= letters.count(letter) for letter in set(letters))
