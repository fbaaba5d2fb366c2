"""MCP servers written with the official package, good and bad; run as a program with a kind: stdio, or HTTP at a port.

Kinds: good, hanging (a tool that never answers), silent (never answers at all), crashing (a tool that ends the
process), broken (ends at once, with words), flooding (a result of megabytes), noisy (prints what is no message), odd
(schemas and names that few expect), http PORT, late FILE (good once the file is there and empty; it tells its text).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server import MCPServer, Server
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

FLOOD_BYTES = 5_000_000


def good() -> MCPServer:
    server = MCPServer("good")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    def fail(reason: str) -> str:
        """Fail."""
        raise ToolError(reason)

    @server.tool()
    def refuse() -> str:
        """Refuse with the number that clients use for a closed connection."""
        raise MCPError(code=-32000, message="transient error")

    @server.tool()
    def secret() -> str:
        """Tell what is in the environment."""
        return f"{os.environ.get('MINE', 'none')} {os.environ.get('EDGEINFER_API_KEY', 'none')} {os.getcwd()}"

    @server.tool()
    def process() -> str:
        """Tell the number of the process."""
        return str(os.getpid())

    @server.tool()
    async def hang() -> str:
        """Never answer."""
        await asyncio.sleep(10_000)
        return ""

    @server.tool()
    def crash() -> str:
        """End the process."""
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool()
    def flood() -> str:
        """Give megabytes."""
        return "x" * FLOOD_BYTES

    @server.tool()
    def noise() -> str:
        """Print what is no message."""
        os.write(1, b"this is no JSON\n\xff\xfe\n{}\n[1, 2]\n")
        return "quiet again"

    return server


def odd() -> Server[Any]:
    schemas: dict[str, dict[str, Any]] = {
        "a/b.c d": {"type": "object", "properties": {"x": {"type": "string"}}},
        "auto": {"type": "object"},
        "text": {"type": "object", "properties": "none"},
        "true_parts": {"type": "object", "properties": {"x": True}},
        "round": {"type": "object", "properties": {"x": {"$ref": "#"}}},
        "large": {"type": "object", "properties": {f"x{n}": {"type": "string"} for n in range(2000)}},
        "listed": {"type": "object", "required": "x"},
        "x" * 100: {"type": "object"},
    }

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=s) for name, s in schemas.items()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        image = types.ImageContent(type="image", data="AAAA", mime_type="image/png")
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.name), image])

    return Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "broken":
        sys.exit("no licence for Tuesdays")
    elif kind == "late" and (why := Path(sys.argv[2]).read_text() if Path(sys.argv[2]).exists() else "not yet"):
        sys.exit(why)
    elif kind == "silent":
        time.sleep(10_000)
    elif kind == "odd":
        asyncio.run(serve(odd()))
    elif kind == "http":
        good().run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        good().run("stdio")
