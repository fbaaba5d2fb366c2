"""Texts of models as the screen has them: harmless, and the same however they came."""

from __future__ import annotations

import unicodedata
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.strip import Strip

from edgeinfer.app.tui.text.drawing import Drawer, Palette, text_of
from edgeinfer.app.tui.text.growing_lines import LEAST_S, MOST_S, SHARE, GrowingLines, GrowingPlain, pause_s
from edgeinfer.app.tui.text.markdown import Block, GrowingBlocks, blocks_of, fences_of
from edgeinfer.app.tui.text.neutral import NeutralStream, neutral
from edgeinfer.app.tui.text.thinking import Section, sections_of
from edgeinfer.app.tui.widgets.entries import AnswerEntry

PIECES = (
    *(
        "# h",
        "## h2",
        "- a",
        "* b",
        "  c",
        "1. x",
        "> q",
        "    code",
        "text",
        "**b**",
        "`c`",
        "[a](http://b)",
        "![i](j)",
    ),
    *(
        "```py",
        "```",
        "````",
        "~~~",
        "  ```",
        "| a | b |",
        "|---|---|",
        "| 1 |",
        "---",
        "===",
        "x = 1",
        "[a]: b",
        "<b>",
    ),
    *(
        "\n",
        "\n\n",
        " ",
        "\t",
        "\r\n",
        "\r",
        "<think>",
        "</think>",
        "é",
        "你好",
        "👩‍🚀",
        "\u202e",
        "\u200b",
        "\x1b[31m",
    ),
    *("2) y", "-", "- [ ] t", "   d", "\n\n</think>\n", "</reasoning>", "&#13;", "&#x202e;", "&NewLine;", "> - "),
    *("\x1b]0;t\x07", "\x9b2J", "\x00", "\x08", "\u2028", "ا", "\ud800", "&amp;", "\\", "_", "~~s~~", "a" * 90),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=24).map("".join)
SIZES = st.lists(st.integers(1, 9), max_size=80)
ALLOWED = {"\n", "\t"}


def cut(text: str, sizes: list[int]) -> list[str]:
    """A text in pieces of these lengths, the rest as the last one."""
    places = [0, *(place for place in accumulate(sizes) if place < len(text)), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]


@given(TEXTS | st.text())
@example("\x1b[2J\x9b31m\x07\x00\x7f\u202eabc\u2066\r\n\rx")
def test_nothing_of_a_neutral_text_steers_a_terminal(text: str) -> None:
    shown = neutral(text)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cs")} <= ALLOWED
    assert not any(
        unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI") for c in shown
    )
    assert neutral(shown) == shown


@given(TEXTS, SIZES)
def test_a_text_is_as_neutral_in_pieces(text: str, sizes: list[int]) -> None:
    stream = NeutralStream()
    assert "".join([*map(stream.push, cut(text, sizes)), stream.finish()]) == neutral(text)


def test_words_stay_as_they_are() -> None:
    text = "Ünïcödé 你好 👩‍🚀 العربية\tx\n"
    assert neutral(text) == text


@settings(max_examples=300, deadline=None)
@given(TEXTS, SIZES)
@example("*\n* ||\n-|-\n    b", [1] * 15)
@example("- \n-   * ```  -|-*   \n-|-", [1] * 30)
def test_blocks_are_the_same_however_the_text_came(text: str, sizes: list[int]) -> None:
    growing = GrowingBlocks()
    for piece in cut(neutral(text), sizes):
        before = growing.settled
        growing.push(piece)
        if len(piece) % 2:
            growing.settle()
        assert growing.settled[: len(before)] == before
    growing.finish()
    assert growing.settled == blocks_of(neutral(text))


@settings(max_examples=150, deadline=None)
@given(TEXTS, SIZES, st.integers(3, 60))
def test_a_streamed_answer_ends_as_the_whole_one(text: str, sizes: list[int], width: int) -> None:
    drawer = Drawer(width, Palette())
    streamed, whole = AnswerEntry(1), AnswerEntry(1, text, note="done")
    streamed.begin()
    for piece in cut(text, sizes):
        streamed.grow(piece)
        assert all(strip.cell_length <= width for strip in streamed.lines(drawer))
    streamed.finish(text, "done")
    assert streamed.source == text
    assert [strip.text for strip in streamed.lines(drawer)] == [strip.text for strip in whole.lines(drawer)]
    assert list(streamed.lines(drawer)) == list(whole.lines(drawer))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(("word", "other", "x1", "ünï")), min_size=1, max_size=40), st.integers(10, 40))
