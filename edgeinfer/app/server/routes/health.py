"""The server's health, metrics, properties and running requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.state import server_state

ROUTER = APIRouter(tags=["health"])

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@ROUTER.get("/health", responses={503: ERROR_RESPONSES[503]}, response_model=None)
@ROUTER.get("/v1/health", include_in_schema=False, response_model=None)
async def health(request: Request) -> Response:
    """Whether the model is open or can be opened; needs no API key."""
    pool = server_state(request).pool
    if pool.is_ready:
        return JSONResponse({"status": "ok"})
    why = "the model is being opened" if pool.failure is None else str(pool.failure)
    error = APIError(503, why, "loading" if pool.failure is None else None)
    return JSONResponse(error.body(), 503, headers={"Retry-After": "1"})


@ROUTER.get("/metrics", responses=ERROR_RESPONSES, response_class=Response)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus format."""
    state = server_state(request)
    headers = {"Process-Start-Time-Unix": str(state.metrics.started_s)}
    return Response(state.metrics.text(state.pool.open), media_type=PROMETHEUS, headers=headers)


@ROUTER.get("/props", responses=ERROR_RESPONSES)
async def props(request: Request) -> Record:
    """The default model and the default request parameters; a model that is closed while idle stays closed."""
    state = server_state(request)
    model = state.pool.opened(state.pool.default)
    if model is None and state.properties is not None:
        return {**state.properties, "is_sleeping": True}
    if model is not None:
        state.note(model)
    else:
        async with state.model(None) as opened:
            state.note(opened)
    assert state.properties is not None
    return state.properties
