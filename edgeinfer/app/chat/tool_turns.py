"""Answers in line mode that call tools: asked for and shown at the terminal, like those of `edgeinfer run`.

In: a toolbox, a dialogue, a function that prints a stream. Out: the answer with its calls. Ctrl-C during a call stops
the answer and keeps what there is. Servers that failed are tried again with each question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.app.chat.dialogue import Dialogue, GivenAnswer
from edgeinfer.app.mcp.answering import ToolAnswering, ToolFace
from edgeinfer.app.mcp.terminal import ask_at_terminal, tell_at_terminal, try_again_at_terminal, waiting_at_terminal
from edgeinfer.app.sessions.records import Attachment, MadeCall, ToolRound

if TYPE_CHECKING:
    from edgeinfer.app.mcp.toolbox import Toolbox, ToolResult
    from edgeinfer.engine.scheduler.stream import TextStream

Print = Callable[["TextStream"], bool]
"""Prints a stream to its end; whether it was interrupted."""


class ToolTurns:
    """The answers of a dialogue with tools. Permissions "always" last as long as this does."""

    def __init__(self, toolbox: Toolbox, dialogue: Dialogue, show: Print) -> None:
        self._toolbox, self._dialogue, self._show = toolbox, dialogue, show
        self._allowed: set[str] = set()
        self._stream: TextStream | None = None
        self._noted: TextStream | None = None
        self._rounds: list[ToolRound] = []

    def answer(self, question: str | None, attachments: Sequence[Attachment] = ()) -> tuple[GivenAnswer, bool]:
        """Answer a question (None: the last one again): the answer, and whether it was interrupted."""
        try_again_at_terminal(self._toolbox)
        self._stream, self._noted, self._rounds = None, None, []
        begin = partial(self._begin, is_again=question is None)
        face = ToolFace(begin, self._show, ask_at_terminal, self._tell, self._calling, waiting=waiting_at_terminal)
        answering = ToolAnswering(self._toolbox, face, allowed=self._allowed)
        try:
            interrupted = answering.answer(self._dialogue.prompt(question, attachments)).interrupted
        except KeyboardInterrupt:
            if self._stream is None or self._stream.stats is None:
                raise
            interrupted = True
        stream = self._stream
        assert stream is not None
        return GivenAnswer(stream, "" if stream is self._noted else stream.text, tuple(self._rounds)), interrupted

    def _begin(self, conversation: list[dict[str, Any]], further: Mapping[str, Any], *, is_again: bool) -> TextStream:
        self._stream = self._dialogue.begin(conversation, further, is_again=is_again)
        return self._stream

    def _calling(self, stream: TextStream, name: str) -> None:
        if stream is not self._noted:
            self._noted = stream
            self._rounds.append(ToolRound(stream.content, thoughts=stream.reasoning))

    def _tell(self, name: str, arguments: str, result: ToolResult) -> None:
        call = MadeCall(name, arguments or "{}", result.text, result.failed)
        self._rounds[-1] = replace(self._rounds[-1], calls=(*self._rounds[-1].calls, call))
        tell_at_terminal(name, arguments, result)
