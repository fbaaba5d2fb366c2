"""POST /completion: raw text completion in llama-server's own form. /v1/completions has OpenAI's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgeinfer.app.server.errors import ANSWER_RESPONSES, APIError
from edgeinfer.app.server.native_answers import NativeAnswer, timings_so_far
from edgeinfer.app.server.native_schemas import NativeRequest, NativeSampling, is_several, native_options, prompts_of
from edgeinfer.app.server.objects import Record, finished_stats
from edgeinfer.app.server.requests import seeded
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import event, read_all, side_by_side, streaming

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
        model = await held.enter_async_context(state.model(body.model, n_answers, request))
        prompts = await asyncio.to_thread(prompts_of, body.prompt, model.llm)
        return await answered(body, prompts, model, request, held, as_list=several or n_answers > 1)


async def answered(
    body: NativeSampling,
    prompts: Sequence[Sequence[int]],
    model: PooledModel,
    request: Request,
    held: AsyncExitStack,
    *,
    as_list: bool = False,
) -> Response:
    """The response to prompts given as tokens; `held` is kept until it ends."""
    state = server_state(request)
    loop = asyncio.get_running_loop()
    options = await asyncio.to_thread(native_options, body, state.defaults_of(model), model.llm)
    answers = await asyncio.to_thread(_answers, body, prompts, model, options, loop)
    if body.stream:
        return streaming(_events(body, answers, model, state), held.pop_all().aclose)
    await read_all(answers, request)
    state.metrics.answered(model.name, finished_stats([answer.stream for answer in answers]))
    records = [_whole(answer, model) for answer in answers]
    return JSONResponse(records if as_list else records[0])


def _whole(answer: NativeAnswer, model: PooledModel) -> Record:
    prompts = model.llm.prompts
    return answer.whole(model.name, prompts.tokenizer, prompts.sampling)


def _answers(
    body: NativeSampling,
    prompts: Sequence[Sequence[int]],
    model: PooledModel,
    options: Options,
    loop: asyncio.AbstractEventLoop,
) -> list[NativeAnswer]:
    """Create the answers without starting them. Raises APIError for a prompt that is too long."""
    answers: list[NativeAnswer] = []
    n_context, priority = model.llm.info.n_context, body.priority or "interactive"
    for prompt in prompts:
        if len(prompt) > n_context:
            raise APIError(
                400,
                f"the request has {len(prompt)} tokens, which exceeds the available context size of {n_context} tokens",
                "context_length_exceeded",
                "prompt",
            )
        for own in seeded(options, body.n or 1):
            reporting = _Reporting(loop)
            own_options = {**own, "progress": reporting.progress} if body.return_progress else own
            stream = model.llm.complete(prompt, priority=priority, **own_options)
            answers.append(NativeAnswer(len(answers), stream, prompt, body, own))
            reporting.answer = answers[-1]
    return answers


class _Reporting:
    """Tells an answer, in the server's loop, how much of its prompt was read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._begun_s = loop, time.monotonic()
        self.answer: NativeAnswer | None = None

    @property
    def progress(self) -> Progress:
        """What the engine calls, in its own thread."""
        return self._report

    def _report(self, what: str, done: int, total: int) -> None:
        self._loop.call_soon_threadsafe(self._tell, done, total, 1e3 * (time.monotonic() - self._begun_s))

    def _tell(self, done: int, total: int, time_ms: float) -> None:
        answer = self.answer
        if answer is not None:
            n_cached = len(answer.prompt) - total
            told = {"total": len(answer.prompt), "cache": n_cached, "processed": n_cached + done, "time_ms": time_ms}
            answer.progress.append(told)
            answer.arrived.put_nowait("")


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
        told, answer.progress = answer.progress, []
        for progress in told:
            yield part(answer, "", progress)
        if text:
            yield part(answer, text)
    state.metrics.answered(model.name, finished_stats([answer.stream for answer in answers]))
    for answer in answers:
        yield event(_whole(answer, model))
