"""Several answers to a conversation of which one is kept: the field `edgeinfer` of a chat request.

In: how many, how one is kept, and whether all are streamed. Out: the text of all as it comes, the answer that is kept.
A check by a command is not for clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.requests import ChatRequest, RequestBody, Text

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.several.several import Several
    from edgeinfer.scheduling.allotment import Priority

MOST_ANSWERS = 64


class SeveralAnswers(RequestBody):
    """Write `answers` answers side by side and keep the one that `pick` names; other fields as `LLM.several` has them.

    `stream_all`: a stream has all of them, each as a choice with an index, not only the one that is kept.
    """

    answers: Annotated[int, Field(ge=1, le=MOST_ANSWERS)]
    pick: Literal["vote", "weighted", "shortest", "first", "likely", "medoid"] = "vote"
    vote_by: Text = "auto"
    enough: Annotated[int, Field(ge=0, le=MOST_ANSWERS)] = 0
    confidence: Annotated[float, Field(gt=0, le=1)] = 1.0
    most_entropy: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    most_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    most_s: Annotated[float, Field(ge=0, le=1 << 31, allow_inf_nan=False)] = 0.0
    lead: Annotated[str, Field(max_length=500)] = "independent"
    stream_all: bool = False

    def begun(self, llm: LLM, messages: Messages, options: Options, priority: Priority) -> Several:
        """Begin the answers. Raises as `LLM.several`."""
        return llm.several(
            messages,
            self.answers,
            pick=self.pick,
            answer=self.vote_by,
            enough=self.enough,
            most_entropy=self.most_entropy,
            confidence=self.confidence,
            most_tokens=self.most_tokens,
            most_s=self.most_s,
            lead=self.lead,
            priority=priority,
            **options,
        )


class SeveralChatRequest(ChatRequest):
    """A chat request that may ask for several answers of which one is kept."""

    edgeinfer: SeveralAnswers | None = None

    def check_several(self) -> None:
        """Raises APIError for fields that several answers of which one is kept cannot have."""
        if (self.n or 1) > 1:
            raise APIError(400, "with edgeinfer.answers one of them is told: leave n out", param="n")
        if self.edgeinfer is not None and self.edgeinfer.stream_all and not self.stream:
            message = "edgeinfer.stream_all is of streams: add stream, or leave it out, as a whole answer tells all"
            raise APIError(400, message, param="edgeinfer.stream_all")


def told_later(answer: TextStream) -> FollowedStream:
    """One of several answers, whose text is taken together with that of the others."""
    return FollowedStream(lambda progress: answer, None)


class WrittenTogether:
    """Several answers, for what reads them in the server's loop."""

    def __init__(self, several: Several) -> None:
        self.several = several

    async def chunks(self, every_s: float) -> AsyncIterator[str]:
        """An empty text for each piece that comes, for readers of whom only the end matters."""
        async for _ in self.several:
            yield ""

    async def parts(self, every_s: float) -> AsyncIterator[tuple[int, str]]:
        """The text that has come of each answer, with its number, at most once every `every_s` seconds."""
        arrived, texts = asyncio.Event(), dict[int, str]()

        async def follow() -> None:
            try:
                async for piece in self.several:
                    texts[piece.number] = texts.get(piece.number, "") + piece.text
                    arrived.set()
            finally:
                arrived.set()

        following = asyncio.create_task(follow())
        try:
            while texts or not following.done():
                await arrived.wait()
                arrived.clear()
                for number in sorted(texts):
                    yield number, texts.pop(number)
                await asyncio.wait({following}, timeout=every_s)
            following.result()
        finally:
            self.stop()
            following.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await following

    def stop(self) -> None:
        """End all answers."""
        self.several.stop()
