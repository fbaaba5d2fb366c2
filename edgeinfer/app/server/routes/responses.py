"""POST /v1/responses: OpenAI's newer form of an answer, without anything kept between requests."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from edgeinfer.app.server.answers import Record, usage_of
from edgeinfer.app.server.asked_responses import NamedChoice, ResponseRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.routes.chat import measured
from edgeinfer.app.server.sending import EVERY_S, read_all, streaming
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import ANSWERED
from edgeinfer.app.server.wanted import chat_options, messages_of

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
    from edgeinfer.engine.stats import Stats
    from edgeinfer.engine.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall

router = APIRouter(tags=["answers"])


@router.post("/v1/responses", responses=ANSWERED, response_model=None)
@router.post("/responses", include_in_schema=False, response_model=None)
async def responses(asked: ResponseRequest, request: Request) -> Response:
    """Answer an input, whole or as a stream of events."""
    state = state_of(request)
    async with AsyncExitStack() as held:
        hosted = await held.enter_async_context(state.model(asked.model, 1))
        stream = await asyncio.to_thread(_stream, asked, hosted, state)
        frame = _Frame(asked, hosted)
        if asked.stream:
            return streaming(_events(stream, frame, hosted, state), held.pop_all().aclose)
        await read_all([stream], request)
        (stats,) = measured([stream])
        state.metrics.answered(hosted.name, [stats])
        return JSONResponse(frame.done(_output(stream.content, stream.tool_calls, frame), stats))


def _stream(asked: ResponseRequest, hosted: Hosted, state: State) -> TextStream:
    """The answer that is asked for, which has not begun."""
    try:
        chat = asked.as_chat()
    except ValidationError as reason:
        raise Refusal(400, f"the input is not valid: {reason.errors()[0]['msg']}", param="input") from None
    return hosted.llm.chat(messages_of(chat.messages), **chat_options(chat, state.defaults))


class _Frame:
    """What all records of one response have in common."""

    def __init__(self, asked: ResponseRequest, hosted: Hosted) -> None:
        self._asked = asked
        self._model = hosted.name
        self._created = int(time.time())
        self.identity = secrets.token_hex(16)

    def record(self, status: str, output: Sequence[Record] = (), usage: Record | None = None) -> Record:
        """The response as it stands."""
        asked, choice = self._asked, self._asked.tool_choice
        return {
            "id": f"resp_{self.identity}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": {},
            "model": self._model,
            "output": list(output),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "tool_choice": choice.model_dump() if isinstance(choice, NamedChoice) else choice or "auto",
            "tools": [tool.model_dump() for tool in asked.tools or ()],
            "top_p": asked.top_p,
            "usage": usage,
        }

    def done(self, output: Sequence[Record], stats: Stats) -> Record:
        """The whole response."""
        took = usage_of([stats])
        usage = {
            "input_tokens": took["prompt_tokens"],
            "input_tokens_details": took["prompt_tokens_details"],
            "output_tokens": took["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": took["total_tokens"],
        }
        return self.record("incomplete" if stats.finish_reason == "length" else "completed", output, usage)

    def message(self, text: str, status: str = "completed") -> Record:
        """The message of the response."""
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


def _output(content: str, calls: Sequence[ToolCall], frame: _Frame) -> list[Record]:
    """What was put out: a message, unless there are calls and nothing else, and the calls."""
    said = [frame.message(content)] if content.strip() or not calls else []
    return [*said, *map(_call, calls)]


async def _events(stream: TextStream, frame: _Frame, hosted: Hosted, state: State) -> AsyncIterator[bytes]:
    """The response as it comes to be: its frame, its text in parts, its calls, and then all of it."""
    number = 0

    def event(kind: str, **more: object) -> bytes:
        nonlocal number
        record = {"type": kind, "sequence_number": number, **more}
        number += 1
        return f"event: {kind}\ndata: {json.dumps(record, ensure_ascii=False)}\n\n".encode()

    yield event("response.created", response=frame.record("in_progress"))
    yield event("response.in_progress", response=frame.record("in_progress"))
    reader, said = stream.reader, ""
    where = {"item_id": f"msg_{frame.identity}", "output_index": 0, "content_index": 0}
    async for text in stream.chunks(EVERY_S):
        content = text if reader is None else reader.push(text)
        if content and not said:
            yield event("response.output_item.added", output_index=0, item=frame.message("", "in_progress"))
            yield event("response.content_part.added", **where, part=_part(""))
        if content:
            said += content
            yield event("response.output_text.delta", **where, delta=content, logprobs=[])
    rest = "" if reader is None else reader.finish()
    if said:
        if rest:
            yield event("response.output_text.delta", **where, delta=rest, logprobs=[])
        said += rest
        yield event("response.output_text.done", **where, text=said, logprobs=[])
        yield event("response.content_part.done", **where, part=_part(said))
        yield event("response.output_item.done", output_index=0, item=frame.message(said))
    output = _output(said, () if reader is None else reader.calls, frame)
    for index, item in enumerate(output):
        if item["type"] == "function_call":
            begun, place = {**item, "arguments": "", "status": "in_progress"}, {"item_id": item["id"]}
            yield event("response.output_item.added", output_index=index, item=begun)
            arguments = item["arguments"]
            yield event("response.function_call_arguments.delta", output_index=index, delta=arguments, **place)
            yield event(
                "response.function_call_arguments.done",
                output_index=index,
                arguments=arguments,
                name=item["name"],
                **place,
            )
            yield event("response.output_item.done", output_index=index, item=item)
    (stats,) = measured([stream])
    state.metrics.answered(hosted.name, [stats])
    whole = frame.done(output, stats)
    yield event(f"response.{whole['status']}", response=whole)
