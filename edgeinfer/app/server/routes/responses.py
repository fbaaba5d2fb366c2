"""POST /v1/responses: OpenAI's Responses API, stateless."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from edgeinfer.app.server.errors import ANSWER_RESPONSES, APIError
from edgeinfer.app.server.objects import Record, finished_stats, usage_record
from edgeinfer.app.server.requests import chat_options, messages_of
from edgeinfer.app.server.responses_schemas import NamedChoice, ResponseRequest
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import EVERY_S, ContentReader, read_all, streaming

if TYPE_CHECKING:
    from edgeinfer.app.server.model_pool import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/v1/responses", responses=ANSWER_RESPONSES, response_model=None)
@ROUTER.post("/responses", include_in_schema=False, response_model=None)
async def responses(body: ResponseRequest, request: Request) -> Response:
    """Answer an input, as one response or as a stream of events."""
    state = server_state(request)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, 1))
        stream = await asyncio.to_thread(_stream, body, model, state)
        frame = _ResponseObject(body, model)
        if body.stream:
            return streaming(_events(stream, frame, model, state), held.pop_all().aclose)
        await read_all([stream], request)
        (stats,) = finished_stats([stream])
        state.metrics.answered(model.name, [stats])
        return JSONResponse(frame.done(_output(stream.content, stream.tool_calls, frame), stats))


def _stream(body: ResponseRequest, model: PooledModel, state: ServerState) -> TextStream:
    """Create the stream of a request without starting it."""
    try:
        chat = body.as_chat()
    except ValidationError as reason:
        raise APIError(400, f"the input is not valid: {reason.errors()[0]['msg']}", param="input") from None
    return model.llm.chat(messages_of(chat.messages), **chat_options(chat, state.defaults))


class _ResponseObject:
    """The response object in its successive states."""

    def __init__(self, body: ResponseRequest, model: PooledModel) -> None:
        self._body = body
        self._model = model.name
        self._created = int(time.time())
        self.identity = secrets.token_hex(16)

    def record(self, status: str, output: Sequence[Record] = (), usage: Record | None = None) -> Record:
        """The response object in the given state."""
        body = self._body
        named = isinstance(body.tool_choice, NamedChoice) and body.tool_choice.model_dump(exclude_none=True)
        return {
            "id": f"resp_{self.identity}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self._model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "tool_choice": named or body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": body.top_p,
            "usage": usage,
        }

    def done(self, output: Sequence[Record], stats: Stats) -> Record:
        """The completed response object."""
        counts = usage_record([stats])
        usage = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        }
        return self.record("incomplete" if stats.finish_reason == "length" else "completed", output, usage)

    def message(self, text: str, status: str = "completed") -> Record:
        """The message item of the response."""
        content = [_part(text)] if status == "completed" else []
        identity = f"msg_{self.identity}"
        return {"type": "message", "id": identity, "status": status, "role": "assistant", "content": content}


def _part(text: str) -> Record:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: ToolCall) -> Record:
    identity = secrets.token_hex(12)
    return {
        "type": "function_call",
        "id": f"fc_{identity}",
        "call_id": f"call_{identity}",
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _output(content: str, calls: Sequence[ToolCall], frame: _ResponseObject) -> list[Record]:
    """The output items: a message (unless there are only tool calls), then the tool calls."""
    messages = [frame.message(content)] if content.strip() or not calls else []
    return [*messages, *map(_call, calls)]


class _ResponseEvents:
    """Writes the numbered events of a response."""

    def __init__(self, frame: _ResponseObject) -> None:
        self._frame = frame
        self._where = {"item_id": f"msg_{frame.identity}", "output_index": 0, "content_index": 0}
        self._number = 0
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The message text so far."""
        return self._text or ""

    def event(self, kind: str, **more: object) -> bytes:
        record = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(record, ensure_ascii=False)}\n\n".encode()

    def begin(self) -> Iterator[bytes]:
        """Yield the events that start the response."""
        for kind in ("response.created", "response.in_progress"):
            yield self.event(kind, response=self._frame.record("in_progress"))

    def more(self, content: str) -> Iterator[bytes]:
        """Add content to the message; the first content starts it."""
        if content:
            yield from self._begin_message()
            self._text = self.text + content
            yield self.event("response.output_text.delta", **self._where, delta=content, logprobs=[])

    def _begin_message(self) -> Iterator[bytes]:
        if self._text is None:
            self._text = ""
            begun = self._frame.message("", "in_progress")
            yield self.event("response.output_item.added", output_index=0, item=begun)
            yield self.event("response.content_part.added", **self._where, part=_part(""))

    def item(self, index: int, item: Record) -> Iterator[bytes]:
        """Yield the events of a finished message, or all events of a tool call, which always arrives complete."""
        yield from self._end_message() if item["type"] == "message" else self._call(index, item)
        yield self.event("response.output_item.done", output_index=index, item=item)

    def _end_message(self) -> Iterator[bytes]:
        yield from self._begin_message()
        yield self.event("response.output_text.done", **self._where, text=self.text, logprobs=[])
        yield self.event("response.content_part.done", **self._where, part=_part(self.text))

    def _call(self, index: int, item: Record) -> Iterator[bytes]:
        arguments, place = item["arguments"], {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=index, item=begun)
        yield self.event("response.function_call_arguments.delta", delta=arguments, **place)
        yield self.event("response.function_call_arguments.done", arguments=arguments, name=item["name"], **place)


async def _events(
    stream: TextStream, frame: _ResponseObject, model: PooledModel, state: ServerState
) -> AsyncIterator[bytes]:
    """Yield all events of a response: start, text deltas, tool calls, and the completed response."""
    events, reader = _ResponseEvents(frame), ContentReader(stream)
    for event in events.begin():
        yield event
    async for text in stream.chunks(EVERY_S):
        for event in events.more(reader.push(text)):
            yield event
    for event in events.more(reader.finish()):
        yield event
    output = _output(events.text, reader.calls, frame)
    for index, item in enumerate(output):
        for event in events.item(index, item):
            yield event
    (stats,) = finished_stats([stream])
    state.metrics.answered(model.name, [stats])
    whole = frame.done(output, stats)
    yield events.event(f"response.{whole['status']}", response=whole)
