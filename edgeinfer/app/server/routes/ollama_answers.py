"""POST /api/chat and POST /api/generate: Ollama's answers."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from edgeinfer.app.server.errors import OLLAMA_ANSWER_RESPONSES, APIError, invalid
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.gap_prompts import gap_prompt
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_schemas import AnswerRequest, GenerateRequest, OllamaChatRequest
from edgeinfer.app.server.ollama_wire import AnswerFrame, kept_s, lines, logprob_records, tool_call_record
from edgeinfer.app.server.requests import chat_options
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import EVERY_S, ContentReader, read_all

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["ollama"])

Begin = Callable[["PooledModel", ServerState, "Progress"], "TextStream"]
"""Creates the stream of a request without starting it; the progress function raises to end that."""
Content = Callable[[str, str, list[Record]], Record]
"""The fields of an answer that hold its text, thoughts and calls, or new parts of them."""


def _message(text: str, thoughts: str, calls: list[Record]) -> Record:
    message: Record = {"role": "assistant", "content": text}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def _response(text: str, thoughts: str, calls: list[Record]) -> Record:
    return {"response": text, **({"thinking": thoughts} if thoughts else {})}


@ROUTER.post("/api/chat", responses=OLLAMA_ANSWER_RESPONSES, response_model=None)
async def chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, as lines of JSON or as one object."""
    return await _answer(body, request, _message, None if not body.messages else lambda *on: _chat(body, *on))


@ROUTER.post("/api/generate", responses=OLLAMA_ANSWER_RESPONSES, response_model=None)
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answer a prompt, as lines of JSON or as one object."""
    body.check()
    is_empty = not (body.prompt or body.images)
    return await _answer(body, request, _response, None if is_empty else lambda *on: _generate(body, *on))


async def _answer(body: AnswerRequest, request: Request, content: Content, begin: Begin | None) -> Response:
    """Answer a request, or only load or unload the model; `begin` is None for a request without text."""
    state, frame = server_state(request), AnswerFrame(body.model)
    if begin is None and body.unloads:
        await state.pool.keep(body.model, 0)
        return JSONAnswer(frame.empty(content("", "", []), "unload"))
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, int(begin is not None), request, body.media))
        frame.loaded()
        if body.keep_alive is not None:
            model.keep_s = kept_s(body.keep_alive)
        if begin is None:
            return JSONAnswer(frame.empty(content("", "", []), "load"))
        stream = await state.begun(lambda go_on: begin(model, state, go_on), request, body.media)
        parts = _Parts(stream, model, body, frame, content)
        if body.stream is not False:
            return lines(_records(parts, model, state), held.pop_all().aclose)
        await read_all([parts.stream], request)
        return JSONAnswer(parts.whole(state))


async def _records(parts: _Parts, model: PooledModel, state: ServerState) -> AsyncIterator[Record]:
    async for text in parts.stream.chunks(EVERY_S):
        for record in parts.more(text):
            yield record
    for record in parts.end(state):
        yield record


def _options(
    body: AnswerRequest, model: PooledModel, state: ServerState, go_on: Progress
) -> tuple[Options, list[Record]]:
    """The engine options and messages of a request. Raises APIError."""
    assert isinstance(body, OllamaChatRequest | GenerateRequest)
    if body.think and model.llm.prompts.thoughts is None:
        raise APIError(400, f"{body.model!r} does not support thinking", param="think")
    try:
        asked = body.as_chat()
    except ValidationError as reason:
        raise invalid(reason.errors()) from None
    options = chat_options(asked, state.defaults_of(model))
    options["keeps_all"] = body.truncate is False
    return options, messages_of(asked.messages, state.images(go_on))


def _chat(body: OllamaChatRequest, model: PooledModel, state: ServerState, go_on: Progress) -> TextStream:
    options, messages = _options(body, model, state, go_on)
    return FollowedStream(partial(model.llm.chat, messages, **options), None, go_on).stream


def _generate(body: GenerateRequest, model: PooledModel, state: ServerState, go_on: Progress) -> TextStream:
    """An answer to a prompt; to the text of a conversation that it continues, or to the prompt alone if it is raw."""
    options, messages = _options(body, model, state, go_on)
    llm = model.llm
    if body.suffix:
        return llm.complete(gap_prompt(llm, body.prompt or "", body.suffix, options.get("max_tokens")), **options)
    if body.raw:
        assert body.prompt is not None
        return llm.complete(body.prompt, **options)
    if body.context:
        text = llm.prompts.render(messages, None, options.get("template_variables", {}))
        turn = llm.tokenize(text, add_special=False)
        has_begun = turn[:1] == [llm.prompts.tokenizer.vocabulary.bos_id] == body.context[:1]
        return llm.complete([*body.context, *turn[has_begun:]], **options)
    return FollowedStream(partial(llm.chat, messages, **options), None, go_on).stream


class _Parts:
    """Turns the text of an answer into the parts that are sent; log probabilities go with the next part."""

    def __init__(
        self, stream: TextStream, model: PooledModel, body: AnswerRequest, frame: AnswerFrame, content: Content
    ) -> None:
        self.stream, self._model, self._body, self._frame, self._content = stream, model, body, frame, content
        self._reader = ContentReader(stream)
        self._n_calls = self._n_logprobs = 0

    def more(self, text: str) -> Iterator[Record]:
        """Add text, and yield its parts."""
        return self._new(self._reader.push(text))

    def end(self, state: ServerState) -> Iterator[Record]:
        """Yield what was held back, then the last part."""
        yield from self._new(self._reader.finish())
        yield self._last(self._content("", "", []), state)

    def whole(self, state: ServerState) -> Record:
        """The complete answer as one record."""
        text = self._reader.push(self.stream.text) + self._reader.finish()
        return self._last(self._content(text, self._reader.new_thoughts(), self._calls()), state)

    def _new(self, text: str) -> Iterator[Record]:
        thoughts, calls = self._reader.new_thoughts(), self._calls()
        no_calls: list[Record] = []
        for parts in (("", thoughts, no_calls), (text, "", no_calls), ("", "", calls)):
            if any(parts):
                yield self._frame.record({**self._content(*parts), **self._logprobs()})

    def _last(self, content: Record, state: ServerState) -> Record:
        (stats,) = state.answered(self._model, [self.stream])
        record = self._frame.last({**content, **self._logprobs()}, stats)
        if isinstance(self._body, GenerateRequest) and not self._body.raw:
            tokens = [*self.stream.prompt_ids, *self.stream.tokens]
            if all(token >= 0 for token in tokens):  # rows of images are no tokens that could be sent again
                record["context"] = tokens  # the conversation, to be continued
        return record

    def _calls(self) -> list[Record]:
        """The tool calls that have not been sent yet."""
        first, self._n_calls = self._n_calls, len(self._reader.calls)
        return [
            tool_call_record(call, f"call_{secrets.token_hex(4)}", number)
            for number, call in enumerate(self._reader.calls[first:], first)
        ]

    def _logprobs(self) -> Record:
        """The log probabilities that have not been sent yet."""
        new = self.stream.logprobs[self._n_logprobs :] if self._body.logprobs else ()
        self._n_logprobs += len(new)
        return {"logprobs": logprob_records(new, self._model.llm.prompts.tokenizer)} if new else {}
