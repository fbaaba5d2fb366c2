"""Connections to servers of the official package: good ones, and those that hang, crash, flood or say odd things."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from edgeinfer.app.mcp import connections as module
from edgeinfer.app.mcp.connections import Connections, ToolServerFailed
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import RESULT_CAP, Toolbox
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, NewServer, require_package
from tests.waiting import PATIENCE_S


def process_of(connections: Connections, server: ToolServer) -> int:
    return int(connections.call(server, "process", {}).texts[0])


def test_tools_are_listed_and_called(connections: Connections, server: NewServer) -> None:
    good = server("good")
    tools = {tool.name: tool for tool in connections.tools(good)}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].schema["required"] == ["a", "b"]  # type: ignore[index]
    result = connections.call(good, "add", {"a": 2, "b": 40})
    assert (result.texts, result.is_error) == (("42",), False)
    failed = connections.call(good, "fail", {"reason": "not today"})
    assert failed.is_error
    assert "not today" in failed.texts[0]
    assert connections.call(good, "add", {"a": "two"}).is_error


def test_a_server_knows_only_its_own_variables(
    connections: Connections, server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_API_KEY", "s3cret")
    assert connections.call(server("good"), "secret", {}).texts[0].startswith("yours none ")


def test_a_server_is_started_once_and_ends_with_the_program(server: NewServer) -> None:
    require_package()
    with Connections() as connections:
        good = server("good")
        first = process_of(connections, good)
        assert process_of(connections, good) == first
        process = psutil.Process(first)
        assert process.is_running()
    assert not process.is_running()
    with pytest.raises(ToolServerFailed, match="closed"):
        connections.tools(good)
    assert not [thread for thread in threading.enumerate() if thread.name == "mcp"]


def test_a_crash_is_told_and_the_next_call_starts_it_again(connections: Connections, server: NewServer) -> None:
    good = server("good")
    with pytest.raises(ToolServerFailed, match="out of cheese"):
        connections.call(good, "crash", {})
    assert connections.call(good, "add", {"a": 1, "b": 1}).texts == ("2",)


def test_one_that_refuses_goes_on(connections: Connections, server: NewServer) -> None:
    good = server("good")
    first = process_of(connections, good)
    with pytest.raises(ToolServerFailed, match="transient error"):
        connections.call(good, "refuse", {})
    assert process_of(connections, good) == first


def test_one_that_was_killed_between_calls(connections: Connections, server: NewServer) -> None:
    good = server("good")
    first = process_of(connections, good)
    psutil.Process(first).kill()
    with pytest.raises(ToolServerFailed, match="good ended"):
        connections.call(good, "add", {"a": 1, "b": 1})
    assert process_of(connections, good) != first


def test_a_call_that_hangs_ends_the_server(connections: Connections, server: NewServer) -> None:
    good = server("good")
    hasty = replace(good, call_limit_s=0.3)
    process = psutil.Process(process_of(connections, good))
    with pytest.raises(ToolServerFailed, match=r"did not answer within 0\.3 s"):
        connections.call(hasty, "hang", {})
    assert not process.is_running()
    assert connections.call(good, "add", {"a": 1, "b": 1}).texts == ("2",)


def test_one_that_never_answers(connections: Connections, server: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_LIMIT_S", 1)
    with pytest.raises(ToolServerFailed, match="silent did not start within 1 s"):
        connections.tools(server("silent"))
    assert not [each for each in psutil.Process().children() if "silent" in " ".join(each.cmdline())]


def test_one_that_ends_at_once_says_why(connections: Connections, server: NewServer) -> None:
    with pytest.raises(ToolServerFailed, match="its last words: no licence for Tuesdays"):
        connections.tools(server("broken"))


def test_one_that_is_no_program(connections: Connections) -> None:
    with pytest.raises(ToolServerFailed, match="none cannot be started: no-such-program: No such file"):
        connections.tools(ToolServer("none", ("no-such-program",)))


def test_noise_is_passed_over(connections: Connections, server: NewServer) -> None:
    assert connections.call(server("good"), "noise", {}).texts == ("quiet again",)


def test_a_flood_is_cut(connections: Connections, server: NewServer) -> None:
    result = Toolbox([server("good")], connections).call("flood", "{}")
    assert result.text.startswith("x" * RESULT_CAP)
    assert len(result.text) < RESULT_CAP + 100
    assert "more characters]" in result.text


def test_an_interrupt_of_the_caller_ends_the_call(connections: Connections, server: NewServer) -> None:
    good = server("good")
    connections.tools(good)

    def interrupt() -> None:
        if waits.wait(PATIENCE_S):
            os.kill(os.getpid(), 2)

    def is_stopped() -> bool:
        waits.set()
        return False

    waits = threading.Event()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        connections.call(good, "hang", {}, is_stopped)
    assert connections.call(good, "add", {"a": 1, "b": 1}).texts == ("2",)


@pytest.fixture
def http_url() -> Iterator[str]:
    """A server over streamable HTTP, in a process of its own."""
    require_package()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "http", str(port)],
        env={**os.environ, "PYTHONPATH": PATHS},
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def test_streamable_http(connections: Connections, http_url: str) -> None:
    web = ToolServer("web", url=http_url, call_limit_s=60)
    assert "add" in [tool.name for tool in connections.tools(web)]
    assert connections.call(web, "add", {"a": 1, "b": 2}).texts == ("3",)
    with pytest.raises(ToolServerFailed, match=r"did not answer within 0\.3 s"):
        connections.call(replace(web, call_limit_s=0.3), "hang", {})
    assert connections.call(web, "add", {"a": 1, "b": 2}).texts == ("3",)
    with pytest.raises(ToolServerFailed, match="web cannot be used at"):
        connections.call(web, "crash", {})
    with pytest.raises(ToolServerFailed, match="web cannot be used at"):
        connections.call(web, "add", {"a": 1, "b": 2})
