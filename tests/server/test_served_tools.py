"""GET and POST /tools: tools of a real MCP server, of which clients may call those that the user trusts."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeinfer.app.mcp.connections import START_LIMIT_S, Connections, RemoteResult
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.served_tools import ServedTools
from tests.server.conftest import Running, served
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, require_package
from tests.waiting import PATIENCE_S, until

TRUSTED = frozenset({"add", "fail", "hang"})


def notes(trusted: frozenset[str] | None = TRUSTED, limit_s: float = 60) -> ToolServer:
    command = sys.executable, str(PROGRAM), "good"
    return ToolServer("notes", command, {"PYTHONPATH": PATHS}, trusted=trusted, call_limit_s=limit_s)


@pytest.fixture(scope="module")
def tools(tiny_model: Path) -> Iterator[Running]:
    """A server with tools, some of them trusted, and a tool server that cannot be started."""
    require_package()
    missing = ToolServer("missing", ("no-such-program-anywhere",), trusted=None)
    with served(tiny_model, ServerOptions(port=0, tools=(notes(), missing))) as running:
        yield running


def call(running: Running, tool: str, **params: object) -> httpx.Response:
    return running.http().post("/tools", json={"tool": tool, "params": params})


def test_trusted_tools_are_listed_in_the_form_of_chat_completions(tools: Running) -> None:
    found = {each["tool"]: each["definition"] for each in tools.http().get("/tools").json()}
    assert set(found) == {f"notes_{name}" for name in TRUSTED}
    function = found["notes_add"]["function"]
    assert (found["notes_add"]["type"], function["name"], function["description"]) == (
        "function",
        "notes_add",
        "Add two numbers.",
    )
    assert set(function["parameters"]["properties"]) == {"a", "b"}
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [found["notes_add"]], "max_tokens": 2}
    answer = tools.http().post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text


def test_tools_are_called_side_by_side(tools: Running) -> None:
    with ThreadPoolExecutor(10) as asking:
        found = list(asking.map(lambda number: call(tools, "notes_add", a=number, b=1), range(10)))
    assert [each.json() for each in found] == [{"plain_text_response": str(number + 1)} for number in range(10)]


def test_failed_calls_say_why(tools: Running) -> None:
    assert "not today" in call(tools, "notes_fail", reason="not today").json()["error"]
    assert call(tools, "notes_add", a="two").json()["error"]


def test_what_nobody_trusts_is_not_called(tools: Running) -> None:
    for name in ("notes_crash", "crash", "add", "nothing"):
        found = call(tools, name)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "tool_not_found")
    streamed = tools.http().post("/tools", json={"tool": "notes_add", "stream": True})
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")


def test_a_call_ends_with_its_client(tools: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def wait(is_stopped: Callable[[], bool]) -> None:
        while not is_stopped():
            time.sleep(0.01)
        ended.set()

    async def hang(name: str, arguments: object, is_stopped: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait, is_stopped)  # a thread as a real call has it, which cancelling does not end

    monkeypatch.setattr(tools.tools, "call", hang)

    def leave() -> None:
        with pytest.raises(httpx.ReadTimeout):
            tools.http().post("/tools", json={"tool": "notes_hang"}, timeout=httpx.Timeout(60, read=0.5))

    until(ended.is_set, leave)  # a slow server may not have begun the first call by then


def test_a_server_that_ends_does_not_wait_for_tools_that_start() -> None:
    require_package()
    started = ToolServer("slow", (sys.executable, "-c", "import time; time.sleep(600)"))

    async def scenario() -> None:
        served_tools = ServedTools((started,))
        listing = asyncio.create_task(served_tools.listed())
        while served_tools._connections is None or not served_tools._connections._open:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(served_tools.close)
        assert await listing == []

    asyncio.run(asyncio.wait_for(scenario(), START_LIMIT_S / 2))


def test_without_servers_there_are_no_tools(server: Running) -> None:
    assert server.http().get("/tools").json() == []
    assert "--mcp" in call(server, "notes_add").json()["error"]["message"]


def test_a_call_ends_with_the_server(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_package()
    ended: list[httpx.Response | Exception] = []
    called, call_tool = threading.Event(), Connections._call

    async def noted(self: Connections, server: ToolServer, tool: str, arguments: Any) -> RemoteResult:
        if tool == "hang":
            called.set()
        return await call_tool(self, server, tool, arguments)

    monkeypatch.setattr(Connections, "_call", noted)
    with served(tiny_model, ServerOptions(port=0, tools=(notes(),))) as running:
        assert call(running, "notes_add", a=1, b=1).status_code == 200

        def hang() -> None:
            try:
                ended.append(call(running, "notes_hang"))
            except httpx.HTTPError as reason:
                ended.append(reason)

        asking = threading.Thread(target=hang)
        asking.start()
        assert called.wait(PATIENCE_S)
        running.tools.close()
        asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert isinstance(ended[0], httpx.Response)
    assert "error" in ended[0].json()
