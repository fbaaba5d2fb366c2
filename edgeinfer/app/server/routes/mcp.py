"""Tools of the MCP servers that `edgeinfer serve --mcp` names, for the page, which asks the person about each call.

In: requests of the page. Out: the tools, and the result of one call. The server itself never calls a tool: answers of
its other routes only say what they would call. Without a key nobody can tell the page from other programs: then there
is no route for calls here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.streaming import unless_gone

if TYPE_CHECKING:
    from edgeinfer.app.mcp.toolbox import OfferedTool

ROUTER = APIRouter(tags=["tools"])
CALL_ROUTER = APIRouter(tags=["tools"])
"""The route that calls tools, served only if there are MCP servers and a key."""
ARGUMENTS_CAP = 1_000_000
"""Characters of the arguments of a call."""
NO_KEY = "this page calls tools only if the server has a key: set EDGEINFER_API_KEY before `edgeinfer serve --mcp`"


class ToolCallRequest(BaseModel):
    """One call: the tool by the name that the list has for it, and the text of a JSON object."""

    name: str = Field(max_length=64)
    arguments: str = Field(default="{}", max_length=ARGUMENTS_CAP)


@ROUTER.get("/mcp/tools", responses=ERROR_RESPONSES)
async def tools(request: Request) -> Record:
    """List the tools for the page, once all servers have started; those that need no permission are `trusted`."""
    state = server_state(request)
    if state.options.tools and state.options.key is None:
        return {"tools": [], "failures": [NO_KEY]}
    offered, failures = await state.tools.offered()
    return {"tools": [_tool_record(tool) for tool in offered], "failures": list(failures)}


@ROUTER.api_route("/cors-proxy", methods=["GET", "HEAD", "POST", "DELETE"], include_in_schema=False)
async def forwarding() -> Record:
    """Refuse: llama-server's page asks here whether it reaches MCP servers of other addresses through its own."""
    raise APIError(
        403, "edgeinfer forwards no requests to other servers; it starts MCP servers itself: `edgeinfer serve --mcp`"
    )


@CALL_ROUTER.post("/mcp/call", responses=ERROR_RESPONSES)
async def call(body: ToolCallRequest, request: Request) -> Record:
    """Call a tool. The result is a text for the model; `failed` says whether it is only the reason why there is none.

    If the client disconnects, the call ends.
    """
    stopped = threading.Event()
    work = server_state(request).tools.call_allowed(body.name, body.arguments, stopped.is_set)
    result = await unless_gone(work, request, stopped.set)
    return {"text": result.text, "failed": result.failed}


def _tool_record(tool: OfferedTool) -> Record:
    remote = tool.remote
    return {
        "name": tool.name,
        "server": remote.server.name,
        "tool": remote.name,
        "trusted": remote.server.trusts(remote.name),
        "function": tool.function["function"],
    }
