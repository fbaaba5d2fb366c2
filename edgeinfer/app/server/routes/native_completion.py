"""POST /completion: raw text completion in llama-server's own form. /v1/completions has OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgeinfer.app.server.errors import ANSWER_RESPONSES, too_long
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.native_answers import NativeAnswer
from edgeinfer.app.server.native_schemas import NativeRequest, NativeSampling, is_several, native_options, prompts_of
from edgeinfer.app.server.objects import Record, timings_so_far
from edgeinfer.app.server.prompt_images import first_data
from edgeinfer.app.server.request_media import NO_MEDIA, MediaPlaces
from edgeinfer.app.server.requests import seeded
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import event, read_all, side_by_side, streaming
from edgeinfer.engine.requests.module_prompts import PromptPiece, named_tokens

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["answers"])


@ROUTER.post("/completion", responses=ANSWER_RESPONSES, response_model=None)
@ROUTER.post("/completions", include_in_schema=False, response_model=None)
async def native_completion(body: NativeRequest, request: Request) -> Response:
    """Complete texts with llama-server's fields: one answer, or a list of them for several prompts."""
    state = server_state(request)
    async with AsyncExitStack() as held:
        several = is_several(body.prompt)
        n_answers = (len(body.prompt) if several else 1) * (body.n or 1)
        media = first_data(body.prompt, "prompt")
        model = await held.enter_async_context(state.model(body.model, n_answers, request, media))

        def read(go_on: Progress) -> list[list[PromptPiece]]:
            return prompts_of(body.prompt, model.llm, state.images(go_on))

        prompts = await state.begun(read, request, media)
        return await answered(body, prompts, model, request, held, as_list=several or n_answers > 1, media=media)


async def answered(
    body: NativeSampling,
    prompts: Sequence[Sequence[PromptPiece]],
    model: PooledModel,
    request: Request,
    held: AsyncExitStack,
    *,
    as_list: bool = False,
    media: MediaPlaces = NO_MEDIA,
) -> Response:
    """The response to prompts given as tokens; `held` is kept until it ends. `media`: what the request has."""
    state = server_state(request)
    loop = asyncio.get_running_loop() if body.stream and body.return_progress else None
    options = await asyncio.to_thread(native_options, body, state.defaults_of(model), model.llm)
    named = [named_tokens(prompt) for prompt in prompts]
    id_slots = [model.slots.choose(tokens, body.id_slot, state.options.parallel) for tokens in named]

    def begun(go_on: Progress) -> list[NativeAnswer]:
        return _answers(body, list(zip(prompts, named, id_slots, strict=True)), model, options, loop, go_on)

    answers = await state.begun(begun, request, media)
    if body.stream:
        return streaming(_events(body, answers, model, state), held.pop_all().aclose)
    await read_all(answers, request)
    for answer in answers:
        state.answered(model, [answer.stream], answer.id_slot, body.lora)
    records = [_whole(answer, model) for answer in answers]
    return JSONAnswer(records if as_list else records[0])


def _whole(answer: NativeAnswer, model: PooledModel) -> Record:
    prompts = model.llm.prompts
    return answer.whole(model.name, prompts.tokenizer, prompts.sampling)


def _answers(
    body: NativeSampling,
    prompts: Sequence[tuple[Sequence[PromptPiece], Sequence[int], int]],
    model: PooledModel,
    options: Options,
    loop: asyncio.AbstractEventLoop | None,
    go_on: Progress,
) -> list[NativeAnswer]:
    """Create the answers without starting them; `go_on` raises to end that. Raises APIError for long ones.

    `prompts`: each with its tokens, in which rows have names, and its slot.
    """
    answers: list[NativeAnswer] = []
    n_context, priority = model.llm.info.n_context, body.priority or "interactive"
    for prompt, tokens, id_slot in prompts:
        if len(tokens) > n_context:
            message = f"the request has {len(tokens)} tokens, which exceeds the available context size of {n_context}"
            raise too_long(f"{message} tokens", len(tokens), n_context, "prompt")
        for own in seeded(options, body.n or 1):
            begin = partial(model.llm.complete, prompt, priority=priority, **own)
            followed = FollowedStream(begin, loop, go_on)
            answers.append(NativeAnswer(len(answers), followed, tokens, body, own, id_slot=id_slot))
    return answers


async def _events(
    body: NativeSampling, answers: Sequence[NativeAnswer], model: PooledModel, state: ServerState
) -> AsyncIterator[bytes]:
    """Yield parts of answers as they arrive, then what tells of each whole answer."""
    tokenizer = model.llm.prompts.tokenizer

    def part(answer: NativeAnswer, text: str, progress: Record | None = None) -> bytes:
        told: dict[str, object] = {} if progress is None else {"prompt_progress": progress}
        if body.timings_per_token:
            told["timings"] = timings_so_far(answer.stream.live, progress)
        return b"".join(event({**record, **told}) for record in answer.parts(text, tokenizer))

    async for number, text in side_by_side(answers):
        answer = answers[number]
        for progress in answer.followed.take_progress():
            yield part(answer, "", progress)
        if text:
            yield part(answer, text)
    for answer in answers:
        state.answered(model, [answer.stream], answer.id_slot, body.lora)
    for answer in answers:
        yield event(_whole(answer, model))
