"""The server's health, metrics, properties and running requests."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from edgeinfer.app.server.errors import ERROR_RESPONSES, PART_RESPONSES, APIError
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.properties import unopened_record
from edgeinfer.app.server.requests import ModelName
from edgeinfer.app.server.state import require_part, server_state

ROUTER = APIRouter(tags=["health"])

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@ROUTER.get("/health", responses={503: ERROR_RESPONSES[503]}, response_model=None)
@ROUTER.get("/v1/health", include_in_schema=False, response_model=None)
async def health(request: Request) -> Response:
    """Whether the model is open or can be opened; needs no API key."""
    pool = server_state(request).pool
    if pool.is_ready:
        return JSONAnswer({"status": "ok"})
    why = "the model is being opened" if pool.failure is None else str(pool.failure)
    error = APIError(503, why, "loading" if pool.failure is None else None)
    return JSONAnswer(error.body(), 503, headers={"Retry-After": "1"})


@ROUTER.get("/metrics", responses=PART_RESPONSES, response_class=Response)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus format."""
    state = server_state(request)
    require_part(state, "metrics")
    headers = {"Process-Start-Time-Unix": str(state.metrics.started_s)}
    return Response(state.metrics.text(state.pool.open), media_type=PROMETHEUS, headers=headers)


@ROUTER.get("/props", responses=ERROR_RESPONSES)
async def props(request: Request, model: Annotated[ModelName | None, Query()] = None) -> Record:
    """A model (default: the default one) and its request parameters.

    A model that is closed while idle stays closed, and a default model that is loaded on demand is not loaded for this.
    """
    state = server_state(request)
    wanted = state.pool.default if model is None else await asyncio.to_thread(state.pool.find, model)
    found = state.pool.opened(wanted)
    known = state.properties.get(wanted.name)
    if found is None and known is not None:
        return {**known, "is_sleeping": True}
    if found is not None:
        state.note(found)
    elif model is None and wanted not in state.pool.names.first_models():
        return unopened_record(wanted.name, state.options, await asyncio.to_thread(state.media_read, wanted))
    else:
        async with state.model(wanted.name) as opened:
            state.note(opened)
    return state.properties[wanted.name]
