"""POST /v1/completions: raw text completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from edgeinfer.app.server.errors import ANSWER_RESPONSES, APIError, unsupported
from edgeinfer.app.server.gap_prompts import gap_prompt
from edgeinfer.app.server.objects import (
    Envelope,
    Record,
    finish_reason,
    finished_stats,
    text_logprobs,
    timings_record,
    usage_record,
)
from edgeinfer.app.server.requests import Limit, Sampling, Text, options_of, seeded
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import ChunkWriter, read_all, side_by_side, streaming

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream

ROUTER = APIRouter(tags=["answers"])

MOST_PROMPTS = 64
DEFAULT_TOKENS = 16
"""OpenAI's default for max_tokens."""
Prompt = str | list[int]


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Text | list[str] | list[int] | list[list[int]]
    max_tokens: Limit | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


@ROUTER.post("/v1/completions", responses=ANSWER_RESPONSES, response_model=None)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Complete texts, as one response or as a stream of events."""
    state, n, prompts = server_state(request), body.n or 1, _prompts(body)
    _check(body, n)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, n * len(prompts), request))
        streams = await asyncio.to_thread(_streams, body, prompts, model, state, n)
        envelope = Envelope("text_completion", model.name, model.llm.info.fingerprint[:16])
        echoes = await asyncio.to_thread(_echoes, body, prompts, model, n)
        if body.stream:
            events = _events(body, model, streams, echoes, envelope, state, n)
            return streaming(events, held.pop_all().aclose)
        await read_all(streams, request)
        stats = finished_stats(streams)
        state.metrics.answered(model.name, stats)
        choices = [
            _choice(number, stream, echo, model)
            for number, (stream, echo) in enumerate(zip(streams, echoes, strict=True))
        ]
        return JSONResponse(envelope.record(choices, usage=_usage(stats, n), timings=timings_record(stats[0])))


def _check(body: CompletionRequest, n: int) -> None:
    """Raises APIError for options that edgeinfer does not support."""
    if body.best_of is not None and body.best_of != n:
        raise unsupported("edgeinfer gives all answers it makes: leave best_of out, or set it to n", "best_of")
    if body.echo and body.logprobs is not None:
        raise unsupported("logprobs of prompts are not supported: leave out echo or logprobs", "echo")


def _prompts(body: CompletionRequest) -> list[Prompt]:
    """The prompts of a request. Raises APIError."""
    value = body.prompt
    if isinstance(value, str):
        return [value]
    if not value:
        raise APIError(400, "prompt is an empty list", param="prompt")
    prompts: list[Prompt] = []
    if all(isinstance(entry, int) for entry in value):
        prompts.append([token for token in value if isinstance(token, int)])
    else:
        prompts += [prompt for prompt in value if not isinstance(prompt, int)]
    if len(prompts) > MOST_PROMPTS:
        raise APIError(400, f"{len(prompts)} prompts are too many; {MOST_PROMPTS} are the most", param="prompt")
    return prompts


def _streams(
    body: CompletionRequest, prompts: Sequence[Prompt], model: PooledModel, state: ServerState, n: int
) -> list[TextStream]:
    """Create the streams of a request without starting them."""
    options = options_of(body, {"max_tokens": DEFAULT_TOKENS, **state.defaults_of(model)}, body.max_tokens)
    if body.suffix:
        prompts = [gap_prompt(model.llm, prompt, body.suffix, options.get("max_tokens")) for prompt in prompts]
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    priority = body.priority or "interactive"
    return [
        model.llm.complete(prompt, priority=priority, **choice) for prompt in prompts for choice in seeded(options, n)
    ]


def _echoes(body: CompletionRequest, prompts: Sequence[Prompt], model: PooledModel, n: int) -> list[str]:
    """The text in front of each answer: its prompt with `echo`, otherwise nothing."""
    if not body.echo:
        return [""] * (n * len(prompts))
    texts = [prompt if isinstance(prompt, str) else model.llm.detokenize(prompt) for prompt in prompts]
    return [text for text in texts for _ in range(n)]


def _usage(stats: Sequence[Stats], n: int) -> Record:
    """The total usage of all prompts."""
    parts = [usage_record(stats[first : first + n]) for first in range(0, len(stats), n)]
    total = parts[0]
    for part in parts[1:]:
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            total[key] += part[key]
        total["prompt_tokens_details"]["cached_tokens"] += part["prompt_tokens_details"]["cached_tokens"]
    return total


def _choice(number: int, stream: TextStream, echo: str, model: PooledModel) -> Record:
    assert stream.stats is not None
    logprobs = stream.logprobs
    return {
        "index": number,
        "text": echo + stream.text,
        "logprobs": text_logprobs(logprobs, model.llm.prompts.tokenizer, len(echo)) if logprobs else None,
        "finish_reason": finish_reason(stream.stats),
    }


async def _events(
    body: CompletionRequest,
    model: PooledModel,
    streams: Sequence[TextStream],
    echoes: Sequence[str],
    envelope: Envelope,
    state: ServerState,
    n: int,
) -> AsyncIterator[bytes]:
    """Yield chunks of text, then the finish reasons, then the usage."""
    writer, lengths, n_sent = ChunkWriter(body, envelope), [len(echo) for echo in echoes], [0] * len(streams)

    def logprobs(number: int) -> Record | None:
        """The log probabilities that have not been sent yet."""
        new = streams[number].logprobs[n_sent[number] :]
        if not new:
            return None
        record = text_logprobs(new, model.llm.prompts.tokenizer, lengths[number])
        n_sent[number] += len(new)
        lengths[number] += sum(map(len, record["tokens"]))
        return record

    for number, echo in enumerate(echoes):
        if echo:
            yield writer.chunk(number, {"text": echo})
    async for number, text in side_by_side(streams):
        yield writer.chunk(number, {"text": text}, logprobs(number))
    stats = finished_stats(streams)
    state.metrics.answered(model.name, stats)
    for number, choice in enumerate(stats):
        yield writer.last(number, {"text": ""}, logprobs(number), choice)
    yield writer.end(_usage(stats, n))
