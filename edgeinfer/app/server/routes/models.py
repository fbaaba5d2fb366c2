"""Which models there are, and opening and closing them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.asked import ModelRequest
from edgeinfer.app.server.state import State, state_of
from edgeinfer.app.server.statuses import FAILURES

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=FAILURES)
@router.get("/models", include_in_schema=False)
async def models(request: Request) -> Record:
    """The models that requests may name: the default one first, then all others on this computer."""
    state = state_of(request)
    found = await asyncio.to_thread(state.hosting.models)
    return {"object": "list", "data": [_record(model, state) for model in found]}


@router.get("/v1/models/{name:path}", responses=FAILURES)
async def model(name: str, request: Request) -> Record:
    """One model."""
    state = state_of(request)
    return _record(await asyncio.to_thread(state.hosting.find, name), state)


@router.post("/models/load", responses=FAILURES)
async def load(asked: ModelRequest, request: Request) -> Record:
    """Open a model before it is needed."""
    state = state_of(request)
    async with state.hosting.use(asked.model) as hosted:
        return {"success": True, "model": hosted.name, "load_s": hosted.llm.info.load_s}


@router.post("/models/unload", responses={**FAILURES, 409: {"description": "It is being used."}})
async def unload(asked: ModelRequest, request: Request) -> Record:
    """Close a model that nobody uses; the next request for it opens it again."""
    return {"success": await state_of(request).hosting.unload(asked.model)}


def _record(model: LocalModel, state: State) -> Record:
    hosted = next((each for each in state.hosting.open if each.path == model.path), None)
    found: Record = {
        "id": model.name,
        "object": "model",
        "created": 0 if hosted is None else int(hosted.opened_s),
        "owned_by": "edgeinfer",
        "status": {"value": "unloaded" if hosted is None else "loaded"},
        "size_bytes": model.nbytes,
    }
    if hosted is not None:
        facts = hosted.llm.info
        found["meta"] = {"n_ctx": facts.n_context, "n_ctx_train": facts.n_context_trained, "arch": facts.architecture}
    return found
