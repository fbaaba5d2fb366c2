"""The server's health, metrics, properties and running requests."""

from __future__ import annotations

from types import MappingProxyType

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

import edgeinfer
from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.state import server_state
from edgeinfer.engine.requests.sampling import SamplingSettings

ROUTER = APIRouter(tags=["health"])

USUAL = MappingProxyType(
    {name: getattr(SamplingSettings(), name) for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")}
)
"""Sampling parameters of requests that say nothing, for models whose authors say nothing."""
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
    return Response(state.metrics.text(state.pool.open), media_type=PROMETHEUS)


@ROUTER.get("/props", responses=ERROR_RESPONSES)
async def props(request: Request) -> Record:
    """The default model and the default request parameters."""
    state = server_state(request)
    async with state.model(None) as model:
        facts, prompts = model.llm.info, model.llm.prompts
        given = {name: value for name, value in state.defaults.items() if isinstance(value, int | float | str)}
        params = {**USUAL, **prompts.sampling, **given}
        return {
            "default_generation_settings": {"n_ctx": facts.n_context, "params": params},
            "total_slots": state.options.parallel,
            "model_alias": model.name,
            "chat_template": next(iter(prompts.template.sources.values()), ""),
            "build_info": f"edgeinfer {edgeinfer.__version__}",
            "device": model.llm.telemetry.device,
            "notices": list(facts.notices),
            "author_sampling": dict(prompts.sampling),
        }


@ROUTER.get("/slots", responses=ERROR_RESPONSES)
async def slots(request: Request) -> list[Record]:
    """The running and queued requests of all open models."""
    records: list[Record] = []
    for model in server_state(request).pool.open:
        for answer in model.llm.telemetry.requests:
            live = answer.live
            records.append(
                {
                    "id": len(records),
                    "model": model.name,
                    "is_processing": answer.is_active,
                    "priority": answer.priority,
                    "n_ctx": model.llm.info.n_context,
                    "n_prompt_tokens": live.n_prompt,
                    "n_prompt_tokens_processed": live.n_read,
                    "n_decoded": live.n_generated,
                    "tokens_per_second": live.decode_tok_s,
                }
            )
    return records
