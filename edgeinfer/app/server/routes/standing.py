"""How the server stands: whether it is there, what it does, what it was asked."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

import edgeinfer
from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.state import state_of
from edgeinfer.app.server.statuses import FAILURES

router = APIRouter(tags=["standing"])

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/health", responses={503: FAILURES[503]}, response_model=None)
@router.get("/v1/health", include_in_schema=False, response_model=None)
async def health(request: Request) -> Response:
    """Whether the model is open, or could be: needs no key."""
    hosting = state_of(request).hosting
    if hosting.is_ready:
        return JSONResponse({"status": "ok"})
    why = "the model is being opened" if hosting.failure is None else str(hosting.failure)
    refusal = Refusal(503, why, "loading" if hosting.failure is None else None)
    return JSONResponse(refusal.body(), 503, headers={"Retry-After": "1"})


@router.get("/metrics", responses=FAILURES, response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' form."""
    state = state_of(request)
    return Response(state.metrics.text(state.hosting.open), media_type=PROMETHEUS)


@router.get("/props", responses=FAILURES)
async def props(request: Request) -> Record:
    """What the default model is and how it answers where a request does not say."""
    state = state_of(request)
    async with state.model(None) as hosted:
        facts, prompts = hosted.llm.info, hosted.llm.prompts
        params = {name: value for name, value in state.defaults.items() if isinstance(value, int | float | str)}
        return {
            "default_generation_settings": {"n_ctx": facts.n_context, "params": params},
            "total_slots": state.options.parallel,
            "model_alias": hosted.name,
            "chat_template": next(iter(prompts.template.sources.values()), ""),
            "build_info": f"edgeinfer {edgeinfer.__version__}",
            "device": hosted.llm.telemetry.device,
            "notices": list(facts.notices),
        }


@router.get("/slots", responses=FAILURES)
async def slots(request: Request) -> list[Record]:
    """The running requests and those that wait, of all open models."""
    found: list[Record] = []
    for hosted in state_of(request).hosting.open:
        for each in hosted.llm.telemetry.requests:
            live = each.live
            found.append(
                {
                    "id": len(found),
                    "model": hosted.name,
                    "is_processing": each.is_active,
                    "priority": each.priority,
                    "n_ctx": hosted.llm.info.n_context,
                    "n_prompt_tokens": live.n_prompt,
                    "n_prompt_tokens_processed": live.n_read,
                    "n_decoded": live.n_generated,
                    "tokens_per_second": live.decode_tok_s,
                }
            )
    return found
