"""Listing, loading, unloading, pulling and deleting models, as llama-server's router does; events about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from edgeinfer.app.server.errors import ERROR_RESPONSES
from edgeinfer.app.server.model_downloads import remove_model_file
from edgeinfer.app.server.model_events import Listener
from edgeinfer.app.server.model_list import key_of
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.properties import open_record
from edgeinfer.app.server.request_media import MediaRead
from edgeinfer.app.server.requests import ModelName, RequestBody
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.app.server.streaming import event, streaming

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel

ROUTER = APIRouter(tags=["models"])
IN_USE = {**ERROR_RESPONSES, 409: {"description": "It is being used."}}
EVENTS = {200: {"description": "Events about models.", "content": {"text/event-stream": {}}}, **ERROR_RESPONSES}


class ModelRequest(RequestBody):
    """POST /models, /models/load and /models/unload."""

    model: ModelName


@ROUTER.get("/v1/models", responses=ERROR_RESPONSES)
@ROUTER.get("/models", include_in_schema=False)
async def models(request: Request, reload: Annotated[str | None, Query(max_length=20)] = None) -> Record:
    """List the models on this computer, the default model first. With `reload`, the presets are read again before."""
    state = server_state(request)
    if reload:
        await state.pool.reread()
    listed = await asyncio.to_thread(state.pool.models)
    read = await asyncio.to_thread(lambda: [state.media_read(model) for model in listed])
    pulled = [_pulled(name, progress) for name, progress in state.downloads.progress.items()]
    records = [_record(model, state, media) for model, media in zip(listed, read, strict=True)]
    in_words = [_capabilities(model, media) for model, media in zip(listed, read, strict=True)]
    return {"object": "list", "data": records + pulled, "models": in_words}


@ROUTER.post("/models", responses=ERROR_RESPONSES)
async def pull(body: ModelRequest, request: Request) -> Record:
    """Begin to pull a model, which events tell about; /models/unload stops it."""
    state = server_state(request)
    await state.downloads.begin(body.model, state)
    return {"success": True}


@ROUTER.delete("/models", responses=IN_USE)
async def delete(request: Request, model: Annotated[str, Query(min_length=1, max_length=500)]) -> Record:
    """Delete a model that nobody uses, or take it from the list if its file is not edgeinfer's."""
    state = server_state(request)
    if not await state.downloads.cancel(model):
        await remove_model_file(state.pool, model)
    return {"success": True}


@ROUTER.get("/models/sse", responses=EVENTS, response_class=Response)
async def events(request: Request) -> Response:
    """Events: models being loaded, with progress, loaded, unloaded, failed, pulled and deleted."""
    listener = server_state(request).pool.events.listen()
    return streaming(_written(listener), listener.close)


async def _written(listener: Listener) -> AsyncIterator[bytes]:
    async for record in listener.records():
        yield event(record)


@ROUTER.get("/v1/models/{name:path}", responses=ERROR_RESPONSES)
async def model(name: str, request: Request) -> Record:
    """Describe one model."""
    state = server_state(request)
    found = await asyncio.to_thread(state.pool.find, name)
    return _record(found, state, await asyncio.to_thread(state.media_read, found))


@ROUTER.post("/models/load", responses=ERROR_RESPONSES)
async def load(body: ModelRequest, request: Request) -> Record:
    """Load a model ahead of its first request; answers when it is loaded."""
    state = server_state(request)
    async with state.pool.use(body.model) as pooled:
        return {"success": True, "model": pooled.name, "load_s": pooled.llm.info.load_s}


@ROUTER.post("/models/unload", responses=IN_USE)
async def unload(body: ModelRequest, request: Request) -> Record:
    """Unload an idle model, which the next request for it loads again; or stop pulling one."""
    state = server_state(request)
    return {"success": await state.downloads.cancel(body.model) or await state.pool.unload(body.model)}


def _capabilities(model: LocalModel, read: MediaRead) -> Record:
    """What a model can do, where clients of llama-server look whether prompts may have images or sounds."""
    found = ["completion", "multimodal"] if read.images or read.sound else ["completion"]
    return {"name": model.name, "model": model.name, "capabilities": found}


def _created(path: Path) -> int:
    """When a model's file was written, in seconds since 1970; 0 if it is gone."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0


def _record(model: LocalModel, state: ServerState, read: MediaRead) -> Record:
    names, pooled = state.pool.names, state.pool.opened(model)
    is_configured = names.is_configured(model)
    record: Record = {
        "id": model.name,
        "object": "model",
        "created": _created(model.path),
        "owned_by": "edgeinfer",
        "aliases": list(names.aliases_of(model)),
        "tags": list(state.options.tags) if key_of(model) == key_of(names.default) else [],
        "status": _status(model, state),
        "architecture": {
            "input_modalities": ["text", *(["image"] if read.images else []), *(["audio"] if read.sound else [])],
            "output_modalities": ["text"],
        },
        "source": "preset" if is_configured else "cache",
        "can_remove": not is_configured,
        "size_bytes": model.nbytes,
    }
    if pooled is not None:
        record["meta"] = open_record(pooled)
    return record


def _status(model: LocalModel, state: ServerState) -> Record:
    """Whether a model is loaded, as llama-server says it."""
    pool = state.pool
    if pool.opened(model) is not None:
        return {"value": "loaded"}
    if (progress := pool.events.progress.get(model.name)) is not None:
        return {"value": "loading", **({"progress": progress} if progress else {})}
    if (reason := pool.failures.get(model.name)) is not None:
        return {"value": "unloaded", "failed": True, "exit_code": 1, "reason": reason}
    return {"value": "unloaded"}


def _pulled(name: str, progress: Record) -> Record:
    """A model that is being pulled."""
    status = {"value": "downloading", "progress": progress}
    return {"id": name, "object": "model", "created": 0, "owned_by": "edgeinfer", "aliases": [], "status": status}
