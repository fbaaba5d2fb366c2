"""Answers of the engine thread that are written side by side: several to one question, or one for each of many items.

In: a job, a model, the buffer for text. Out: pieces of text under the number of their answer, and how all of them ended
and which one is kept, whatever goes wrong meanwhile. Touches no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual.message import Message as AppMessage

from edgeinfer.app.sessions.conversation import figures_of, state_of, text_of
from edgeinfer.app.tui.engine import AnswerStream, EngineModel, runs_of
from edgeinfer.app.tui.engine_answer import AnswerCalledOff, tell_reading
from edgeinfer.app.tui.engine_messages import BesideAnswered, BesideEnd, BesideJob, KeptAnswer, TextBuffer

if TYPE_CHECKING:
    from edgeinfer.app.tui.engine import AnswerChoice, MappedStreams, SeveralStreams
    from edgeinfer.engine.scheduler.stats import RequestProgress, Stats

MOST_PARALLEL = 8
"""Parts that are written at the same time."""
SHORT_CHARACTERS = 12


class BesideWork:
    """The answers of a job. `progress` and `live` may be read from other threads, `stop` called from them."""

    def __init__(self, job: BesideJob, model: EngineModel, buffer: TextBuffer) -> None:
        self._job, self._model, self._buffer = job, model, buffer
        self._several: SeveralStreams | None = None
        self._mapped: MappedStreams | None = None
        self._texts = [""] * len(job.answers)

    def run(self, post: Callable[[AppMessage], object], reason_of: Callable[[Exception], str]) -> None:
        """Write all of them, and post how they ended, whatever goes wrong. `reason_of`: words for an error."""
        error = ""
        try:
            self._begin(post)
            self._write()
        except AnswerCalledOff:
            pass
        except Exception as reason:  # keep the texts written so far
            error = reason_of(reason)
        post(self.answered(error))

    def _begin(self, post: Callable[[AppMessage], object]) -> None:
        """Begin the answers. Raises EdgeInferError, AnswerCalledOff."""
        job = self._job
        options = job.options.copy()
        options["progress"] = partial(tell_reading, job, post)
        if job.items:
            text, system = job.instruction.text, job.instruction.system
            self._mapped = self._model.map(text, job.items, system=system, parallel=MOST_PARALLEL, **options)
        else:
            self._several = self._model.several(job.messages, len(job.answers), pick=job.pick, **options)
        if job.stopped.is_set():
            self.stop()

    def _write(self) -> None:
        """Write all of them. Raises EdgeInferError; what there is until then stays."""
        answers = self._answers
        assert answers is not None
        for piece in answers:
            self._texts[piece.number] += piece.text
            self._buffer.add(self._job.answers[piece.number], piece.text)

    @property
    def _answers(self) -> SeveralStreams | MappedStreams | None:
        return self._mapped if self._several is None else self._several

    def stop(self) -> None:
        """End all of them within one step."""
        if (answers := self._answers) is not None:
            answers.stop()

    @property
    def streams(self) -> Sequence[AnswerStream | None]:
        """The answers; None for those that have not begun."""
        if self._mapped is not None:
            return [self._mapped.stream(number) for number in range(len(self._texts))]
        return [None] * len(self._texts) if self._several is None else self._several.answers

    @property
    def progress(self) -> tuple[tuple[int, bool], ...]:
        """The tokens of each answer so far, and whether it is over."""
        return tuple(map(_progress, self.streams))

    @property
    def live(self) -> RequestProgress | None:
        """The progress of the longest one, with the tokens per second of all that are being written."""
        running = [each.live for each in self.streams if each is not None]
        found = [live for live in running if live is not None]
        if not found:
            return None
        streams = [each for each in self.streams if each is not None and each.stats is None]
        rates = [live.decode_tok_s or 0.0 for each in streams if (live := each.live) is not None]
        longest = max(found, key=lambda live: live.n_prompt + live.n_generated)
        return replace(longest, decode_tok_s=sum(rates) or longest.decode_tok_s)

    @property
    def stats(self) -> list[Stats]:
        """Statistics of those that are done."""
        return [each.stats for each in self.streams if each is not None and each.stats is not None]

    def answered(self, error: str = "") -> BesideAnswered:
        """How all of them ended; `error`: what ended those that are not done."""
        ends = tuple(self._end(number, stream) for number, stream in enumerate(self.streams))
        notices = [error] if error else []
        if self._mapped is not None:
            notices += [f"item {number + 1}: {reason}" for number, reason in sorted(self._mapped.errors.items())]
        notices += [notice for each in self.stats for notice in each.notices]
        return BesideAnswered(self._job.number, ends, self._kept(), tuple(dict.fromkeys(notices)))

    def _kept(self) -> KeptAnswer | None:
        choice = None if self._several is None else self._several.choice
        if choice is None:
            return None
        said, is_shared = _said(choice, choice.number), choice.votes.count(choice.votes[choice.number]) > 1
        return KeptAnswer(choice.number, f"it says {said}; {choice.reason}" if said and is_shared else choice.reason)

    def _end(self, number: int, stream: AnswerStream | None) -> BesideEnd:
        stats, text = None if stream is None else stream.stats, self._texts[number]
        choice = None if self._several is None else self._several.choice
        if stream is None or stats is None:
            is_empty = self._mapped is not None and not self._job.items[number].strip()
            return BesideEnd(text, "whole" if is_empty else "stopped" if self._job.stopped.is_set() else "failed")
        is_early = choice is not None and number in choice.left and not self._job.stopped.is_set()
        runs, says = runs_of(stream.marks, 0), "" if choice is None else _said(choice, number)
        return BesideEnd(text_of(text, stats), state_of(stats), figures_of(stats), runs, early=is_early, says=says)


def _said(choice: AnswerChoice, number: int) -> str:
    """What an answer says, as votes count it, if that is short."""
    vote = choice.votes[number]
    said = "" if vote is None else str(vote)
    return said if len(said) <= SHORT_CHARACTERS and said.isprintable() else ""


def _progress(stream: AnswerStream | None) -> tuple[int, bool]:
    live = None if stream is None else stream.live
    return (0 if live is None else live.n_generated), stream is not None and stream.stats is not None


def unbegun(job: BesideJob, reason: str) -> BesideAnswered:
    """What is posted of answers that were not begun: `reason`, or "" if they were stopped before."""
    ends = (BesideEnd("", "failed" if reason else "stopped"),) * len(job.answers)
    return BesideAnswered(job.number, ends, None, (reason,) if reason else ())
