"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgeinfer.app.server.answers import (
    Envelope,
    Record,
    Said,
    calls_of,
    chat_logprobs,
    finish_reason,
    measured,
    timings_of,
    usage_of,
)
from edgeinfer.app.server.asked import ChatRequest
from edgeinfer.app.server.parts import EventWriter
from edgeinfer.app.server.sending import read_all, side_by_side, streaming
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import ANSWERED
from edgeinfer.app.server.wanted import chat_options, messages_of, seeded

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.stream import TextStream
    from edgeinfer.models.text import Tokenizer

router = APIRouter(tags=["answers"])


@router.post("/v1/chat/completions", responses=ANSWERED, response_model=None)
@router.post("/chat/completions", include_in_schema=False, response_model=None)
async def chat_completions(asked: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    state, n = state_of(request), asked.n or 1
    async with AsyncExitStack() as held:
        hosted = await held.enter_async_context(state.model(asked.model, n))
        streams = await asyncio.to_thread(_streams, asked, hosted, state, n)
        envelope = Envelope("chat.completion", hosted.name, hosted.llm.info.fingerprint[:16])
        if asked.stream:
            events = _events(asked, hosted, streams, envelope, state)
            return streaming(events, held.pop_all().aclose)
        await read_all(streams, request)
        stats = measured(streams)
        state.metrics.answered(hosted.name, stats)
        choices = [_choice(number, stream, hosted) for number, stream in enumerate(streams)]
        return JSONResponse(envelope.record(choices, usage=usage_of(stats), timings=timings_of(stats[0])))


def _streams(asked: ChatRequest, hosted: Hosted, state: State, n: int) -> list[TextStream]:
    """The answers that are asked for, none of which has begun."""
    options, messages = chat_options(asked, state.defaults), messages_of(asked.messages)
    priority = asked.priority or "interactive"
    return [hosted.llm.chat(messages, priority=priority, **each) for each in seeded(options, n)]


def _choice(number: int, stream: TextStream, hosted: Hosted) -> Record:
    """A whole answer."""
    assert stream.stats is not None
    told, said = stream.logprobs, Said(stream)
    content = said.push(stream.text) + said.finish()
    message: Record = {"role": "assistant", "content": content, "refusal": None}
    if said.calls:
        message |= {"content": content or None, "tool_calls": calls_of(said.calls)}
    return {
        "index": number,
        "message": message,
        "logprobs": chat_logprobs(told, hosted.llm.prompts.tokenizer) if told else None,
        "finish_reason": finish_reason(stream.stats, len(said.calls)),
    }


class _ChatEvents:
    """What is told of one answer as it arrives; the probabilities of tokens with whatever is told next."""

    def __init__(self, stream: TextStream, number: int, parts: EventWriter, tokenizer: Tokenizer | None) -> None:
        """`tokenizer`: of the tokens whose probabilities are told; None: of none."""
        self._stream, self._number, self._parts, self._tokenizer = stream, number, parts, tokenizer
        self._said = Said(stream)
        self._n_calls = self._n_told = 0

    def begin(self) -> bytes:
        """Who speaks."""
        return self._parts.part(self._number, {"delta": {"role": "assistant", "content": None}})

    def more(self, text: str) -> Iterator[bytes]:
        """More of its text."""
        return self._deltas(self._said.push(text))

    def end(self, stats: Stats) -> Iterator[bytes]:
        """What was held back of it, and why it ended."""
        yield from self._deltas(self._said.finish())
        yield self._parts.last(self._number, {"delta": {}}, self._logprobs(), stats, self._n_calls)

    def _deltas(self, content: str) -> Iterator[bytes]:
        if content:
            yield self._delta({"content": content})
        new = self._said.calls[self._n_calls :]
        if new:
            calls = calls_of(new, self._n_calls, is_part=True)
            self._n_calls += len(new)
            yield self._delta({"tool_calls": calls})

    def _delta(self, delta: Record) -> bytes:
        return self._parts.part(self._number, {"delta": delta}, self._logprobs())

    def _logprobs(self) -> Record | None:
        """The probabilities of tokens that were not told yet."""
        if self._tokenizer is None:
            return None
        new = self._stream.logprobs[self._n_told :]
        self._n_told += len(new)
        return chat_logprobs(new, self._tokenizer) if new else None


async def _events(
    asked: ChatRequest, hosted: Hosted, streams: Sequence[TextStream], envelope: Envelope, state: State
) -> AsyncIterator[bytes]:
    """Answers in parts: who speaks, then text, then why it ended; then what it took."""
    parts, tokenizer = EventWriter(asked, envelope), hosted.llm.prompts.tokenizer if asked.logprobs else None
    answers = [_ChatEvents(stream, number, parts, tokenizer) for number, stream in enumerate(streams)]
    for answer in answers:
        yield answer.begin()
    async for number, text in side_by_side(streams):
        for part in answers[number].more(text):
            yield part
    stats = measured(streams)
    state.metrics.answered(hosted.name, stats)
    for answer, each in zip(answers, stats, strict=True):
        for part in answer.end(each):
            yield part
    yield parts.end(usage_of(stats))
