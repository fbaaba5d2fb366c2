"""One answer as a stream of pieces: entered into a scheduler when the first piece is asked for, left at the end.

In: a sequence, a prompt's tokens, how to choose tokens and when to stop. Out: str pieces; afterwards the tokens, the
whole text and the stats. Knows no messages, templates, files or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from edgeinfer.engine.requests.logprobs import TokenLogprobs
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.answering import Answer
from edgeinfer.engine.scheduler.live import DraftSpan, RequestProgress
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.ticket import Ticket
from edgeinfer.engine.speculation.speculator import ClosingSpeculator, Speculator
from edgeinfer.engine.stats import Stats
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.serving.priority import Priority, checked


class Generation:
    """One running request. Run `pieces()` once, or `drive` it; `stop()` from any thread ends it within a step.

    `driver`: shared with all answers that may take part in its passes; None: it has its passes alone. `shares_prefix`:
    it begins with what other answers have read, and leaves what it read for others. Raises as `Answer`.
    """

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        request: Request,
        speculator: Speculator | None = None,
        *,
        opens: Callable[[], ClosingSpeculator] | None = None,
        driver: StepDriver | None = None,
        priority: Priority = "interactive",
        shares_prefix: bool = False,
    ) -> None:
        self._driver = driver or StepDriver(Scheduler(cached.pool))
        self._answer = Answer(cached, tokenizer, request, speculator, opens=opens)
        drafts = speculator is not None or opens is not None
        self._ticket = Ticket(self._answer, checked(priority), shares_prefix=shares_prefix, drafts=drafts)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer, as far as its text was taken."""
        return self._answer.tokens[: self._ticket.n_seen]

    @property
    def tools(self) -> ToolUse | None:
        """What the answer may call."""
        return self._answer.request.tools

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens of the prompt and the answer so far."""
        return self._answer.history

    @property
    def text(self) -> str:
        """The text of the answer, as far as it was taken."""
        return self._answer.text_of(self._ticket.n_seen)

    @property
    def marks(self) -> tuple[DraftSpan, ...]:
        """Who drafted which part of the text so far: runs of characters, in order; from any thread."""
        return self._answer.marks_of(self._ticket.n_seen)

    @property
    def live(self) -> RequestProgress:
        """How far it is, while it is made; from any thread."""
        return self._answer.live

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of each of these tokens, if they were asked for."""
        return self._answer.logprobs[: self._ticket.n_seen]

    @property
    def stats(self) -> Stats | None:
        """The numbers of the answer, once it is done."""
        return self._answer.stats

    def stop(self) -> None:
        """End the answer before its next step; what there is of it is kept."""
        self._answer.stop()

    def pieces(self) -> Generator[str, None, None]:
        """Generate: pieces of text as they become certain. Closing it ends the answer as `stop()` does."""
        ticket, driver = self._ticket, self._driver
        driver.scheduler.enter(ticket)
        try:
            while (piece := driver.next_piece(ticket)) is not None:
                yield piece
        finally:
            driver.scheduler.abandon(ticket)

    def leave(self) -> None:
        """End it, if it has begun, and forget what was made of it and not taken; over when this returns."""
        if self._ticket.has_entered and not self._ticket.is_over:
            self._driver.scheduler.leave(self._ticket)

    def drive(self, notify: Callable[[], None]) -> Ticket:
        """Have it made in a thread of its own; `notify` is called there when there is something to take."""
        self._ticket.notify = notify
        self._driver.drive(self._ticket)
        return self._ticket
