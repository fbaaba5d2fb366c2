"""Connections to MCP servers, each kept open by a task of one thread with an event loop.

In: servers; calls from any thread. Out: tools as their servers describe them, results as plain records. A server is
started when it is first needed, and again after it ended; all end with `close`. Every wait has a limit, and ends as
soon as its caller is stopped. A failure is a `ToolServerFailed` whose message says what the server's last words were.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import Transport

T = TypeVar("T")
START_LIMIT_S = 60.0
"""Seconds for a server to start and list its tools; package runners download on the first start."""
END_LIMIT_S = 8.0
"""Seconds for a server to end: the client waits two, then terminates and kills it."""
LOOK_S = 0.1
"""Seconds between two looks whether who waits has been stopped."""
MOST_PAGES = 32
"""Pages of a list of tools that are read."""
LAST_WORDS_BYTES = 2000
CLOSED = "Connection closed"
"""What the client itself says of a connection that ended."""


IsStopped = Callable[[], bool]
"""Whether the person, or the program, that a call is made for has been stopped."""


def never() -> bool:
    """Return False: there is nothing that stops it."""
    return False


class ToolServerFailed(EdgeInferError):
    """An MCP server that cannot be started or reached, or that ended."""


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool as its server describes it. `schema`: of its arguments, unchecked."""

    server: ToolServer
    name: str
    description: str
    schema: object


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """What a call gave: its texts, the kinds of what is no text, and whether the tool says that it failed."""

    texts: tuple[str, ...]
    other_kinds: tuple[str, ...]
    is_error: bool


