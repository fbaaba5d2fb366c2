"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgeinfer.app.server.answers import Envelope, Record, calls_of, chat_logprobs, finish_reason, timings_of, usage_of
from edgeinfer.app.server.asked import ChatRequest
from edgeinfer.app.server.sending import DONE, event, read_all, side_by_side, streaming
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import ANSWERED
from edgeinfer.app.server.wanted import chat_options, messages_of, seeded

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
    from edgeinfer.engine.stats import Stats
    from edgeinfer.engine.stream import TextStream

router = APIRouter(tags=["answers"])


@router.post("/v1/chat/completions", responses=ANSWERED, response_model=None)
@router.post("/chat/completions", include_in_schema=False, response_model=None)
async def chat_completions(asked: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    state, n = state_of(request), asked.n or 1
    async with AsyncExitStack() as held:
        hosted = await held.enter_async_context(state.model(asked.model, n))
        streams = await asyncio.to_thread(_streams, asked, hosted, state, n)
        envelope = Envelope("chat.completion", hosted.name, hosted.llm.facts.fingerprint[:16])
        if asked.stream:
            events = _events(asked, hosted, streams, envelope, state)
            return streaming(events, held.pop_all().aclose)
        await read_all(streams, request)
        stats = measured(streams)
        state.metrics.answered(hosted.name, stats)
        choices = [_choice(number, stream, hosted) for number, stream in enumerate(streams)]
        return JSONResponse(envelope.record(choices, usage=usage_of(stats), timings=timings_of(stats[0])))


def measured(streams: Sequence[TextStream]) -> list[Stats]:
    """The numbers of answers that are over."""
    return [stream.stats for stream in streams if stream.stats is not None]


def _streams(asked: ChatRequest, hosted: Hosted, state: State, n: int) -> list[TextStream]:
    """The answers that are asked for, none of which has begun."""
    options, messages = chat_options(asked, state.defaults), messages_of(asked.messages)
    priority = asked.priority or "interactive"
    return [hosted.llm.chat(messages, priority=priority, **each) for each in seeded(options, n)]


def _choice(number: int, stream: TextStream, hosted: Hosted) -> Record:
    """A whole answer."""
    assert stream.stats is not None
    told, calls = stream.logprobs, stream.tool_calls
    message: Record = {"role": "assistant", "content": stream.content, "refusal": None}
    if calls:
        message |= {"content": stream.content.strip() or None, "tool_calls": calls_of(calls)}
    return {
        "index": number,
        "message": message,
        "logprobs": chat_logprobs(told, hosted.llm.prompts.tokenizer) if told else None,
        "finish_reason": finish_reason(stream.stats, len(calls)),
    }


class _Parts:
    """Turns a stream's text into what parts of its message say: content, and calls once they are whole."""

    def __init__(self, stream: TextStream) -> None:
        self._reader = stream.reader
        self.n_calls = 0

    def of(self, text: str, *, is_last: bool = False) -> list[Record]:
        """The deltas of some more text, or of its end."""
        reader = self._reader
        if reader is None:
            return [{"content": text}] if text else []
        content = reader.push(text) + (reader.finish() if is_last else "")
        deltas: list[Record] = [{"content": content}] if content and not self.n_calls else []
        new = reader.calls[self.n_calls :]
        if new:
            deltas.append({"tool_calls": calls_of(new, self.n_calls, is_part=True)})
            self.n_calls += len(new)
        return deltas


async def _events(
    asked: ChatRequest, hosted: Hosted, streams: Sequence[TextStream], envelope: Envelope, state: State
) -> AsyncIterator[bytes]:
    """Answers in parts: who speaks, then text, then why it ended; then what it took."""
    wants_usage = asked.stream_options is not None and asked.stream_options.include_usage
    more = {"usage": None} if wants_usage else {}

    def part(number: int, delta: Record, reason: str | None = None, **further: object) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": further.pop("logprobs", None), "finish_reason": reason}
        return event(envelope.record([choice], is_part=True, **more, **further))

    for number in range(len(streams)):
        yield part(number, {"role": "assistant", "content": None})
    n_told, parts = [0] * len(streams), [_Parts(stream) for stream in streams]
    async for number, text in side_by_side(streams):
        told = None
        if asked.logprobs:
            told = chat_logprobs(streams[number].logprobs[n_told[number] :], hosted.llm.prompts.tokenizer)
            n_told[number] += len(told["content"])
        for delta in parts[number].of(text):
            yield part(number, delta, logprobs=told)
            told = None
    stats = measured(streams)
    state.metrics.answered(hosted.name, stats)
    for number, each in enumerate(stats):
        for delta in parts[number].of("", is_last=True):
            yield part(number, delta)
        yield part(number, {}, finish_reason(each, parts[number].n_calls), timings=timings_of(each))
    if wants_usage:
        yield event(envelope.record([], is_part=True, usage=usage_of(stats)))
    yield DONE
