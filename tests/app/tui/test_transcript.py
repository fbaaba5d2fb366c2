"""The transcript: where it stays while text comes, what it draws, and selecting messages."""

from __future__ import annotations

import pytest

from edgeinfer.app.tui.widgets.entries import AnswerEntry, ChatEntry, QuestionEntry
from tests.app.tui.flows import wait_until
from tests.app.tui.transcript_app import Shown, talk

THOUGHTFUL = "<think>first this, then that</think>\n\nSo it is."


async def test_the_end_is_shown_and_followed_while_text_comes() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(40))
        await wait_until(pilot, lambda: "end 39" in "\n".join(app.lines))
        answer = AnswerEntry(99)
        await app.transcript.add(answer)
        answer.begin()
        for number in range(30):
            answer.grow(f"line {number}\n\n")
        await wait_until(pilot, lambda: "line 29" in "\n".join(app.lines))
        assert app.transcript.is_following


async def test_text_that_comes_does_not_move_what_is_read() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(40))
        await wait_until(pilot, lambda: "end 39" in "\n".join(app.lines))
        app.transcript.scroll_page_up(animate=False)
        await wait_until(pilot, lambda: not app.transcript.is_following and app.is_settled)
        before = app.lines
        assert "more below" in before[-1]
        answer = app.transcript.last_answer
        assert answer is not None
        answer.begin()
        for number in range(30):
            answer.grow(f"line {number}\n\n")
        await wait_until(pilot, lambda: app.is_settled)
        await pilot.pause(0.1)
        assert app.lines[:-1] == before[:-1]
        app.transcript.follow()
        await wait_until(pilot, lambda: "line 29" in "\n".join(app.lines))


async def test_going_up_shows_every_message_in_order() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(60))
        seen = ""
        for _ in range(60):
            await wait_until(pilot, lambda: app.is_settled)
            seen = "\n".join(app.lines) + "\n" + seen
            if app.transcript.scroll_offset.y == 0:
                break
            app.transcript.scroll_to(y=app.transcript.scroll_offset.y - 6, animate=False, immediate=True)
        for number in range(60):
            assert f"{'end' if number % 2 else 'question'} {number}" in seen


async def test_messages_are_selected_by_steps_from_the_last() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(20))
        app.transcript.select_previous()
        assert app.transcript.selected == 19
        for _ in range(10):
            app.transcript.select_previous()
        assert app.transcript.selected == 9
        await wait_until(pilot, lambda: "end 9" in "\n".join(app.lines))
        for _ in range(11):
            app.transcript.select_next()
        assert app.transcript.selected is None
        assert app.transcript.is_following


async def test_a_message_that_was_searched_for_is_shown_at_the_top() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(60))
        app.transcript.scroll_to_message(11)
        await wait_until(pilot, lambda: "answer 11" in app.lines[0])
        assert app.transcript.selected == 11


async def test_another_width_or_theme_draws_everything_anew() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show([AnswerEntry(1, "word " * 30)])
        await pilot.resize_terminal(30, 12)
        await wait_until(pilot, lambda: max(map(len, app.lines)) <= 30 and "word" in app.lines[5])
        app.theme = "textual-light"
        await wait_until(pilot, lambda: "word" in app.lines[0])
        assert {segment.style for segment in app.transcript.render_line(9)} == {app.transcript.rich_style}


async def test_a_long_question_is_folded_until_it_is_opened() -> None:
    app = Shown()
    async with app.run_test(size=(60, 60)) as pilot:
        await app.transcript.show([QuestionEntry(1, "\n".join(f"row {number}" for number in range(40)))])
        await wait_until(pilot, lambda: "24 more lines" in "\n".join(app.lines))
        assert "row 39" not in "\n".join(app.lines)
        app.transcript.toggle_thinking()
        await wait_until(pilot, lambda: "row 39" in "\n".join(app.lines))


async def test_nothing_is_drawn_while_nothing_changes() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.transcript.show(talk(30))
        await wait_until(pilot, lambda: app.is_settled)
        drawn: list[ChatEntry] = []
        for entry in app.transcript.entries:
            entry.changed = drawn.append
        await pilot.pause(0.5)
        assert not drawn


async def test_clicking_at_a_folded_thought_opens_it() -> None:
    app = Shown([QuestionEntry(1, "why?"), AnswerEntry(2, THOUGHTFUL)])
    async with app.run_test(size=(60, 12)) as pilot:
        await wait_until(pilot, lambda: "▸ thought" in app.text)
        row = next(y for y, line in enumerate(app.lines) if "thought" in line)
        await pilot.click(app.transcript, offset=(5, row))
        await wait_until(pilot, lambda: "first this" in app.text)
        await pilot.click(app.transcript, offset=(5, row + 3))  # the answer itself
        assert "first this" in app.text
        await pilot.click(app.transcript, offset=(5, row))
        await wait_until(pilot, lambda: "first this" not in app.text)


async def test_clicking_at_what_says_more_goes_to_the_end() -> None:
    app = Shown(talk(40))
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.scroll_page_up(animate=False)
        await wait_until(pilot, lambda: "more below" in app.lines[-1])
        await pilot.click(app.transcript, offset=(5, 11))
        await wait_until(pilot, lambda: "end 39" in app.text)
        assert app.transcript.is_following


