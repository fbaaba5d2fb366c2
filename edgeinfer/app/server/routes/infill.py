"""POST /infill: what stands between two texts, as llama-server's /infill; editors such as llama.vim use it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from edgeinfer.app.server.errors import ANSWER_RESPONSES
from edgeinfer.app.server.gap_prompts import gap_prompt
from edgeinfer.app.server.native_schemas import NativeSampling
from edgeinfer.app.server.requests import RequestBody, Text
from edgeinfer.app.server.routes.native_completion import answered
from edgeinfer.app.server.state import server_state

ROUTER = APIRouter(tags=["answers"])


class ExtraFile(RequestBody):
    """A part of another file."""

    text: Text
    filename: Annotated[str, Field(max_length=4096)] | None = None


class InfillRequest(NativeSampling):
    """POST /infill. `prompt`: the beginning of what is to be filled in, such as of the line with the cursor."""

    input_prefix: Text
    input_suffix: Text
    prompt: Text = ""
    input_extra: Annotated[list[ExtraFile], Field(max_length=1000)] = Field(default_factory=list)


@ROUTER.post("/infill", responses=ANSWER_RESPONSES, response_model=None)
async def infill(body: InfillRequest, request: Request) -> Response:
    """Fill in what stands between two texts."""
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(server_state(request).model(body.model, body.n or 1, request))
        before = body.input_prefix + body.prompt
        files = [(file.filename, file.text) for file in body.input_extra]
        limit = None if body.limit is None or body.limit < 0 else body.limit
        prompt = await asyncio.to_thread(gap_prompt, model.llm, before, body.input_suffix, limit, files)
        return await answered(body, [prompt], model, request, held, as_list=(body.n or 1) > 1)
