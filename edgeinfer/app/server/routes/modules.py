"""GET /modules, PUT and DELETE /modules/{name}: texts that a model reads once, for any request to name.

A request places them by its field `modules`, or by parts of messages: {"type": "module", "name": …}. Answers to such
requests are approximate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.module_fields import ModuleText
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import ModelName, RequestBody, Text
from edgeinfer.app.server.state import server_state
from edgeinfer.errors import UnknownKey

if TYPE_CHECKING:
    from edgeinfer.engine.requests.module_prompts import Module

ROUTER = APIRouter(tags=["models"])

Model = Annotated[ModelName | None, Query()]


class ModuleRequest(RequestBody):
    """PUT /modules/{name}. `model`: whose module; the default model's if it says nothing."""

    text: Text
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    prefix: Text | None = None
    model: ModelName | None = None


@ROUTER.get("/modules", responses=ERROR_RESPONSES)
async def modules(request: Request, model: Model = None) -> Record:
    """List the modules of a model."""
    async with server_state(request).model(model) as found:
        return {"object": "list", "model": found.name, "data": [_record(each) for each in found.llm.modules]}


@ROUTER.put("/modules/{name}", responses=ERROR_RESPONSES)
async def put_module(name: str, body: ModuleRequest, request: Request) -> Record:
    """Read a text once, by itself, so that later requests can name it; another text of this name is replaced."""
    state = server_state(request)
    async with state.model(body.model) as found:
        text = ModuleText(body.text, body.temperature, body.prefix)
        return {**_record(await state.modules.put(found, name, text)), "model": found.name}


@ROUTER.delete("/modules/{name}", responses=ERROR_RESPONSES)
async def delete_module(name: str, request: Request, model: Model = None) -> Record:
    """Forget a module and free its memory."""
    state = server_state(request)
    async with state.model(model) as found:
        try:
            await state.modules.remove(found, name)
        except UnknownKey as reason:
            raise APIError(404, str(reason), "module_not_found", "name") from None
    return {"object": "module", "name": name, "deleted": True}


def _record(module: Module) -> Record:
    """What the routes tell of a module."""
    return {
        "object": "module",
        "name": module.name,
        "key": module.key,
        "n_tokens": len(module.tokens),
        "n_prefix": len(module.prefix),
        "temperature": module.temperature,
    }
