"""Answers side by side: several to one question, of which one is kept, and one for each of many items.

In: `/several` and `/map`, messages of the engine thread. Out: jobs for the engine, siblings in the chat's tree, columns
in the transcript. Every answer is saved as it grows, with the choice and its reason at the end. They call no tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgeinfer.app.chat.attachments import attach, mentions
from edgeinfer.app.chat.side_by_side import MapAsked, SeveralAsked, map_asked, parts_text, several_asked
from edgeinfer.app.sessions.records import Attachment, Figures, KeptMessage, State
from edgeinfer.app.sessions.written_beside import WrittenBeside
from edgeinfer.app.tui.actions.branching import Branching
from edgeinfer.app.tui.actions.showing import note_of
from edgeinfer.app.tui.engine_messages import BesideAnswered, BesideEnd, BesideJob, MapInstruction
from edgeinfer.app.tui.screens.chat_parts import Prompted, Writing
from edgeinfer.app.tui.widgets.answer_columns import AnswerColumns, ColumnHead, ColumnState
from edgeinfer.errors import BadSetting

ONE_TEMPERATURE = "with temperature 0 all answers are the same: /temp 0.7 makes them differ"
PARTS_NOTE = "parts do not see one another; Esc stops"


class BesideActions(Branching):
    """Mixin of the chat screen: answers side by side."""

    _asked_map: MapAsked | None = None
    """The items of the answer that is being written."""

    async def action_several(self, argument: str = "") -> None:
        """Ask a question several times, side by side, and keep one answer: /several 4 [pick=NAME] [QUESTION]."""
        if self.is_busy():
            return
        asked = several_asked(argument)
        if self.state.tuning.answer_options.get("temperature") == 0:
            raise BadSetting(ONE_TEMPERATURE)
        if asked.question:
            prompted = Prompted(asked.question, await self._attachments_of(asked.question))
            _, first = self.chat.ask(prompted.text, prompted.attachments, self.model_name)
        else:
            first = self.chat.answer_again(self.model_name, self.transcript.selected)
        others = [self.chat.answer_again(self.model_name, first.number) for _ in range(asked.n - 1)]
        self.chat.show(first.number)
        await self.show_branch(without=first.number)
        await self._write_several(asked, [first, *others])

    async def action_map(self, argument: str = "") -> None:
        """Follow an instruction for each of many lines, side by side: /map INSTRUCTION, the lines below it."""
        if self.is_busy():
            return
        asked = await asyncio.to_thread(map_asked, argument)
        _, answer = self.chat.ask(asked.question, asked.files, self.model_name)
        await self.show_branch(without=answer.number)
        widget = self.answer_entry(answer)
        await self.transcript.add(widget)
        widget.begin()
        widget.show_doing(PARTS_NOTE)
        self._asked_map = asked
        self._begin_job([answer], len(asked.items), instruction=MapInstruction(asked.instruction, self.chat.system))

    async def _write_several(self, asked: SeveralAsked, answers: Sequence[KeptMessage]) -> None:
        numbers = [answer.number for answer in answers]
        thinking = self.state.tuning.settings.face.thinking
        await self.transcript.add(AnswerColumns(numbers, thinking=thinking))
        self._begin_job(answers, len(answers), pick=asked.pick)

    def _begin_job(
        self,
        answers: Sequence[KeptMessage],
        n: int,
        *,
        pick: str = "vote",
        instruction: MapInstruction = MapInstruction(""),  # noqa: B008  # a frozen record
    ) -> None:
        """Give the engine a job of `n` texts, which are those of these messages or parts of the only one."""
        chat, first = self.chat.number, answers[0].number
        assert chat is not None
        number, texts = self.new_job(), tuple(self.new_job() for _ in range(n))
        job = BesideJob(
            number,
            chat,
            tuple(self.chat.prompt(first)),
            self.answer_options(),
            answers=texts,
            pick=pick,
            instruction=instruction,
            items=self._asked_map.items if instruction.text and self._asked_map else (),
        )
        messages = [answer.number for answer in answers]
        beside = [Writing(each, messages[min(place, len(messages) - 1)], "") for place, each in enumerate(texts)]
        self.writing = Writing(number, first, "", beside=tuple(beside))
        self.transcript.follow()
        self.show_title()
        self.show_prompted()
        self.engine.give(job)

    async def _attachments_of(self, question: str) -> tuple[Attachment, ...]:
        """The files that a question mentions."""
        paths = await asyncio.to_thread(mentions, question)
        read = [await asyncio.to_thread(attach, path) for path in paths]
        return tuple(one for attached in read for one in attached.attachments)

    def take_text(self) -> None:
        """Show and save the new text of all answers that are being written."""
        writing = self.writing
        if writing is None or not writing.beside:
            super().take_text()
            return
        places = {each.job: place for place, each in enumerate(writing.beside)}
        columns = self._columns()
        for job, piece in self.engine.text_buffer.take_all():
            if (place := places.get(job)) is None:
                continue
            writing.beside[place].pieces.append(piece)
            if columns is not None:
                columns.grow_column(place, piece)
        writing.pieces[:] = [""]  # the next text waits for the next draw
        if columns is not None:
            columns.show_heads(self._heads())
        self._show_parts(writing)
        self._autosave(writing)
        self.meter_answer()

    def _columns(self) -> AnswerColumns | None:
        """The columns in the transcript of the answers that are being written."""
        found = None if self.writing is None else self.transcript.answer(self.writing.message)
        return found if isinstance(found, AnswerColumns) else None

    def _heads(self) -> list[ColumnHead]:
        """How far each answer is."""
        assert self.writing is not None
        progress = self.engine.beside or ((0, False),) * len(self.writing.beside)
        found = []
        for n_tokens, is_over in progress:
            state: ColumnState = "done" if is_over else "writing" if n_tokens else "waits"
            found.append(ColumnHead(n_tokens, state))
        return found

    def _show_parts(self, writing: Writing) -> None:
        """Show the parts of an answer in their order."""
        asked, widget = self._asked_map, self.transcript.answer(writing.message)
        if asked is None or widget is None or isinstance(widget, AnswerColumns):
            return
        widget.restart(self._joined(asked, writing))
        n_over = sum(is_over for _, is_over in self.engine.beside)
        widget.show_doing(f"{n_over} of {len(asked.items)} parts are written · {PARTS_NOTE}")

    def _joined(self, asked: MapAsked, writing: Writing) -> str:
        return parts_text(asked.items, lambda number: writing.beside[number].text)

    def _autosave(self, writing: Writing) -> None:
        if self._asked_map is not None:
            self.state.autosave.note(writing.message, self._joined(self._asked_map, writing))
            return
        for each in writing.beside:
            if each.pieces:
                self.state.autosave.note(each.message, each.text)

    async def on_beside_answered(self, event: BesideAnswered) -> None:
        """All answers are finished: save them with the choice, show it, and send the next queued question."""
        event.stop()
        writing = self.writing
        if writing is None or writing.job != event.job:
            return
        self.take_text()
        self.writing = None
        figures: Figures | None = None
        if self._asked_map is not None:
            self._end_map(self._asked_map, writing, event.ends)
        else:
            figures = self._end_several(writing, event)
        self.tell_all(event.notices)
        self.show_figures(figures)
        self.look_at_context()
        await self.go_on(is_whole=all(end.state in ("whole", "cut") or end.early for end in event.ends))

    def _end_several(self, writing: Writing, event: BesideAnswered) -> Figures | None:
        """Save several answers, show the one that is kept. Returns its figures."""
        ends, kept = event.ends, event.kept
        shown = kept.number if kept is not None else _most_whole(ends)
        number, reason = (0, "") if kept is None else (kept.number + 1, kept.reason)
        for place, (each, end) in enumerate(zip(writing.beside, ends, strict=True)):
            beside = WrittenBeside(len(ends), place + 1, number, reason, end.early)
            self.keep_answer(each.message, end.text, end.state, end.figures, beside)
        columns = self._columns_of(writing)
        self.chat.show(writing.beside[shown].message)
        if columns is not None:
            columns.show_heads(
                [_head(end, is_kept=kept is not None and place == shown) for place, end in enumerate(ends)]
            )
            note = f"{note_of(self.chat.message(writing.beside[shown].message))} · Alt+←/Alt+→ show the others"
            columns.decide(shown, [end.text for end in ends], note)
        return ends[shown].figures

    def _columns_of(self, writing: Writing) -> AnswerColumns | None:
        found = self.transcript.answer(writing.message)
        return found if isinstance(found, AnswerColumns) else None

    def _end_map(self, asked: MapAsked, writing: Writing, ends: Sequence[BesideEnd]) -> None:
        """Save the parts as one answer, with the tokens of all together, and show it."""
        self._asked_map = None
        states = {end.state for end in ends}
        state: State = next((each for each in ("failed", "stopped", "cut") if each in states), "whole")
        text = parts_text(asked.items, lambda number: ends[number].text)
        message = self.keep_answer(writing.message, text, state, _summed(ends), WrittenBeside(len(ends)))
        widget = self.transcript.answer(writing.message)
        if widget is not None:
            widget.finish(text, note_of(message))

    def leave_answer(self) -> None:
        """Leave the chat: what answers side by side have so far is saved."""
        writing = self.writing
        if writing is None or not writing.beside:
            super().leave_answer()
            return
        self.edited = None
        self.engine.stop()
        self.take_text()
        self.writing, asked, self._asked_map = None, self._asked_map, None
        self.show_prompted()
        if asked is not None:
            text = self._joined(asked, writing)
            self.keep_answer(writing.message, text, "stopped", None, WrittenBeside(len(asked.items)))
            return
        for place, each in enumerate(writing.beside, 1):
            self.keep_answer(each.message, each.text, "stopped", None, WrittenBeside(len(writing.beside), place))

    async def ask(self, prompted: Prompted) -> None:
        """Ask a question: answers side by side before it give way to the one that is kept."""
        await self._show_kept()
        await super().ask(prompted)

    async def write(self, answer: KeptMessage, before: str) -> None:
        """Write an answer, or go on with it: of answers side by side, with the one that is kept."""
        await self._show_kept()
        await super().write(answer, before)

    async def _show_kept(self) -> None:
        """Show the branch in place of answers side by side, if any are shown."""
        if any(isinstance(entry, AnswerColumns) for entry in self.transcript.entries):
            await self.show_branch()

    async def step_branch(self, by: int) -> None:
        """Show another branch; of answers side by side, another column."""
        columns = self._columns()
        if columns is not None and columns.n_shown < len(columns.columns):
            columns.turn(by)
            self.transcript.draw()
            return
        await super().step_branch(by)


def _most_whole(ends: Sequence[BesideEnd]) -> int:
    """The place of the first answer that ended by itself, else of the longest."""
    return max(range(len(ends)), key=lambda place: (ends[place].state == "whole", len(ends[place].text), -place))


def _head(end: BesideEnd, *, is_kept: bool) -> ColumnHead:
    states: dict[State, ColumnState] = {"stopped": "stopped", "cut": "cut", "failed": "failed"}
    is_cut = end.figures is not None and end.figures.finish_reason == "length"
    ended: ColumnState = "cut" if is_cut else states.get(end.state, "done")
    state: ColumnState = "kept" if is_kept else "not needed" if end.early else ended
    return ColumnHead(0 if end.figures is None else end.figures.n_generated, state, end.says)


def _summed(ends: Sequence[BesideEnd]) -> Figures | None:
    """The tokens of all parts together."""
    found = [end.figures for end in ends if end.figures is not None]
    if not found:
        return None
    n_prompt, n_cached = sum(each.n_prompt for each in found), sum(each.n_cached for each in found)
    return Figures(n_prompt, n_cached, sum(each.n_generated for each in found), "stop")
