"""POST /v1/completions: texts that are continued as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgeinfer.app.server.answers import (
    Envelope,
    Record,
    finish_reason,
    measured,
    text_logprobs,
    timings_of,
    usage_of,
)
from edgeinfer.app.server.asked import CompletionRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.parts import EventWriter
from edgeinfer.app.server.sending import read_all, side_by_side, streaming
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import ANSWERED
from edgeinfer.app.server.wanted import options_of, seeded

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.stream import TextStream

router = APIRouter(tags=["answers"])

MOST_PROMPTS = 64
DEFAULT_TOKENS = 16
"""What OpenAI makes where a request does not say."""
Prompt = str | list[int]


@router.post("/v1/completions", responses=ANSWERED, response_model=None)
@router.post("/completions", include_in_schema=False, response_model=None)
async def completions(asked: CompletionRequest, request: Request) -> Response:
    """Continue texts, whole or as a stream of events."""
    state, n, prompts = state_of(request), asked.n or 1, _prompts(asked)
    _check(asked, n)
    async with AsyncExitStack() as held:
        hosted = await held.enter_async_context(state.model(asked.model, n * len(prompts)))
        streams = await asyncio.to_thread(_streams, asked, prompts, hosted, state, n)
        envelope = Envelope("text_completion", hosted.name, hosted.llm.info.fingerprint[:16])
        echoes = await asyncio.to_thread(_echoes, asked, prompts, hosted, n)
        if asked.stream:
            events = _events(asked, hosted, streams, echoes, envelope, state, n)
            return streaming(events, held.pop_all().aclose)
        await read_all(streams, request)
        stats = measured(streams)
        state.metrics.answered(hosted.name, stats)
        choices = [
            _choice(number, stream, echo, hosted)
            for number, (stream, echo) in enumerate(zip(streams, echoes, strict=True))
        ]
        return JSONResponse(envelope.record(choices, usage=_usage(stats, n), timings=timings_of(stats[0])))


def _check(asked: CompletionRequest, n: int) -> None:
    """Raises Refusal for what edgeinfer does not do."""
    if asked.suffix:
        raise Refusal(501, "edgeinfer does not fill in texts: leave suffix out", param="suffix")
    if asked.best_of is not None and asked.best_of != n:
        raise Refusal(501, "edgeinfer gives all answers it makes: leave best_of out, or set it to n", param="best_of")
    if asked.echo and asked.logprobs is not None:
        raise Refusal(501, "edgeinfer tells no logprobs of prompts: leave echo or logprobs out", param="echo")


def _prompts(asked: CompletionRequest) -> list[Prompt]:
    """The prompts of a request. Raises Refusal."""
    given = asked.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise Refusal(400, "prompt is an empty list", param="prompt")
    prompts: list[Prompt] = []
    if all(isinstance(each, int) for each in given):
        prompts.append([each for each in given if isinstance(each, int)])
    else:
        prompts += [each for each in given if not isinstance(each, int)]
    if len(prompts) > MOST_PROMPTS:
        raise Refusal(400, f"{len(prompts)} prompts are too many; {MOST_PROMPTS} are the most", param="prompt")
    return prompts


def _streams(
    asked: CompletionRequest, prompts: Sequence[Prompt], hosted: Hosted, state: State, n: int
) -> list[TextStream]:
    """The answers that are asked for, none of which has begun."""
    options = options_of(asked, {"max_tokens": DEFAULT_TOKENS, **state.defaults}, asked.max_tokens)
    if asked.logprobs is not None:
        options["logprobs"] = asked.logprobs
    priority = asked.priority or "interactive"
    return [hosted.llm.complete(prompt, priority=priority, **each) for prompt in prompts for each in seeded(options, n)]


def _echoes(asked: CompletionRequest, prompts: Sequence[Prompt], hosted: Hosted, n: int) -> list[str]:
    """What stands before each answer: its prompt, if that is wanted."""
    if not asked.echo:
        return [""] * (n * len(prompts))
    texts = [each if isinstance(each, str) else hosted.llm.detokenize(each) for each in prompts]
    return [text for text in texts for _ in range(n)]


def _usage(stats: Sequence[Stats], n: int) -> Record:
    """What all prompts and answers took together."""
    parts = [usage_of(stats[first : first + n]) for first in range(0, len(stats), n)]
    found = parts[0]
    for part in parts[1:]:
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            found[key] += part[key]
        found["prompt_tokens_details"]["cached_tokens"] += part["prompt_tokens_details"]["cached_tokens"]
    return found


def _choice(number: int, stream: TextStream, echo: str, hosted: Hosted) -> Record:
    assert stream.stats is not None
    told = stream.logprobs
    return {
        "index": number,
        "text": echo + stream.text,
        "logprobs": text_logprobs(told, hosted.llm.prompts.tokenizer, len(echo)) if told else None,
        "finish_reason": finish_reason(stream.stats),
    }


async def _events(
    asked: CompletionRequest,
    hosted: Hosted,
    streams: Sequence[TextStream],
    echoes: Sequence[str],
    envelope: Envelope,
    state: State,
    n: int,
) -> AsyncIterator[bytes]:
    """Texts in parts, then why they ended, then what they took."""
    parts, lengths, n_told = EventWriter(asked, envelope), [len(echo) for echo in echoes], [0] * len(streams)

    def logprobs(number: int) -> Record | None:
        """The probabilities of tokens that were not told yet."""
        new = streams[number].logprobs[n_told[number] :]
        if not new:
            return None
        told = text_logprobs(new, hosted.llm.prompts.tokenizer, lengths[number])
        n_told[number] += len(new)
        lengths[number] += sum(map(len, told["tokens"]))
        return told

    for number, echo in enumerate(echoes):
        if echo:
            yield parts.part(number, {"text": echo})
    async for number, text in side_by_side(streams):
        yield parts.part(number, {"text": text}, logprobs(number))
    stats = measured(streams)
    state.metrics.answered(hosted.name, stats)
    for number, each in enumerate(stats):
        yield parts.last(number, {"text": ""}, logprobs(number), each)
    yield parts.end(_usage(stats, n))
