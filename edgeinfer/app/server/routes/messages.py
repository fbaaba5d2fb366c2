"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgeinfer.app.server.anthropic_schemas import CountTokensRequest, MessagesRequest
from edgeinfer.app.server.anthropic_stream import (
    ANTHROPIC,
    PING,
    BlockEvents,
    anthropic_event,
    blocks_of,
    ending,
    message_record,
    usage_of,
)
from edgeinfer.app.server.errors import ANTHROPIC_ANSWER_RESPONSES, ANTHROPIC_RESPONSES
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.message_contents import first_media, messages_of
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import ChatRequest, chat_options
from edgeinfer.app.server.routes.chat import n_prompt_tokens
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import EVERY_S, ContentReader, read_all, streaming

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/v1/messages", responses=ANTHROPIC_ANSWER_RESPONSES, response_model=None)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, as one message or as a stream of events."""
    state, chat = server_state(request), body.as_chat()
    media = first_media(chat.messages)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, 1, request, media))
        stream = await state.begun(lambda go_on: _stream(chat, model, state, go_on), request, media)
        if body.stream:
            return streaming(_events(body, model, stream, state), held.pop_all().aclose, ANTHROPIC)
        await read_all([stream], request)
        return JSONAnswer(_message(body, model, stream, state))


@ROUTER.post("/v1/messages/count_tokens", responses=ANTHROPIC_RESPONSES)
async def count_tokens(body: CountTokensRequest, request: Request) -> Record:
    """Count the tokens of a conversation, with the tools that go with it."""
    return {"input_tokens": await n_prompt_tokens(body.as_chat(), request)}


def _stream(chat: ChatRequest, model: PooledModel, state: ServerState, go_on: Progress) -> TextStream:
    """Create the stream of a request without starting it; `go_on` raises to end that."""
    messages, options = messages_of(chat.messages, state.images(go_on)), chat_options(chat, state.defaults_of(model))
    begin = partial(model.llm.chat, messages, priority=chat.priority or "interactive", **options)
    return FollowedStream(begin, None, go_on).stream


def _message(body: MessagesRequest, model: PooledModel, stream: TextStream, state: ServerState) -> Record:
    """The whole message."""
    (stats,) = state.answered(model, [stream], body.id_slot, body.lora)
    reader = ContentReader(stream)
    content = reader.push(stream.text) + reader.finish()
    blocks = blocks_of(reader.new_thoughts(), content, reader.calls, shows_thoughts=body.shows_thoughts)
    end = ending(stream, stats, body.stop_sequences or (), len(reader.calls))
    return message_record(model.name, blocks, usage_of(stats), end)


async def _events(
    body: MessagesRequest, model: PooledModel, stream: TextStream, state: ServerState
) -> AsyncIterator[bytes]:
    """Yield the beginning of the message, its blocks, why it ended with its usage, and its end."""
    blocks = BlockEvents(stream, shows_thoughts=body.shows_thoughts)
    begun = {"input_tokens": stream.live.n_prompt, "output_tokens": 0}  # what of it was read before is not known yet
    yield anthropic_event("message_start", message=message_record(model.name, (), begun)) + PING
    async for text in stream.chunks(EVERY_S):
        for event in blocks.more(text):
            yield event
    for event in blocks.end():
        yield event
    (stats,) = state.answered(model, [stream], body.id_slot, body.lora)
    end = ending(stream, stats, body.stop_sequences or (), blocks.n_calls)
    yield anthropic_event("message_delta", delta=end, usage=usage_of(stats))
    yield anthropic_event("message_stop")
