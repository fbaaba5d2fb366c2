"""Answers of the engine thread that call tools.

In: a job, a session, the chat's tools. Out: the text after the last calls; messages to the app about each round of
calls, and the question whether a call is allowed, for whose answer the thread waits. Touches no widget.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edgeinfer.app.mcp.answering import Permission, ToolAnswering, ToolFace
from edgeinfer.app.mcp.connections import LOOK_S
from edgeinfer.app.sessions.records import MadeCall, ToolRound
from edgeinfer.app.tui.engine_answer import JobAnswer, Make
from edgeinfer.app.tui.engine_messages import AnswerJob, CallAsked, CallBegun, CallMade, Notified, RoundBegun
from edgeinfer.app.tui.text.calls import ShownText

if TYPE_CHECKING:
    from textual.message import Message as AppMessage

    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.mcp.toolbox import OfferedTool, StartNews, ToolResult
    from edgeinfer.app.tui.engine import AnswerStream, ModelSession, Runs
    from edgeinfer.models.text import Message


class ToolAnswerJob(JobAnswer):
    """An answer that may call tools: several streams, of which the last gives the text."""

    def __init__(
        self, job: AnswerJob, session: ModelSession, make: Make, tools: ChatTools, post: Callable[[AppMessage], None]
    ) -> None:
        super().__init__(job, session, make)
        self._tools, self._post = tools, post
        self._shown = ShownText(None)
        self._noted: AnswerStream | None = None  # the last stream that called tools

    def generate(self) -> None:
        toolbox = self._tools.wait(self.job.stopped.is_set, self._tell_news)
        if toolbox is None:
            super().generate()
            return
        face = ToolFace(self._begin, self._show, self._ask, self._tell, self._calling, self.job.stopped.is_set)
        answering = ToolAnswering(toolbox, face, allowed=self._tools.allowed)
        answering.answer([_mapping(message) for message in self.job.messages])

    @property
    def text(self) -> str:
        if self.is_broken_off:
            return ""
        return self.before + self._shown.text if self._has_calls else super().text

    @property
    def runs(self) -> Runs:
        return () if self.is_broken_off or self._has_calls else super().runs

    @property
    def is_broken_off(self) -> bool:
        return self.stream is not None and self.stream is self._noted

    @property
    def _has_calls(self) -> bool:
        """Whether the stream has calls that were not made, as it was stopped."""
        return self.stream is not None and bool(self.stream.tool_calls)

    def _begin(self, conversation: list[dict[str, Any]], further: Mapping[str, Any]) -> Any:
        options: Any = {**self.job.options, **further}
        stream = self.session.chat(conversation, **options)
        self.before = "" if self._noted is not None else self.before
        self.stream, self._shown = stream, ShownText(stream.reader)
        return stream

    def _show(self, stream: Any) -> bool:
        self.make(stream, self._shown)
        return self.job.stopped.is_set()

    def _calling(self, stream: Any, name: str) -> None:
        if stream is not self._noted:
            self._noted = stream
            begun = ToolRound(self.before + stream.content, thoughts=stream.reasoning)
            self._post(RoundBegun(self.job.number, begun, self._shown.n_characters))
        self._post(CallBegun(self.job.number, name))

    def _ask(self, tool: OfferedTool, arguments: str) -> Permission:
        answers: queue.SimpleQueue[Permission] = queue.SimpleQueue()
        remote = tool.remote
        self._post(CallAsked(self.job.number, remote.server.name, remote.name, arguments, answers.put))
        while not self.job.stopped.is_set():
            with suppress(queue.Empty):
                return answers.get(timeout=LOOK_S)
        return Permission.NO

    def _tell_news(self, news: StartNews) -> None:
        self._post(Notified(news.text, is_error=news.failed))

    def _tell(self, name: str, arguments: str, result: ToolResult) -> None:
        self._post(CallMade(self.job.number, MadeCall(name, arguments or "{}", result.text, result.failed)))


def _mapping(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extra}
