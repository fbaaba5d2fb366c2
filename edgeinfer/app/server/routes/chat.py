"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgeinfer.app.server.errors import ANSWER_RESPONSES, ERROR_RESPONSES, APIError
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.message_contents import first_media, messages_of
from edgeinfer.app.server.objects import (
    Envelope,
    Record,
    chat_logprobs,
    finish_reason,
    notices_record,
    prompt_text,
    timings_record,
    tool_call_records,
    usage_record,
)
from edgeinfer.app.server.requests import ChatRequest, chat_options, seeded
from edgeinfer.app.server.several_choices import SeveralAnswers, SeveralChatRequest, WrittenTogether, told_later
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import (
    EVERY_S,
    ChunkWriter,
    ContentReader,
    event,
    read_all,
    side_by_side,
    streaming,
)
from edgeinfer.app.several_record import several_record

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.engine.several.several import Several
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/v1/chat/completions", responses=ANSWER_RESPONSES, response_model=None)
@ROUTER.post("/chat/completions", include_in_schema=False, response_model=None)
async def chat_completions(body: SeveralChatRequest, request: Request) -> Response:
    """Answer a conversation, as one response or as a stream of events."""
    if body.edgeinfer is not None:
        return await _one_of_several(body, body.edgeinfer, request)
    return await chat_answered(body, request)


async def chat_answered(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation with each of the answers that are asked for. Raises APIError."""
    state, n = server_state(request), body.n or 1
    async with AsyncExitStack() as held:
        media = first_media(body.messages)
        model = await held.enter_async_context(state.model(body.model, n, request, media))
        loop = asyncio.get_running_loop() if body.stream and body.return_progress else None
        followed = await state.begun(lambda go_on: _streams(body, model, state, loop, go_on), request, media)
        envelope = Envelope("chat.completion", model.name, model.llm.info.fingerprint[:16])
        if body.stream:
            events = _events(body, model, followed, envelope, state)
            return streaming(events, held.pop_all().aclose)
        await read_all(followed, request)
        stats = state.answered(model, [each.stream for each in followed], body.id_slot, body.lora)
        choices = [_choice(number, each.stream, body, model) for number, each in enumerate(followed)]
        told: Record = {"usage": usage_record(stats), "timings": timings_record(stats[0]), **notices_record(stats)}
        if body.verbose or state.options.shows_prompts:
            told["__verbose"] = {"prompt": prompt_text(followed[0].stream.prompt_ids, model.llm.prompts.tokenizer)}
        return JSONAnswer(envelope.record(choices, **told))


async def _one_of_several(body: SeveralChatRequest, wanted: SeveralAnswers, request: Request) -> Response:
    """Write several answers and tell the one that is kept, with what is said of all. Raises APIError."""
    body.check_several()
    state, media = server_state(request), first_media(body.messages)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, wanted.answers, request, media))

        def begun(go_on: Progress) -> Several:
            options, priority = chat_options(body, state.defaults_of(model)), body.priority or "interactive"
            return wanted.begun(model.llm, messages_of(body.messages, state.images(go_on)), options, priority)

        several = await state.begun(begun, request, media)
        envelope = Envelope("chat.completion", model.name, model.llm.info.fingerprint[:16])
        if body.stream:
            return streaming(_several_events(body, wanted, model, several, envelope, state), held.pop_all().aclose)
        await read_all([WrittenTogether(several)], request)
        kept, stats = _kept(several), state.answered(model, several.answers, body.id_slot, body.lora)
        usage = usage_record(stats, several.n_generated)
        told: Record = {"usage": usage, "timings": timings_record(stats[0]), **notices_record(stats)}
        told["edgeinfer"] = several_record(several, wanted.pick)
        return JSONAnswer(envelope.record([_choice(0, kept, body, model)], **told))


def _kept(several: Several) -> TextStream:
    if several.chosen is None:
        raise APIError(503, "the answers were stopped before one was kept; try again later")
    return several.chosen


async def _several_events(
    body: ChatRequest,
    wanted: SeveralAnswers,
    model: PooledModel,
    several: Several,
    envelope: Envelope,
    state: ServerState,
) -> AsyncIterator[bytes]:
    """Yield the answer that is kept once it is known, or all as they are written; then what is said of all, the usage.

    Answers that are streamed are told as `n` of them are.
    """
    writer, together, choices = ChunkWriter(body, envelope), WrittenTogether(several), list[_ChatChunks]()

    def begun(answers: Sequence[TextStream]) -> Iterator[bytes]:
        for answer in answers[len(choices) :]:
            choices.append(_ChatChunks(told_later(answer), len(choices), writer, body, model))
            yield choices[-1].begin()

    for chunk in begun(several.answers if wanted.stream_all else several.answers[:1]):
        yield chunk
    async for number, text in together.parts(EVERY_S):
        if wanted.stream_all:
            for chunk in (*begun(several.answers), *choices[number].more(text)):
                yield chunk
    kept, stats = _kept(several), state.answered(model, several.answers, body.id_slot, body.lora)
    assert kept.stats is not None
    if not wanted.stream_all:
        choices = [_ChatChunks(told_later(kept), 0, writer, body, model)]
    for chunk in begun(several.answers) if wanted.stream_all else choices[0].more(kept.text):
        yield chunk
    for choice, ended in zip(choices, stats if wanted.stream_all else [kept.stats], strict=True):
        for chunk in choice.end(ended):
            yield chunk
    yield event(envelope.record([], is_chunk=True, edgeinfer=several_record(several, wanted.pick)))
    yield writer.end(usage_record(stats, several.n_generated), kept.stats)


@ROUTER.post("/v1/chat/completions/input_tokens", responses=ERROR_RESPONSES)
@ROUTER.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(body: ChatRequest, request: Request) -> Record:
    """Count the tokens of a conversation, with its tools; llama-server's route."""
    return {"object": "response.input_tokens", "input_tokens": await n_prompt_tokens(body, request)}


async def n_prompt_tokens(body: ChatRequest, request: Request) -> int:
    """The number of tokens of a conversation, whether it fits or not; images are not encoded. Raises APIError."""
    state, media = server_state(request), first_media(body.messages)
    async with state.model(body.model, 0, request, media) as model:

        def counted(go_on: Progress) -> int:
            options = chat_options(body, state.defaults_of(model))
            return model.llm.prompts.n_tokens(messages_of(body.messages, state.images(go_on)), options)

        return await state.begun(counted, request, media)


def _streams(
    body: ChatRequest,
    model: PooledModel,
    state: ServerState,
    loop: asyncio.AbstractEventLoop | None,
    go_on: Progress,
) -> list[FollowedStream]:
    """Create the streams of a request without starting them; `go_on` raises to end that."""
    options = chat_options(body, state.defaults_of(model))
    messages = messages_of(body.messages, state.images(go_on))
    begin = partial(model.llm.chat, messages, priority=body.priority or "interactive")
    return [FollowedStream(partial(begin, **choice), loop, go_on) for choice in seeded(options, body.n or 1)]


def _choice(number: int, stream: TextStream, body: ChatRequest, model: PooledModel) -> Record:
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
        "logprobs": _logprobs_record(logprobs, body, model) if logprobs and _asks_logprobs(body) else None,
        "finish_reason": finish_reason(stream.stats, len(reader.calls)),
    }


