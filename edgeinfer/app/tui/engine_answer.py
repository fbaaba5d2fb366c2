"""One answer as the engine thread generates it: its stream, its text, and the draft sources of the text.

In: a job, a session, a function that generates a stream piece by piece. Out: what is kept of the answer, at any time.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from edgeinfer.app.tui.engine import AnswerStream, ModelSession, Runs, runs_of
from edgeinfer.app.tui.engine_messages import AnswerJob, ImagesRead, PromptRead
from edgeinfer.app.tui.text.calls import ShownText
from edgeinfer.steps import READING_MEDIA, READING_SOUND

Make = Callable[[AnswerStream, ShownText | None], None]
"""Generates a stream, passing its text on, or what is shown of it."""


class AnswerCalledOff(Exception):
    """The answer was stopped while its images and sounds were read."""


def tell_reading(job: AnswerJob, post: Callable[[Message], object], what: str, done: int, total: int) -> None:
    """Report how far the images, the sounds and the text of a prompt are read.

    Raises AnswerCalledOff between parts of images and sounds, so that a stop need not wait for all those of a pass.
    """
    if what in READING_MEDIA:
        if job.stopped.is_set():
            raise AnswerCalledOff
        post(ImagesRead(job.number, done, total, is_sound=what == READING_SOUND))
        return
    if done == 0:
        post(ImagesRead(job.number, 1, 1))
    post(PromptRead(done, total))


class JobAnswer:
    """The answer of a job. `before`: the text that it continues."""

    def __init__(self, job: AnswerJob, session: ModelSession, make: Make) -> None:
        self.job, self.session, self.make = job, session, make
        self.before = job.before
        self.stream: AnswerStream | None = None

    def generate(self) -> None:
        """Generate the answer. Raises EdgeInferError; what there is until then stays."""
        self.stream = self.session.chat(self.job.messages, **self.job.options)
        self.make(self.stream, None)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return self.before + ("" if self.stream is None else self.stream.text)

    @property
    def runs(self) -> Runs:
        """The draft sources of the text."""
        return () if self.stream is None else runs_of(self.stream.marks, len(self.before))

    @property
    def is_broken_off(self) -> bool:
        """Whether it was stopped between two streams."""
        return False