class Connections:
    """Connections to servers. Close it, or use it as a context manager."""

    def __init__(self) -> None:
        _require_package()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._open: dict[str, _Connection] = {}
        self._is_closed = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tools(self, server: ToolServer, is_stopped: IsStopped = never) -> tuple[RemoteTool, ...]:
        """The tools of a server, which is started if need be. Raises ToolServerFailed.

        If the caller is stopped the server goes on starting, and is there for the next one.
        """
        return self._run(self._tools(server), is_stopped)

    def has_started(self, server: ToolServer) -> bool:
        """Whether a server runs and has listed its tools, so that `tools` does not wait."""
        connection = self._open.get(server.name)
        return connection is not None and connection.opened.done() and not connection.task.done()

    def call(
        self, server: ToolServer, tool: str, arguments: Mapping[str, Any], is_stopped: IsStopped = never
    ) -> RemoteResult:
        """Call a tool. Raises ToolServerFailed if the server fails, is too slow or refuses, or the caller is stopped.

        The server of a call that was stopped is told so, and stays.
        """
        return self._run(self._call(server, tool, arguments), is_stopped)

    def close(self) -> None:
        """End all servers and the thread; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(2 * END_LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_LIMIT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T], is_stopped: IsStopped = never) -> T:
        if self._is_closed:
            work.close()
            raise ToolServerFailed("the connections to MCP servers are closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not concurrent.futures.wait((future,), LOOK_S).done:
                if is_stopped():
                    raise ToolServerFailed("it was stopped")
            return future.result()
        except BaseException:  # for example Ctrl-C
            future.cancel()
            raise

    async def _tools(self, server: ToolServer) -> tuple[RemoteTool, ...]:
        return await (await self._connection(server)).opened

    async def _call(self, server: ToolServer, tool: str, arguments: Mapping[str, Any]) -> RemoteResult:
        connection = await self._connection(server)
        assert connection.client is not None
        try:
            async with asyncio.timeout(server.call_limit_s):
                return _result(await connection.client.call_tool(tool, dict(arguments)))
        except TimeoutError:
            await self._end(server.name)  # what it still does would go on
            raise ToolServerFailed(
                f"{server.name} did not answer within {server.call_limit_s:g} s and was ended; `timeout` in its table "
                "gives it longer"
            ) from None
        except Exception as reason:
            if _is_refusal(reason):
                raise ToolServerFailed(f"{server.name}: {_words(reason)}") from None
            words = connection.failure(reason)
            await self._end(server.name)
            raise ToolServerFailed(words) from None

    async def _connection(self, server: ToolServer) -> _Connection:
        """The open connection to a server, opened if there is none. Raises ToolServerFailed."""
        connection = self._open.get(server.name)
        if connection is not None and connection.task.done():  # the server ended by itself
            await self._end(server.name)
            connection = self._open.get(server.name)
        if connection is None:
            connection = self._open[server.name] = _Connection(server)
        try:
            await asyncio.shield(connection.opened)
        except ToolServerFailed:
            await self._end(server.name)
            raise
        return connection

    async def _end(self, name: str) -> None:
        connection = self._open.pop(name, None)
        if connection is not None:
            await connection.end()

    async def _end_all(self) -> None:
        await asyncio.gather(*(self._end(name) for name in tuple(self._open)), return_exceptions=True)


class _Connection:
    """One server's connection: a task that opens it, waits, and closes it, as its library wants it done in one task."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        # it lives as long as the connection; `end` closes it
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._errors = cast("TextIO", errors)
        self._stop = asyncio.Event()
        self.client: Client | None = None
        self.opened: asyncio.Future[tuple[RemoteTool, ...]] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(START_LIMIT_S):
                    self.client = await stack.enter_async_context(await self._new_client(stack))
                    tools = await self._list()
                if not self.opened.done():
                    self.opened.set_result(tools)
                await self._stop.wait()
        except BaseException as reason:
            if not self.opened.done():
                self.opened.set_exception(ToolServerFailed(self.failure(reason)))
                self.opened.exception()  # nobody may be waiting any more
            if isinstance(reason, KeyboardInterrupt | SystemExit):
                raise

    async def _new_client(self, stack: AsyncExitStack) -> Client:
        from mcp import Client, Implementation, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        import edgeinfer

        server = self._server
        transport: Transport
        if server.url is None:
            program, *arguments = server.command
            parameters = StdioServerParameters(
                command=program,
                args=arguments,
                env=dict(server.env),
                cwd=server.folder,
                encoding_error_handler="replace",
            )
            transport = stdio_client(parameters, errlog=self._errors)
        else:
            http = await stack.enter_async_context(create_mcp_http_client(headers=dict(server.headers)))
            transport = streamable_http_client(server.url, http_client=http)
        return Client(
            transport, client_info=Implementation(name="edgeinfer", version=edgeinfer.__version__), cache=None
        )

    async def _list(self) -> tuple[RemoteTool, ...]:
        assert self.client is not None
        found: list[RemoteTool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            found += [
                RemoteTool(self._server, tool.name, tool.description or "", tool.input_schema) for tool in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(found)

    async def end(self) -> None:
        """Close the connection; a server that does not end in time is left to the library's kill."""
        self._stop.set()
        if not self.opened.done():
            self.task.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(self.task, END_LIMIT_S)
        self._errors.close()

    def failure(self, reason: BaseException) -> str:
        """Why the server cannot be used, with its last words."""
        server = self._server
        leaf = _leaf(reason)
        if isinstance(leaf, TimeoutError):
            words = f"{server.name} did not start within {START_LIMIT_S:g} s: {server.address}"
        elif isinstance(leaf, OSError) and server.url is None:
            words = f"{server.name} cannot be started: {server.command[0]}: {leaf.strerror or leaf}"
        elif server.url is not None:
            words = f"{server.name} cannot be used at {server.url}: {_words(leaf)}"
        else:
            words = f"{server.name} ended or broke the protocol: {_words(leaf)}"
        said = self._last_words()
        return f"{words}; its last words: {said}" if said else words

    def _last_words(self) -> str:
        """The last line that the server wrote to its standard error."""
        with suppress(OSError, ValueError):
            end = self._errors.seek(0, 2)
            self._errors.seek(max(0, end - LAST_WORDS_BYTES))
            lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
            return lines[-1][:300] if lines else ""
        return ""


def _result(found: Any) -> RemoteResult:
    """The texts of a result; of resources that are texts too, and of results that are only data."""
    texts: list[str] = []
    others: list[str] = []
    for block in found.content:
        text = getattr(block, "text", None)
        if text is None:
            text = getattr(getattr(block, "resource", None), "text", None)
        if isinstance(text, str):
            texts.append(text)
        else:
            others.append(str(getattr(block, "type", "something")))
    if not texts and found.structured_content is not None:
        import json

        texts.append(json.dumps(found.structured_content, ensure_ascii=False))
    return RemoteResult(tuple(texts), tuple(others), bool(found.is_error))


def _leaf(reason: BaseException) -> BaseException:
    """The first single error in groups of errors."""
    while isinstance(reason, BaseExceptionGroup):
        reason = reason.exceptions[0]
    return reason


def _is_refusal(reason: Exception) -> bool:
    """Whether the server itself answered that it will not do it, and goes on."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if not isinstance(reason, MCPError) or reason.code == REQUEST_TIMEOUT:
        return False
    return reason.code != CONNECTION_CLOSED or reason.error.message != CLOSED  # servers use this number too


def _words(reason: BaseException) -> str:
    text = " ".join(str(getattr(getattr(reason, "error", None), "message", "") or reason).split())
    return text[:300] or type(reason).__name__


def _require_package() -> None:
    """Raises BadSetting where the package that speaks the protocol is not installed, or is too old."""
    try:
        from mcp import Client  # noqa: F401
    except ImportError as reason:
        raise BadSetting(f"MCP servers need {reason.name or 'mcp'}: pip install 'edgeinfer[mcp]'") from None