def test_every_word_of_a_paragraph_is_shown(words: list[str], width: int) -> None:
    lines = AnswerEntry(1, " ".join(words)).lines(Drawer(width, Palette()))
    assert text_of(lines).split() == words


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ab \"'{}#", max_size=30), min_size=1, max_size=12))
def test_every_line_of_code_is_shown(code: list[str]) -> None:
    lines = AnswerEntry(1, "```python\n" + "\n".join(code) + "\n```").lines(Drawer(80, Palette()))
    assert "".join(text_of(lines[1:-2]).split()) == "".join("".join(code).split())


def test_an_open_fence_shows_what_there_is_of_it() -> None:
    drawer, lines = Drawer(40, Palette()), GrowingLines()
    for piece in ("see\n\n```py\na", " = 1\nb", " = 2"):
        lines.push(piece)
    head, foot = f"── 1 py {'─' * 32}", "─" * 40
    assert text_of(lines.lines(drawer)) == f"see\n\n{head}\na = 1\nb = 2"
    lines.push("\n```\nend")
    assert text_of(lines.lines(drawer)) == f"see\n\n{head}\na = 1\nb = 2\n{foot}\n\nend"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```py\na\n```", [("py", "a\n", True)]),
        ("x\n~~~\na\n```\n~~~\ny", [("", "a\n```\n", True)]),
        ("````md\n```\na\n```\n````", [("md", "```\na\n```\n", True)]),
        ("- item\n\n  ```sh\n  ls\n  ```\n", [("sh", "ls\n", True)]),
        ("```c\nint", [("c", "int\n", False)]),
        ("no `code` here", []),
        ("> ```sh\n> ls\n> ```\n", [("sh", "ls\n", True)]),
        ("> - ```sh\n>   ls", [("sh", "ls\n", False)]),
        ("    ```\n    no fence", []),
        ("```\n```", [("", "", True)]),
        ("```\r\na\r\n```", [("", "a\n", True)]),
        ("```a\n1\n```\n```b\n2\n```", [("a", "1\n", True), ("b", "2\n", True)]),
    ],
)
def test_fences_are_found(text: str, expected: list[tuple[str, str, bool]]) -> None:
    assert [(fence.language, fence.text, fence.is_closed) for fence in fences_of(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", (Section(False, "plain"),)),
        ("<think>\nhm\n</think>\n\nyes", (Section(True, "hm"), Section(False, "yes"))),
        ("<think>hm", (Section(True, "hm", is_open=True),)),
        ("say <think> aloud", (Section(False, "say <think> aloud"),)),
        ("<|begin_of_thought|>a<|end_of_thought|>b", (Section(True, "a"), Section(False, "b"))),
        ("", (Section(False, ""),)),
        (
            "\n <think>a</think>\n\n<reasoning>b</reasoning>c",
            (Section(True, "a"), Section(True, "b"), Section(False, "c")),
        ),
        ("hm, so\n</think>\n\nyes", (Section(True, "hm, so"), Section(False, "yes"))),
        ("</think>yes", (Section(True, ""), Section(False, "yes"))),
        (
            "First this.\n<think>\nhm\n</think>\nThen that.",
            (Section(False, "First this.\n<think>\nhm\n</think>\nThen that."),),
        ),
        ("Say <think>\n</think> twice", (Section(False, "Say <think>\n</think> twice"),)),
        ("hm\n</think>\nyes <think>a", (Section(True, "hm"), Section(False, "yes <think>a"))),
        ("it ends with `</think>` there", (Section(False, "it ends with `</think>` there"),)),
        ("```\n</think>\n```", (Section(False, "```\n</think>\n```"),)),
    ],
)
def test_thoughts_are_told_from_answers(text: str, expected: tuple[Section, ...]) -> None:
    assert sections_of(text) == expected


def test_a_thought_folds_and_opens_and_the_source_stays() -> None:
    drawer, text = Drawer(60, Palette()), "<think>quite a long thought</think>\n\nShort."
    answer = AnswerEntry(1, text)
    assert "quite" not in text_of(answer.lines(drawer))
    assert "4 words" in text_of(answer.lines(drawer))
    answer.toggle()
    assert "quite a long thought" in text_of(answer.lines(drawer))
    assert answer.source == text


def test_a_thought_is_open_until_it_is_over() -> None:
    drawer, answer = Drawer(60, Palette()), AnswerEntry(1)
    answer.begin()
    for piece in ("\n", "<", "think", ">", "let me", " see\n\nwell"):
        answer.grow(piece)
    assert text_of(answer.lines(drawer)).startswith("▾ thinking, 4 words (Alt+T)\nlet me see\n\nwell")
    answer.grow("</think>\n\nYes")
    assert text_of(answer.lines(drawer)).startswith("▸ thought, 4 words (Alt+T)\n\nYes")


def test_a_thought_that_somebody_folds_stays_folded_while_it_grows() -> None:
    drawer, answer = Drawer(60, Palette()), AnswerEntry(1)
    answer.begin()
    answer.grow("<think>let me")
    answer.toggle()
    answer.grow(" see")
    assert "let me" not in text_of(answer.lines(drawer))


