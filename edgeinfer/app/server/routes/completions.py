"""POST /v1/completions: raw text completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from edgeinfer.app.server.errors import ANSWER_RESPONSES, APIError, unsupported
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.gap_prompts import gap_prompt
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.objects import (
    Envelope,
    Record,
    finish_reason,
    notices_record,
    probabilities,
    timings_record,
    usage_record,
)
from edgeinfer.app.server.requests import Limit, Sampling, Text, options_of, seeded
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import ChunkWriter, read_all, side_by_side, streaming
from edgeinfer.app.server.text_logprobs import joined, prompt_logprobs, text_logprobs

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs

ROUTER = APIRouter(tags=["answers"])

MOST_PROMPTS = 64
MOST_BEST_OF = 20
"""OpenAI's limit."""
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
    best_of: Annotated[int, Field(ge=1, le=MOST_BEST_OF)] | None = None
    edgeinfer: dict[str, Any] | None = None

    @property
    def n_written(self) -> int:
        """How many answers are written to a prompt, of which the best `n` are told."""
        return max(self.best_of or 1, self.n or 1)

    @property
    def tells_prompt(self) -> bool:
        """Whether it asks for log probabilities of its prompts' own tokens."""
        return bool(self.echo) and self.logprobs is not None


@ROUTER.post("/v1/completions", responses=ANSWER_RESPONSES, response_model=None)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Complete texts, as one response or as a stream of events."""
    state, n, prompts = server_state(request), body.n or 1, _prompts(body)
    _check(body, n)
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(state.model(body.model, body.n_written * len(prompts), request))
        loop = asyncio.get_running_loop() if body.stream and body.return_progress else None
        followed = await asyncio.to_thread(_streams, body, prompts, model, state, loop)
        envelope = Envelope("text_completion", model.name, model.llm.info.fingerprint[:16])
        echoes = await asyncio.to_thread(_echoes, body, prompts, model, n)
        if body.stream:
            events = _events(body, model, followed, echoes, envelope, state)
            return streaming(events, held.pop_all().aclose)
        await read_all(followed, request)
        streams = [each.stream for each in followed]
        stats = state.answered(model, streams, body.id_slot, body.lora)
        choices = [
            _choice(number, stream, echo, body, model)
            for number, (stream, echo) in enumerate(zip(_best(streams, body), echoes, strict=True))
        ]
        told = {"usage": _usage(stats, body.n_written), "timings": timings_record(stats[0]), **notices_record(stats)}
        return JSONAnswer(envelope.record(choices, **told))


def _check(body: CompletionRequest, n: int) -> None:
    """Raises APIError for options that edgeinfer does not support."""
    if body.edgeinfer is not None:
        message = "several answers of which one is kept are for /v1/chat/completions; here best_of keeps the likeliest"
        raise unsupported(message, "edgeinfer")
    if body.best_of is not None and body.best_of < n:
        message = f"best_of is {body.best_of} and n is {n}: best_of answers are written, and n of them told"
        raise APIError(400, message, param="best_of")
    if body.n_written > n and body.stream:
        message = "the best answers are known once all are written: leave stream out, or best_of"
        raise APIError(400, message, param="best_of")
    if body.tells_prompt and body.suffix:
        raise unsupported("with a suffix a prompt is not read as it is echoed: leave out suffix or logprobs", "suffix")
    if body.tells_prompt and (body.n_probs or body.post_sampling_probs):
        raise unsupported("n_probs and post_sampling_probs say nothing of prompts: leave them out, or echo", "n_probs")


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
    body: CompletionRequest,
    prompts: Sequence[Prompt],
    model: PooledModel,
    state: ServerState,
    loop: asyncio.AbstractEventLoop | None,
) -> list[FollowedStream]:
    """Create the streams of a request without starting them."""
    options = options_of(body, {"max_tokens": DEFAULT_TOKENS, **state.defaults_of(model)}, body.max_tokens)
    if body.suffix:
        prompts = [gap_prompt(model.llm, prompt, body.suffix, options.get("max_tokens")) for prompt in prompts]
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    if body.n_written > (body.n or 1):
        options.setdefault("logprobs", 0)
    if body.tells_prompt:
        options["scored_from"] = 1
    begin = partial(model.llm.complete, priority=body.priority or "interactive")
    return [
        FollowedStream(partial(begin, prompt, **choice), loop)
        for prompt in prompts
        for choice in seeded(options, body.n_written)
    ]


def _best(streams: Sequence[TextStream], body: CompletionRequest) -> list[TextStream]:
    """The answers to tell: of each prompt those with the highest log probability per token, as OpenAI has it."""
    n_written, n = body.n_written, body.n or 1
    if n_written == n:
        return list(streams)
    groups = (streams[first : first + n_written] for first in range(0, len(streams), n_written))
    return [stream for group in groups for stream in sorted(group, key=_logprob_per_token, reverse=True)[:n]]


def _logprob_per_token(stream: TextStream) -> float:
    told = _ended(stream)
    return sum(each.logprob for each in told) / len(told) if told else 0.0


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
        details = total["prompt_tokens_details"]
        for key, count in part["prompt_tokens_details"].items():
            details[key] = details.get(key, 0) + count
    return total


def _logprobs_record(
    logprobs: Sequence[TokenLogprobs], offset: int, body: CompletionRequest, model: PooledModel
) -> Record:
    """Log probabilities in OpenAI's form, or in llama-server's if the request has its fields."""
    tokenizer = model.llm.prompts.tokenizer
    if body.n_probs or body.post_sampling_probs:
        return {"content": probabilities(logprobs, tokenizer, after_sampling=body.post_sampling_probs)}
    return text_logprobs(logprobs, tokenizer, offset)


def _choice(number: int, stream: TextStream, echo: str, body: CompletionRequest, model: PooledModel) -> Record:
    assert stream.stats is not None
    told: Record | None = None
    if body.tells_prompt:
        told = joined(_of_prompt(stream, echo, model), _logprobs_record(_ended(stream), len(echo), body, model))
    elif stream.logprobs and (body.logprobs is not None or body.n_probs):
        told = _logprobs_record(stream.logprobs, len(echo), body, model)
    return {
        "index": number,
        "text": echo + stream.text,
        "logprobs": told,
        "finish_reason": finish_reason(stream.stats),
    }


def _of_prompt(stream: TextStream, echo: str, model: PooledModel) -> Record:
    """Log probabilities of the prompt's own tokens, once it is read."""
    return prompt_logprobs(stream.prompt, stream.prompt_logprobs, model.llm.prompts.tokenizer, echo)


