"""The LoRA adapters of a model and their scales, in llama-server's words."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from edgeinfer.app.server.errors import ERROR_RESPONSES
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import AdapterList, ModelName, adapter_scales
from edgeinfer.app.server.state import server_state

ROUTER = APIRouter(tags=["models"])

Model = Annotated[ModelName | None, Query()]


@ROUTER.get("/lora-adapters", responses=ERROR_RESPONSES)
async def adapters(request: Request, model: Model = None) -> list[Record]:
    """The adapters of a model, and the scales of requests that state none."""
    async with server_state(request).model(model) as found:
        return [{"id": each.id, "path": each.path, "scale": each.scale} for each in found.llm.adapters]


@ROUTER.post("/lora-adapters", responses=ERROR_RESPONSES)
async def set_adapters(body: AdapterList, request: Request, model: Model = None) -> Record:
    """Set the scales of later requests that state none; 0 for adapters not named."""
    async with server_state(request).model(model) as found:
        await asyncio.to_thread(found.llm.set_adapters, adapter_scales(body))
    return {"success": True}
