"""POST /v1/responses: OpenAI's newer form of an answer, without anything kept between requests."""

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

from edgeinfer.app.server.answers import Record, Said, measured, usage_of
from edgeinfer.app.server.asked_responses import NamedChoice, ResponseRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.sending import EVERY_S, read_all, streaming
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import ANSWERED
from edgeinfer.app.server.wanted import chat_options, messages_of

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
    from edgeinfer.engine.scheduler.stats import Stats
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


class _ResponseEvents:
    """What is told of a response as it comes to be: numbered events."""

    def __init__(self, frame: _Frame) -> None:
        self._frame = frame
        self._where = {"item_id": f"msg_{frame.identity}", "output_index": 0, "content_index": 0}
        self._number = 0
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The text of the message so far."""
        return self._text or ""

    def event(self, kind: str, **more: object) -> bytes:
        record = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(record, ensure_ascii=False)}\n\n".encode()

    def begin(self) -> Iterator[bytes]:
        """The response is being made."""
        for kind in ("response.created", "response.in_progress"):
            yield self.event(kind, response=self._frame.record("in_progress"))

    def more(self, content: str) -> Iterator[bytes]:
        """More of the message, which begins with it."""
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
        """The message is whole, or there is a call, which is whole when it is told."""
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


async def _events(stream: TextStream, frame: _Frame, hosted: Hosted, state: State) -> AsyncIterator[bytes]:
    """The response as it comes to be: its frame, its text in parts, its calls, and then all of it."""
    telling, said = _ResponseEvents(frame), Said(stream)
    for event in telling.begin():
        yield event
    async for text in stream.chunks(EVERY_S):
        for event in telling.more(said.push(text)):
            yield event
    for event in telling.more(said.finish()):
        yield event
    output = _output(telling.text, said.calls, frame)
    for index, item in enumerate(output):
        for event in telling.item(index, item):
            yield event
    (stats,) = measured([stream])
    state.metrics.answered(hosted.name, [stats])
    whole = frame.done(output, stats)
    yield telling.event(f"response.{whole['status']}", response=whole)