def _ended(stream: TextStream) -> Sequence[TokenLogprobs]:
    """Log probabilities of an answer with those of the token that ended it, which clients count after a prompt."""
    end = stream.end_logprobs
    return stream.logprobs if end is None else (*stream.logprobs, end)


class _TextChunks:
    """Turns the text of one choice into chunks as it arrives; log probabilities go with the next chunk."""

    def __init__(
        self,
        followed: FollowedStream,
        number: int,
        echo: str,
        writer: ChunkWriter,
        body: CompletionRequest,
        model: PooledModel,
    ) -> None:
        self._followed, self._number, self._echo, self._writer = followed, number, echo, writer
        self._body, self._model = body, model
        self._n_sent, self._n_characters = 0, len(echo)
        self._tells_prompt = body.tells_prompt

    def begin(self) -> Iterator[bytes]:
        """Yield the text in front of the answer; with its log probabilities that is once it has been read."""
        if self._echo and not self._tells_prompt:
            yield self._writer.chunk(self._number, {"text": self._echo})

    def _prompt_told(self) -> Iterator[bytes]:
        if self._tells_prompt:
            self._tells_prompt = False
            record = _of_prompt(self._followed.stream, self._echo, self._model)
            yield self._writer.chunk(self._number, {"text": self._echo}, record)

    def more(self, text: str) -> Iterator[bytes]:
        """Yield the progress of the prompt, then the text."""
        live = self._followed.stream.live
        for progress in self._followed.take_progress():
            yield self._writer.chunk(self._number, {"text": ""}, None, live, progress)
        if text:
            yield from self._prompt_told()
            yield self._writer.chunk(self._number, {"text": text}, self._logprobs(), live)

    def end(self, stats: Stats) -> Iterator[bytes]:
        """Yield the last chunk, after the prompt if there was no text."""
        yield from self._prompt_told()
        yield self._writer.last(self._number, {"text": ""}, self._logprobs(), stats)

    def _logprobs(self) -> Record | None:
        """The log probabilities that have not been sent yet."""
        stream = self._followed.stream
        new = (_ended(stream) if self._body.tells_prompt else stream.logprobs)[self._n_sent :]
        if not new:
            return None
        record = _logprobs_record(new, self._n_characters, self._body, self._model)
        self._n_sent += len(new)
        self._n_characters += sum(map(len, self._model.llm.prompts.tokenizer.pieces(each.token for each in new)))
        return record


async def _events(
    body: CompletionRequest,
    model: PooledModel,
    followed: Sequence[FollowedStream],
    echoes: Sequence[str],
    envelope: Envelope,
    state: ServerState,
) -> AsyncIterator[bytes]:
    """Yield chunks of text, then the finish reasons, then the usage."""
    writer = ChunkWriter(body, envelope)
    choices = [
        _TextChunks(each, number, echo, writer, body, model)
        for number, (each, echo) in enumerate(zip(followed, echoes, strict=True))
    ]
    for choice in choices:
        for chunk in choice.begin():
            yield chunk
    async for number, text in side_by_side(followed):
        for chunk in choices[number].more(text):
            yield chunk
    stats = state.answered(model, [each.stream for each in followed], body.id_slot, body.lora)
    for choice, ended in zip(choices, stats, strict=True):
        for chunk in choice.end(ended):
            yield chunk
    yield writer.end(_usage(stats, body.n or 1), stats[0])
