"""Several answers to a conversation of which one is told: the field `edgeinfer` of a chat request.

In: how many, and how one is kept. Out: the answer that is kept, and what is told of all. A check by a command is not
for clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from edgeinfer.app.server.requests import ChatRequest, RequestBody, Text

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.several.several import Several
    from edgeinfer.scheduling.allotment import Priority

MOST_ANSWERS = 64


class SeveralAnswers(RequestBody):
    """Write `answers` answers side by side and tell the one that `pick` keeps; the others as `LLM.several` has them."""

    answers: Annotated[int, Field(ge=1, le=MOST_ANSWERS)]
    pick: Literal["vote", "weighted", "shortest", "first", "likely", "medoid"] = "vote"
    vote_by: Text = "auto"
    enough: Annotated[int, Field(ge=0, le=MOST_ANSWERS)] = 0
    confidence: Annotated[float, Field(gt=0, le=1)] = 1.0
    most_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    most_s: Annotated[float, Field(ge=0, le=1 << 31, allow_inf_nan=False)] = 0.0

    def begun(self, llm: LLM, messages: Messages, options: Options, priority: Priority) -> Several:
        """Begin the answers. Raises as `LLM.several`."""
        return llm.several(
            messages,
            self.answers,
            pick=self.pick,
            answer=self.vote_by,
            enough=self.enough,
            confidence=self.confidence,
            most_tokens=self.most_tokens,
            most_s=self.most_s,
            priority=priority,
            **options,
        )


class SeveralChatRequest(ChatRequest):
    """A chat request that may ask for several answers of which one is told."""

    edgeinfer: SeveralAnswers | None = None


class WrittenTogether:
    """Several answers as one text that arrives, of which only the end matters."""

    def __init__(self, several: Several) -> None:
        self.several = several

    async def chunks(self, every_s: float) -> AsyncIterator[str]:
        """An empty text for each piece that comes."""
        async for _ in self.several:
            yield ""

    def stop(self) -> None:
        """End all answers."""
        self.several.stop()
