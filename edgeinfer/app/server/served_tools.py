"""Tools of MCP servers that clients may call: those that the user trusts, as nobody is asked for each call.

The page asks the person, so that it may call the others too. In: servers, calls from the event loop. Out: descriptions
in llama-server's form, results. Servers are started when the tools are first asked for; those that failed are tried
again when the tools are listed, or one is called that is not there. Calls wait in threads of their own, so that answers
keep theirs. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.objects import Record

if TYPE_CHECKING:
    from edgeinfer.app.mcp.connections import Connections, IsStopped
    from edgeinfer.app.mcp.servers import ToolServer
    from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox, ToolResult

LOG = logging.getLogger("edgeinfer.server")
MOST_CALLS = 16
"""Calls that run at a time; more wait."""
Value = TypeVar("Value")


class ServedTools:
    """The tools of these servers. Close it; calls that run then fail."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        self._servers = tuple(servers)
        self._threads = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="tools")
        self._lock, self._starting, self._trying = threading.Lock(), threading.Lock(), threading.Lock()
        self._connections: Connections | None = None
        self._toolbox: Toolbox | None = None
        self._is_closed = False

    async def listed(self) -> list[Record]:
        """What the tools are. Raises APIError if the server is ending."""
        tools = await self._in_thread(lambda: _trusted(self._tried_again())) if self._servers else {}
        return [_described(tool) for tool in tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any], is_stopped: IsStopped) -> ToolResult:
        """Call a tool, until `is_stopped`. Raises APIError if there is none of this name."""
        toolbox = await self._in_thread(lambda: self._having(name)) if self._servers else None
        tools = _trusted(toolbox) if toolbox is not None else {}
        if name not in tools or toolbox is None:
            known = ", ".join(tools) or "none; `edgeinfer serve --mcp` and `trusted` in the configuration file add some"
            raise APIError(404, f"there is no tool {name!r}; there are: {known}", "tool_not_found", "tool")
        text = json.dumps(arguments)
        return await self._in_thread(lambda: toolbox.call(name, text, is_stopped))

    async def offered(self) -> tuple[tuple[OfferedTool, ...], tuple[str, ...]]:
        """All tools, trusted or not, and why servers could not be used. Raises APIError if the server is ending."""
        if not self._servers:
            return (), ()
        toolbox = await self._in_thread(self._tried_again)
        return tuple(toolbox.tools.values()), toolbox.failures

    async def call_allowed(self, name: str, arguments: str, is_stopped: IsStopped) -> ToolResult:
        """Call a tool that the person allowed; `arguments` is the text of a JSON object. Raises as `listed`."""
        toolbox = await self._in_thread(lambda: self._having(name))
        return await self._in_thread(lambda: toolbox.call(name, arguments, is_stopped))

    def close(self) -> None:
        """End the servers; may be called twice."""
        with self._lock:
            connections, self._is_closed = self._connections, True
        if connections is not None:
            connections.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        if self._is_closed:
            raise APIError(503, "the server is ending")
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:  # closed just now, by another thread
            raise APIError(503, "the server is ending") from None
        return await running

    def _having(self, name: str) -> Toolbox:
        """The tools; if none has this name, its server may have failed, and is tried again."""
        toolbox = self._opened()
        return toolbox if name in toolbox.tools else self._tried_again()

    def _tried_again(self) -> Toolbox:
        """The tools, with those of servers that failed before and can be started now."""
        toolbox = self._opened()
        with self._trying:
            for news in toolbox.try_again():
                LOG.log(logging.WARNING if news.failed else logging.INFO, "%s", news.text)
        return toolbox

    def _opened(self) -> Toolbox:
        from edgeinfer.app.mcp.connections import Connections
        from edgeinfer.app.mcp.toolbox import Toolbox

        with self._starting:  # which may take a minute; `close` does not wait for it
            if self._toolbox is None:
                with self._lock:
                    if self._is_closed:
                        raise APIError(503, "the server is ending")
                    self._connections = self._connections or Connections()
                toolbox = Toolbox(self._servers, self._connections, is_prefixed=True)
                n_trusted = len(_trusted(toolbox))
                for failure in toolbox.failures:
                    LOG.warning("%s", failure)
                LOG.info("%d of %d tools are trusted, so that clients may call them", n_trusted, len(toolbox.tools))
                self._toolbox = toolbox
            return self._toolbox


def _trusted(toolbox: Toolbox) -> dict[str, OfferedTool]:
    """The tools by name that clients may call."""
    return {name: tool for name, tool in toolbox.tools.items() if tool.remote.server.trusts(tool.remote.name)}


def _described(tool: OfferedTool) -> Record:
    server = tool.remote.server
    return {
        "tool": tool.name,
        "display_name": f"{server.name}: {tool.remote.name}",
        "type": "mcp",
        "definition": tool.function,
    }
