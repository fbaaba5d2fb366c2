"""Listing, loading and unloading models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from edgeinfer.app.server.errors import ERROR_RESPONSES
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import RequestBody
from edgeinfer.app.server.state import ServerState, server_state

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel

ROUTER = APIRouter(tags=["models"])


class ModelRequest(RequestBody):
    """POST /models/load and /models/unload."""

    model: str


@ROUTER.get("/v1/models", responses=ERROR_RESPONSES)
@ROUTER.get("/models", include_in_schema=False)
async def models(request: Request) -> Record:
    """List the models on this computer, the default model first."""
    state = server_state(request)
    listed = await asyncio.to_thread(state.pool.models)
    return {"object": "list", "data": [_record(model, state) for model in listed]}


@ROUTER.get("/v1/models/{name:path}", responses=ERROR_RESPONSES)
async def model(name: str, request: Request) -> Record:
    """Describe one model."""
    state = server_state(request)
    return _record(await asyncio.to_thread(state.pool.find, name), state)


@ROUTER.post("/models/load", responses=ERROR_RESPONSES)
async def load(body: ModelRequest, request: Request) -> Record:
    """Load a model ahead of its first request."""
    state = server_state(request)
    async with state.pool.use(body.model) as pooled:
        return {"success": True, "model": pooled.name, "load_s": pooled.llm.info.load_s}


@ROUTER.post("/models/unload", responses={**ERROR_RESPONSES, 409: {"description": "It is being used."}})
async def unload(body: ModelRequest, request: Request) -> Record:
    """Unload an idle model; the next request for it loads it again."""
    return {"success": await server_state(request).pool.unload(body.model)}


def _created(path: Path) -> int:
    """When a model's file was written, in seconds since 1970; 0 if it is gone."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0


def _record(model: LocalModel, state: ServerState) -> Record:
    pooled = next((candidate for candidate in state.pool.open if candidate.path == model.path), None)
    is_default = model.path == state.pool.default.path
    record: Record = {
        "id": model.name,
        "object": "model",
        "created": _created(model.path),
        "owned_by": "edgeinfer",
        "aliases": list(state.pool.aliases) if is_default else [],
        "tags": list(state.options.tags) if is_default else [],
        "status": {"value": "unloaded" if pooled is None else "loaded"},
        "size_bytes": model.nbytes,
    }
    if pooled is not None:
        facts = pooled.llm.info
        record["meta"] = {"n_ctx": facts.n_context, "n_ctx_train": facts.n_context_trained, "arch": facts.architecture}
    return record
