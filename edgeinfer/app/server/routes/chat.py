"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgeinfer.app.server.errors import ANSWER_RESPONSES
from edgeinfer.app.server.objects import (
    Envelope,
    Record,
    chat_logprobs,
    finish_reason,
    finished_stats,
    timings_record,
    tool_call_records,
    usage_record,
)
from edgeinfer.app.server.requests import ChatRequest, chat_options, messages_of, seeded
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import ChunkWriter, ContentReader, read_all, side_by_side, streaming

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text import Tokenizer

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/v1/chat/completions", responses=ANSWER_RESPONSES, response_model=None)
@ROUTER.post("/chat/completions", include_in_schema=False, response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, as one response or as a stream of events."""
    state, n = server_state(request), body.n or 1
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, n, request))
        streams = await asyncio.to_thread(_streams, body, model, state, n)
        envelope = Envelope("chat.completion", model.name, model.llm.info.fingerprint[:16])
        if body.stream:
            events = _events(body, model, streams, envelope, state)
            return streaming(events, held.pop_all().aclose)
        await read_all(streams, request)
        stats = finished_stats(streams)
        state.metrics.answered(model.name, stats)
        choices = [_choice(number, stream, model) for number, stream in enumerate(streams)]
        return JSONResponse(envelope.record(choices, usage=usage_record(stats), timings=timings_record(stats[0])))


def _streams(body: ChatRequest, model: PooledModel, state: ServerState, n: int) -> list[TextStream]:
    """Create the streams of a request without starting them."""
    options, messages = chat_options(body, state.defaults_of(model)), messages_of(body.messages)
    priority = body.priority or "interactive"
    return [model.llm.chat(messages, priority=priority, **choice) for choice in seeded(options, n)]


def _choice(number: int, stream: TextStream, model: PooledModel) -> Record:
    """A complete choice."""
    assert stream.stats is not None
    logprobs, reader = stream.logprobs, ContentReader(stream)
    content = reader.push(stream.text) + reader.finish()
    message: Record = {"role": "assistant", "content": content, "refusal": None}
    if thoughts := reader.new_thoughts():
        message["reasoning_content"] = thoughts
    if reader.calls:
        message |= {"content": content or None, "tool_calls": tool_call_records(reader.calls)}
    return {
        "index": number,
        "message": message,
        "logprobs": chat_logprobs(logprobs, model.llm.prompts.tokenizer) if logprobs else None,
        "finish_reason": finish_reason(stream.stats, len(reader.calls)),
    }


class _ChatChunks:
    """Turns the text of one choice into chunks as it arrives; log probabilities go with the next chunk."""

    def __init__(self, stream: TextStream, number: int, writer: ChunkWriter, tokenizer: Tokenizer | None) -> None:
        """`tokenizer`: for log probabilities; None leaves them out."""
        self._stream, self._number, self._writer, self._tokenizer = stream, number, writer, tokenizer
        self._reader = ContentReader(stream)
        self._n_calls = self._n_logprobs = 0

    def begin(self) -> bytes:
        """The first chunk, which has the role; its content is null, as llama-server's is."""
        return self._writer.chunk(self._number, {"delta": {"role": "assistant", "content": None}})

    def more(self, text: str) -> Iterator[bytes]:
        """Add text and yield its chunks."""
        return self._deltas(self._reader.push(text))

    def end(self, stats: Stats) -> Iterator[bytes]:
        """Yield the content that was held back, then the last chunk."""
        yield from self._deltas(self._reader.finish())
        yield self._writer.last(self._number, {"delta": {}}, self._logprobs(), stats, self._n_calls)

    def _deltas(self, content: str) -> Iterator[bytes]:
        if thoughts := self._reader.new_thoughts():
            yield self._delta({"reasoning_content": thoughts})
        if content:
            yield self._delta({"content": content})
        new = self._reader.calls[self._n_calls :]
        if new:
            calls = tool_call_records(new, self._n_calls, is_chunk=True)
            self._n_calls += len(new)
            yield self._delta({"tool_calls": calls})

    def _delta(self, delta: Record) -> bytes:
        return self._writer.chunk(self._number, {"delta": delta}, self._logprobs())

    def _logprobs(self) -> Record | None:
        """The log probabilities that have not been sent yet."""
        if self._tokenizer is None:
            return None
        new = self._stream.logprobs[self._n_logprobs :]
        self._n_logprobs += len(new)
        return chat_logprobs(new, self._tokenizer) if new else None


async def _events(
    body: ChatRequest, model: PooledModel, streams: Sequence[TextStream], envelope: Envelope, state: ServerState
) -> AsyncIterator[bytes]:
    """Yield the roles, the chunks of text, the finish reasons, then the usage."""
    writer, tokenizer = ChunkWriter(body, envelope), model.llm.prompts.tokenizer if body.logprobs else None
    choices = [_ChatChunks(stream, number, writer, tokenizer) for number, stream in enumerate(streams)]
    for choice in choices:
        yield choice.begin()
    async for number, text in side_by_side(streams):
        for chunk in choices[number].more(text):
            yield chunk
    stats = finished_stats(streams)
    state.metrics.answered(model.name, stats)
    for choice, ended in zip(choices, stats, strict=True):
        for chunk in choice.end(ended):
            yield chunk
    yield writer.end(usage_record(stats))