async def test_thoughts_are_opened_together_even_where_some_are_open() -> None:
    first, second = AnswerEntry(1, THOUGHTFUL), AnswerEntry(2, THOUGHTFUL.replace("first", "second"))
    app = Shown([first, second])
    async with app.run_test(size=(60, 20)) as pilot:
        first.toggle()
        await wait_until(pilot, lambda: "first this" in app.text)
        app.transcript.toggle_thinking()
        await wait_until(pilot, lambda: "second this" in app.text)
        assert "first this" in app.text
        app.transcript.toggle_thinking()
        await wait_until(pilot, lambda: "first this" not in app.text)
        assert "second this" not in app.text


async def test_only_the_thought_of_the_selected_message_is_opened() -> None:
    app = Shown([AnswerEntry(1, THOUGHTFUL), AnswerEntry(2, THOUGHTFUL.replace("first", "second"))])
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.select_previous()
        app.transcript.toggle_thinking()
        await wait_until(pilot, lambda: "second this" in app.text)
        assert "first this" not in app.text


@pytest.mark.parametrize("n_messages", [0, 1, 400])
async def test_any_number_of_messages_is_shown_and_replaced(n_messages: int) -> None:
    app = Shown(talk(8))
    async with app.run_test(size=(40, 12)) as pilot:
        await app.transcript.show(talk(n_messages))
        await wait_until(
            pilot,
            lambda: (
                f"{'end' if n_messages > 1 else 'question'} {n_messages - 1}" in app.text
                if n_messages
                else not app.text.strip()
            ),
        )
        assert len(app.transcript.entries) == n_messages
        assert app.transcript.selected is None


async def test_a_long_chat_draws_only_what_is_near_before_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = AnswerEntry.draw

    def counted(self: AnswerEntry, drawer: object) -> object:
        drawn.append(self.number)
        return draw(self, drawer)  # type: ignore[arg-type]

    monkeypatch.setattr(AnswerEntry, "draw", counted)
    app = Shown()
    async with app.run_test(size=(60, 12)):
        await app.transcript.show(talk(400))
        assert "end 399" in app.text
        assert len(drawn) < 12


def uneven(n_messages: int) -> list[ChatEntry]:
    """Messages whose heights are hard to guess: folded thoughts, tables, wide lines."""
    entries: list[ChatEntry] = []
    for number in range(n_messages):
        thought, lines, cell = "hm\n" * (number * 7 % 40), "a\n" * (number * 5 % 11), "wide " * (number * 3 % 30)
        text = f"begin {number}\n\n{lines}\n| x | y |\n|---|---|\n| {cell} | {number} |\n\nend {number}"
        entries.append(AnswerEntry(number, f"<think>{thought}</think>\n\n{text}"))
    return entries


@pytest.mark.parametrize("step", [-1, -3, -7])
async def test_scrolling_up_moves_what_is_seen_by_as_much(step: int) -> None:
    app = Shown(uneven(30))
    async with app.run_test(size=(50, 16)) as pilot:
        transcript = app.transcript
        await wait_until(pilot, lambda: "end 29" in app.text)
        for _ in range(40):
            before = app.lines[:-1]
            if transcript.scroll_offset.y < -step:
                break
            transcript.scroll_relative(y=step, animate=False, immediate=True)
            await wait_until(pilot, lambda: transcript.is_drawn)
            assert app.lines[-step:-1] == before[:step]
        assert not transcript.is_following


async def test_scrolling_down_moves_what_is_seen_by_as_much() -> None:
    app = Shown(uneven(30))
    async with app.run_test(size=(50, 16)) as pilot:
        transcript = app.transcript
        transcript.scroll_to_message(3)
        await wait_until(pilot, lambda: transcript.is_drawn and "begin 3" in app.text)
        for _ in range(40):
            before = app.lines[:-1]
            transcript.scroll_relative(y=3, animate=False, immediate=True)
            await wait_until(pilot, lambda: transcript.is_drawn)
            assert app.lines[: len(before) - 3] == before[3:]


async def test_what_is_far_away_is_not_kept_as_lines() -> None:
    app = Shown(uneven(200))
    async with app.run_test(size=(50, 16)) as pilot:
        transcript = app.transcript
        for number in range(190, 0, -10):
            transcript.scroll_to_message(number)
            await wait_until(pilot, lambda: transcript.is_drawn)
        assert f"begin {10}" in app.text
        assert sum(bool(entry.is_drawn) for entry in transcript.entries) < 80
        transcript.follow()
        await wait_until(pilot, lambda: "end 199" in app.text)


async def test_opening_a_thought_at_the_top_keeps_the_line_that_was_clicked() -> None:
    app = Shown([AnswerEntry(1, THOUGHTFUL), *uneven(20)])
    async with app.run_test(size=(50, 16)) as pilot:
        app.transcript.scroll_to_message(1)
        await wait_until(pilot, lambda: app.transcript.is_drawn and "thought" in app.lines[0])
        await pilot.click(app.transcript, offset=(5, 0))
        await wait_until(pilot, lambda: "first this" in app.text)
        assert "▾ thought" in app.lines[0]
