"""Ollama's routes about models: listing, describing, pulling and deleting them, and what edgeinfer does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

import edgeinfer
from edgeinfer.app.server.errors import OLLAMA_ANSWER_RESPONSES, OLLAMA_RESPONSES, APIError
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.model_downloads import remove_model_file
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_models import listed_record, shown_record
from edgeinfer.app.server.ollama_pull import pull_records, require_turn, source_of
from edgeinfer.app.server.ollama_schemas import NamedRequest, PullRequest, ShowRequest
from edgeinfer.app.server.ollama_wire import expiry_text, lines
from edgeinfer.app.server.state import ServerState, server_state

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel

ROUTER = APIRouter(tags=["ollama"])

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is; clients refuse servers that are older than they are used to."""


@ROUTER.get("/api/version", responses=OLLAMA_RESPONSES)
async def version() -> Record:
    """The version of Ollama's API, and of edgeinfer."""
    return {"version": API_VERSION, "edgeinfer": edgeinfer.__version__}


@ROUTER.get("/api/tags", responses=OLLAMA_RESPONSES)
async def tags(request: Request) -> Record:
    """List the models on this computer, the newest first."""
    state = server_state(request)

    def listed() -> list[Record]:
        records = []
        for model in state.pool.models():
            with suppress(OSError):  # the file has just been removed
                records.append(listed_record(model, state.details.of(model)))
        return sorted(records, key=lambda record: str(record["modified_at"]), reverse=True)

    return {"models": await asyncio.to_thread(listed)}


@ROUTER.get("/api/ps", responses=OLLAMA_RESPONSES)
async def running(request: Request) -> Record:
    """List the models that are loaded."""
    state = server_state(request)
    records = []
    for pooled in state.pool.open:
        with suppress(OSError):  # its file has been removed
            record = await asyncio.to_thread(_listed, pooled.model, state)
            del record["modified_at"]
            records.append(
                {
                    **record,
                    "size": pooled.llm.telemetry.resident_bytes,
                    "expires_at": expiry_text(pooled.keep_s, pooled.used_s),
                    "size_vram": 0,
                    "context_length": pooled.llm.info.n_context,
                }
            )
    return {"models": records}


def _listed(model: LocalModel, state: ServerState) -> Record:
    return listed_record(model, state.details.of(model))


@ROUTER.post("/api/show", responses=OLLAMA_RESPONSES)
async def show(body: ShowRequest, request: Request) -> Record:
    """Describe a model."""
    state = server_state(request)

    def shown() -> Record:
        model = state.pool.find(body.wanted)
        details, reads_images = state.details.of(model), state.media_read(model).images
        return shown_record(model, details, verbose=bool(body.verbose), reads_images=reads_images)

    return await asyncio.to_thread(shown)


@ROUTER.post("/api/pull", responses=OLLAMA_ANSWER_RESPONSES, response_model=None)
async def pull(body: PullRequest, request: Request) -> Response:
    """Pull a model, with its progress as lines of JSON; a client that leaves stops it, and the next pull resumes."""
    state, name = server_state(request), body.wanted
    source = await asyncio.to_thread(source_of, name, state)
    require_turn(state)
    records = pull_records(source, state)
    if body.stream is not False:
        return lines(records, _nothing)
    return JSONAnswer(await _last(records, request))


async def _nothing() -> None:
    """Nothing has to be released after a pull."""


async def _last(records: AsyncIterator[Record], request: Request) -> Record:
    """The last record. Raises APIError if the client disconnects."""
    last: Record = {}
    try:
        async for record in records:
            last = record
            if await request.is_disconnected():
                raise APIError(499, "the client has gone")
    finally:
        await records.aclose()  # type: ignore[attr-defined]
    return last


@ROUTER.delete("/api/delete", responses=OLLAMA_RESPONSES, response_class=Response)
async def delete(body: NamedRequest, request: Request) -> Response:
    """Delete a model that nobody uses, or take it from the list if its file is not edgeinfer's."""
    await remove_model_file(server_state(request).pool, body.wanted)
    return Response()


@ROUTER.post("/api/copy", responses=OLLAMA_RESPONSES)
async def copy() -> Response:
    """Refuse: a model has one name."""
    raise APIError(400, "edgeinfer gives models no second names: use the name that /api/tags lists")


@ROUTER.post("/api/create", responses=OLLAMA_RESPONSES)
async def create() -> Response:
    """Refuse: models are pulled."""
    raise APIError(
        400, "edgeinfer makes no models: pull one (/api/pull), and send system and options with each request"
    )


@ROUTER.post("/api/push", responses=OLLAMA_RESPONSES)
async def push() -> Response:
    """Refuse: models stay here."""
    raise APIError(400, "edgeinfer sends no models anywhere")


@ROUTER.post("/api/blobs/{digest}", responses=OLLAMA_RESPONSES)
async def blob(digest: str) -> Response:
    """Refuse: files of models are pulled."""
    raise APIError(400, "edgeinfer takes no files over HTTP: pull a model (/api/pull)")
