"""Tools of the MCP servers that `edgeinfer serve --mcp` names, for the page; without it there is no route for calls.

In: requests of the page, which has asked the person. Out: the tools, and the result of one call. The server itself
never calls a tool: answers of its other routes only say what they would call.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from edgeinfer.app.server.errors import ERROR_RESPONSES
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.streaming import unless_gone

if TYPE_CHECKING:
    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox

ROUTER = APIRouter(tags=["mcp"])
CALL_ROUTER = APIRouter(tags=["mcp"])
"""The route that calls tools, served only if there are MCP servers."""
ARGUMENTS_CAP = 1_000_000
"""Characters of the arguments of a call."""


class ToolCallRequest(BaseModel):
    """One call: the tool by the name that the list has for it, and the text of a JSON object."""

    name: str = Field(max_length=64)
    arguments: str = Field(default="{}", max_length=ARGUMENTS_CAP)


@ROUTER.get("/mcp/tools", responses=ERROR_RESPONSES)
async def tools(request: Request) -> Record:
    """List the tools, once all servers have started; those that need no permission are `trusted`."""
    state = server_state(request)
    if state.tools is None:
        return {"tools": [], "failures": []}
    toolbox = await _started(state.tools, request)
    offered = () if toolbox is None else tuple(toolbox.tools.values())
    return {"tools": [_tool_record(tool) for tool in offered], "failures": list(state.tools.failures)}


@CALL_ROUTER.post("/mcp/call", responses=ERROR_RESPONSES)
async def call(body: ToolCallRequest, request: Request) -> Record:
    """Call a tool. The result is a text for the model; `failed` says whether it is only the reason why there is none.

    If the client disconnects, the call ends.
    """
    state, stopped = server_state(request), threading.Event()
    assert state.tools is not None
    toolbox = await _started(state.tools, request)
    if toolbox is None:
        return {"text": f"There is no tool {body.name}.", "failed": True}
    work = to_thread.run_sync(
        toolbox.call, body.name, body.arguments, stopped.is_set, limiter=state.call_limiter, abandon_on_cancel=True
    )
    result = await unless_gone(work, request, stopped.set)
    return {"text": result.text, "failed": result.failed}


async def _started(tools: ChatTools, request: Request) -> Toolbox | None:
    """The tools, once their servers have started; None if there are none."""
    stopped = threading.Event()
    if not tools.is_ready:
        await unless_gone(asyncio.to_thread(tools.wait, stopped.is_set), request, stopped.set)
    return tools.toolbox


def _tool_record(tool: OfferedTool) -> Record:
    remote = tool.remote
    return {
        "name": tool.name,
        "server": remote.server.name,
        "tool": remote.name,
        "trusted": remote.server.trusts(remote.name),
        "function": tool.function["function"],
    }