def _asks_logprobs(body: ChatRequest) -> bool:
    return bool(body.logprobs or body.n_probs)


def _logprobs_record(logprobs: Sequence[TokenLogprobs], body: ChatRequest, model: PooledModel) -> Record:
    return chat_logprobs(logprobs, model.llm.prompts.tokenizer, after_sampling=body.post_sampling_probs)


class _ChatChunks:
    """Turns the text of one choice into chunks as it arrives; log probabilities go with the next chunk."""

    def __init__(
        self, followed: FollowedStream, number: int, writer: ChunkWriter, body: ChatRequest, model: PooledModel
    ) -> None:
        self._followed, self._stream = followed, followed.stream
        self._number, self._writer, self._body, self._model = number, writer, body, model
        self._reader = ContentReader(followed.stream)
        self._n_calls = self._n_logprobs = 0

    def begin(self) -> bytes:
        """The first chunk, which has the role; its content is empty, as clients add to it."""
        return self._writer.chunk(self._number, {"delta": {"role": "assistant", "content": ""}})

    def more(self, text: str) -> Iterator[bytes]:
        """Yield the progress of the prompt, then add text and yield its chunks."""
        for progress in self._followed.take_progress():
            yield self._writer.chunk(self._number, {"delta": {}}, None, self._stream.live, progress)
        yield from self._deltas(self._reader.push(text))

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
        return self._writer.chunk(self._number, {"delta": delta}, self._logprobs(), self._stream.live)

    def _logprobs(self) -> Record | None:
        """The log probabilities that have not been sent yet."""
        if not _asks_logprobs(self._body):  # a pick may need them
            return None
        new = self._stream.logprobs[self._n_logprobs :]
        self._n_logprobs += len(new)
        return _logprobs_record(new, self._body, self._model) if new else None


async def _events(
    body: ChatRequest, model: PooledModel, followed: Sequence[FollowedStream], envelope: Envelope, state: ServerState
) -> AsyncIterator[bytes]:
    """Yield the roles, the chunks of text, the finish reasons, then the usage."""
    writer = ChunkWriter(body, envelope)
    choices = [_ChatChunks(each, number, writer, body, model) for number, each in enumerate(followed)]
    for choice in choices:
        yield choice.begin()
    async for number, text in side_by_side(followed):
        for chunk in choices[number].more(text):
            yield chunk
    stats = state.answered(model, [each.stream for each in followed], body.id_slot, body.lora)
    for choice, ended in zip(choices, stats, strict=True):
        for chunk in choice.end(ended):
            yield chunk
    yield writer.end(usage_record(stats), stats[0])