def test_text_turns_out_to_be_a_thought_where_the_prompt_began_it() -> None:
    drawer, answer = Drawer(60, Palette()), AnswerEntry(1)
    answer.begin()
    answer.grow("let me see\n")
    assert "let me see" in text_of(answer.lines(drawer))
    answer.grow("</think>\n\nYes")
    assert text_of(answer.lines(drawer)).startswith("▸ thought, 3 words (Alt+T)\n\nYes")
    assert answer.fences == ()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(("a", " b", "\n", "\n\n", "\t", "x" * 30)), max_size=30).map("".join), SIZES)
def test_plain_lines_are_the_same_however_the_text_came(text: str, sizes: list[int]) -> None:
    drawer, growing, shown = Drawer(12, Palette()), GrowingPlain(), ""
    for piece in cut(text, sizes):
        shown += piece
        lines = growing.lines(shown, drawer)
        assert text_of(lines) == text_of(GrowingPlain().lines(shown, drawer))


@settings(max_examples=150, deadline=None)
@given(TEXTS | st.text())
def test_nothing_that_is_drawn_steers_a_terminal(text: str) -> None:
    shown = text_of(AnswerEntry(1, text).lines(Drawer(40, Palette())))
    assert neutral(shown) == shown


@pytest.mark.parametrize(
    "text", ["> " * 40 + "deep", "- " * 40 + "deep", "".join("  " * n + "- x\n" for n in range(40)) + " deep"]
)
def test_nothing_is_left_out_however_deep_it_stands(text: str) -> None:
    assert "deep" in text_of(AnswerEntry(1, text).lines(Drawer(60, Palette())))


@pytest.mark.parametrize("text", ["1. a\n1. b\n1. c", "1. a\n\n   more\n\n7. b\n3. c"])
def test_items_are_counted_from_the_first(text: str) -> None:
    lines = text_of(AnswerEntry(1, text).lines(Drawer(60, Palette()))).splitlines()
    assert [line[:3] for line in lines if line[:3].strip()] == [" 1.", " 2.", " 3."]


def test_items_are_blocks_that_join() -> None:
    blocks = blocks_of("text\n\n3. a\n\n   more\n4. b\n- c\n- d\n\nend")
    assert [(block.source, block.number, block.joins) for block in blocks] == [
        ("text", None, False),
        ("3. a\n\n   more", 3, False),
        ("4. b", 4, True),
        ("- c", None, False),
        ("- d", None, True),
        ("end", None, False),
    ]


def test_a_long_table_is_parsed_as_rarely_as_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Block] = []
    drawer, lines, block = Drawer(60, Palette()), GrowingLines(), Drawer.block

    def counted(self: Drawer, what: Block, n_fence: int = 1) -> list[Strip]:
        drawn.append(what)
        return block(self, what, n_fence)

    monkeypatch.setattr(Drawer, "block", counted)
    lines.push("| a | b |\n|---|---|\n")
    for number in range(400):
        lines.push(f"| {number} | x |\n")
        assert str(number) in text_of(lines.lines(drawer)[-2:])
    assert len(drawn) < 60


def test_drafted_text_is_tinted_on_demand_and_the_same_text() -> None:
    drawer = Drawer(60, Palette())
    answer = AnswerEntry(1, "one two three")
    answer.runs = ((4, None), (4, "ngram"), (5, "suffix"))
    answer.toggle_tint()
    shown = answer.lines(drawer)
    assert shown[0].text == "one two three"
    styles = {segment.text: segment.style.color for segment in shown[0] if segment.style is not None}
    assert styles["two "] is not None
    assert styles["two "] != styles["three"]
    assert "ngram 31 %" in shown[1].text
    answer.toggle_tint()
    assert text_of(answer.lines(drawer)).strip() == "one two three"


def test_drawing_waits_the_longer_the_more_it_costs() -> None:
    assert pause_s(0.0) == LEAST_S
    assert pause_s(0.01) == pytest.approx(0.01 / SHARE)
    assert pause_s(10.0) == MOST_S


@pytest.mark.parametrize("emoji", ["👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "क्‍ष", "می‌خواهم"])
def test_joiners_inside_emoji_and_words_stay(emoji: str) -> None:
    assert neutral(f"a {emoji} b") == f"a {emoji} b"
    answer = AnswerEntry(1, f"a **{emoji}** b")
    assert emoji in text_of(answer.draw(Drawer(40, Palette())))
    growing = AnswerEntry(1)
    growing.begin()
    for sign in emoji:
        growing.grow(sign)
        growing.draw(Drawer(40, Palette()))
    growing.finish(emoji, "")
    assert emoji in text_of(growing.draw(Drawer(40, Palette())))
