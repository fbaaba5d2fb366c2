"""MCP servers of the official package, as tables of the configuration file and as records."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.mcp import toolbox
from edgeinfer.app.mcp.connections import Connections
from edgeinfer.app.mcp.servers import ToolServer
from tests.waiting import PATIENCE_S

PROGRAM = Path(__file__).with_name("tool_server.py")
PATHS = os.pathsep.join(path for path in sys.path if path)
NewServer = Callable[..., ToolServer]


def require_package() -> None:
    """Skip where the official package is not installed."""
    pytest.importorskip("mcp.server.mcpserver", reason="the package mcp is not installed")


def table(kind: str, further: str = "") -> str:
    """A table of the configuration file for a server of a kind, with its name."""
    env = f"{{ PYTHONPATH = {json.dumps(PATHS)}, MINE = 'yours' }}"
    return (
        f"[mcp.servers.{kind}]\ncommand = {json.dumps(sys.executable)}\n"
        f"args = {json.dumps([str(PROGRAM), kind])}\nenv = {env}\n{further}\n"
    )


@pytest.fixture
def server() -> NewServer:
    """Makes the record of a server of a kind."""

    def make(
        kind: str, name: str = "", limit_s: float = 60, trusted: frozenset[str] | None = frozenset()
    ) -> ToolServer:
        command = (sys.executable, str(PROGRAM), kind)
        env = {"PYTHONPATH": PATHS, "MINE": "yours"}
        return ToolServer(name or kind, command, env, trusted=trusted, call_limit_s=limit_s)

    return make


def late_server(file: Path, trusted: frozenset[str] | None = frozenset()) -> ToolServer:
    """A server that cannot be started before this file is there."""
    require_package()
    return ToolServer("late", (sys.executable, str(PROGRAM), "late", str(file)), {"PYTHONPATH": PATHS}, trusted=trusted)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that failed are tried again at once, and waited for."""
    monkeypatch.setattr(toolbox, "REST", 0)
    monkeypatch.setattr(toolbox, "AGAIN_LIMIT_S", PATIENCE_S)


@pytest.fixture
def connections() -> Iterator[Connections]:
    require_package()
    with Connections() as opened:
        yield opened
