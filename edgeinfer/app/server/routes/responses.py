"""POST /v1/responses: OpenAI's Responses API; responses are kept in memory for those that continue them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from edgeinfer.app.server.errors import ANSWER_RESPONSES, ERROR_RESPONSES, APIError, invalid
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.message_contents import first_media, messages_of
from edgeinfer.app.server.objects import Record, finished_stats
from edgeinfer.app.server.requests import ChatRequest, chat_options
from edgeinfer.app.server.responses_objects import ResponseObject
from edgeinfer.app.server.responses_schemas import Item, ResponseRequest, with_images
from edgeinfer.app.server.responses_stream import ResponseEvents
from edgeinfer.app.server.routes.chat import n_prompt_tokens
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import EVERY_S, ContentReader, read_all, streaming

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.images.image import Image
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/v1/responses", responses=ANSWER_RESPONSES, response_model=None)
@ROUTER.post("/responses", include_in_schema=False, response_model=None)
async def responses(body: ResponseRequest, request: Request) -> Response:
    """Answer an input, as one response or as a stream of events."""
    state = server_state(request)
    earlier = _earlier(body, state)
    body = _resolved(body, earlier, state)
    chat = _chat(body, earlier)
    media = first_media(chat.messages)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, 1, request, media))
        stream, fetched = await state.begun(lambda go_on: _stream(body, chat, model, state, go_on), request, media)
        answer = _Answer(body, earlier, stream, ResponseObject(body, model.name), model, state, fetched)
        if body.stream:
            return streaming(answer.events(), held.pop_all().aclose)
        await read_all([stream], request)
        reader = ContentReader(stream)
        content = reader.push(stream.text) + reader.finish()
        return JSONAnswer(answer.finished(reader.new_thoughts(), content, reader))


@ROUTER.post("/v1/responses/input_tokens", responses=ERROR_RESPONSES)
@ROUTER.post("/responses/input_tokens", include_in_schema=False)
async def input_tokens(body: ResponseRequest, request: Request) -> Record:
    """Count the tokens of an input, with its tools and what came before it."""
    state = server_state(request)
    earlier = _earlier(body, state)
    body = _resolved(body, earlier, state)
    n_tokens = await n_prompt_tokens(_chat(body, earlier), request)
    return {"object": "response.input_tokens", "input_tokens": n_tokens}


def _earlier(body: ResponseRequest, state: ServerState) -> tuple[Item, ...]:
    """The items of the conversation that an input continues. Raises APIError."""
    if body.previous_response_id is None:
        return ()
    found = state.responses.get(body.previous_response_id)
    if found is None:
        raise APIError(
            400,
            f"there is no response {body.previous_response_id!r}: the server keeps the latest, in memory and without "
            "store: false; send the whole conversation as input",
            "previous_response_not_found",
            "previous_response_id",
        )
    return found.items


def _resolved(body: ResponseRequest, earlier: Sequence[Item], state: ServerState) -> ResponseRequest:
    """A request whose input has the stored items that it refers to. Raises APIError."""
    if isinstance(body.input, str):
        return body
    return body.model_copy(update={"input": state.responses.resolved(body.input, earlier)})


def _chat(body: ResponseRequest, earlier: Sequence[Item]) -> ChatRequest:
    """The equivalent chat request. Raises APIError."""
    try:
        return body.as_chat(earlier)
    except ValidationError as reason:
        raise invalid(reason.errors()) from None


def _stream(
    body: ResponseRequest, chat: ChatRequest, model: PooledModel, state: ServerState, go_on: Progress
) -> tuple[TextStream, Mapping[str, Image]]:
    """Create the stream of a request without starting it; returns it with the images that were fetched for it.

    `go_on` raises to end that.
    """
    options, images = chat_options(chat, state.defaults_of(model)), state.images(go_on)
    options["keeps_all"] = body.truncation != "auto"
    messages, priority = messages_of(chat.messages, images), chat.priority or "interactive"
    begin = partial(model.llm.chat, messages, priority=priority, **options)
    return FollowedStream(begin, None, go_on).stream, images.fetched


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response, and what it is made of. `fetched`: images that were fetched for it, by their addresses."""

    body: ResponseRequest
    earlier: tuple[Item, ...]
    stream: TextStream
    frame: ResponseObject
    model: PooledModel
    state: ServerState
    fetched: Mapping[str, Image]

    def finished(self, thoughts: str, content: str, reader: ContentReader) -> Record:
        """The finished response, which is stored unless the request says otherwise."""
        return self._finished(self._output(thoughts, content, reader), thoughts)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events of a response: start, deltas, tool calls, and the finished response."""
        events, reader = ResponseEvents(self.frame), ContentReader(self.stream)
        for event in events.begin():
            yield event
        async for text in self.stream.chunks(EVERY_S):
            content = reader.push(text)
            for event in (*events.think(reader.new_thoughts()), *events.say(content)):
                yield event
        content = reader.finish()
        for event in (*events.think(reader.new_thoughts()), *events.say(content)):
            yield event
        output = self._output(events.thoughts, events.content, reader)
        for event in events.finish(output):
            yield event
        whole = self._finished(output, events.thoughts)
        yield events.event(f"response.{whole['status']}", response=whole)

    def _output(self, thoughts: str, content: str, reader: ContentReader) -> list[Record]:
        (stats,) = finished_stats([self.stream])
        return self.frame.output(thoughts, content, reader.calls, is_cut=stats.finish_reason == "length")

    def _finished(self, output: list[Record], thoughts: str) -> Record:
        (stats,) = self.state.answered(self.model, [self.stream], self.body.id_slot, self.body.lora)
        tokenizer = self.model.llm.prompts.tokenizer
        n_thoughts = len(tokenizer.encode(thoughts, add_special=False)) if thoughts else 0
        whole = self.frame.done(output, stats, n_thoughts)
        if self.body.store is not False:
            own = [with_images(item, self.fetched) for item in self.body.items()]
            self.state.responses.put(whole, (*self.earlier, *own))
        return whole
