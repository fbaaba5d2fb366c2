"""GET and POST /tools: tools of MCP servers, listed and called in llama-server's form."""

from __future__ import annotations

import threading
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, unsupported
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import RequestBody
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.streaming import unless_gone

ROUTER = APIRouter(tags=["tools"])


class ToolRequest(RequestBody):
    """POST /tools."""

    tool: str
    params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False


@ROUTER.get("/tools", responses=ERROR_RESPONSES)
async def tools(request: Request) -> list[Record]:
    """List the tools of MCP servers that may be called: those that the user's configuration file trusts."""
    return await server_state(request).tools.listed()


@ROUTER.post("/tools", responses=ERROR_RESPONSES)
async def call(body: ToolRequest, request: Request) -> Record:
    """Call a tool; a failed call is an answer too, as a model reads why. If the client disconnects, the call ends."""
    if body.stream:
        raise unsupported("results of tools are told whole, not as a stream", "stream")
    stopped = threading.Event()
    work = server_state(request).tools.call(body.tool, body.params, stopped.is_set)
    result = await unless_gone(work, request, stopped.set)
    return {"error" if result.failed else "plain_text_response": result.text}
