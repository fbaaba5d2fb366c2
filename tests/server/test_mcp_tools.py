"""The routes about tools of MCP servers, with servers of the official package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.state import MOST_CALLS_AT_ONCE
from edgeinfer.errors import BadSetting
from tests.server.conftest import Running, served, tools_of

KEY = {"Authorization": "Bearer secret"}
FOREIGN = "https://foreign.example"


@pytest.fixture(scope="module")
def tooled(tiny_model: Path) -> Iterator[Running]:
    """A server with tools and a key, which pages of another origin may use."""
    options = ServerOptions(port=0, key="secret", origins=("https://friend.example",))
    with (
        tools_of("good", "broken", trusted=frozenset({"add"})) as tools,
        served(tiny_model, options, tools=tools) as running,
    ):
        yield running


def call(running: Running, name: str, arguments: str = "{}") -> tuple[str, bool]:
    response = running.http().post("/mcp/call", json={"name": name, "arguments": arguments})
    assert response.status_code == 200, response.text
    return response.json()["text"], response.json()["failed"]


def test_tools_are_listed_and_called(tooled: Running) -> None:
    listed = tooled.http().get("/mcp/tools").json()
    assert "no licence for Tuesdays" in listed["failures"][0]
    by_name = {tool["name"]: tool for tool in listed["tools"]}
    assert [(tool["server"], tool["tool"], tool["trusted"]) for tool in listed["tools"][:2]] == [
        ("good", "add", True),
        ("good", "fail", False),
    ]
    assert by_name["add"]["function"]["parameters"]["properties"]["a"]["type"] == "integer"
    assert call(tooled, "add", '{"a": 1, "b": 2}') == ("3", False)
    assert call(tooled, "fail", '{"reason": "not today"}')[1]
    assert call(tooled, "nothing")[0].startswith("There is no tool nothing. There are: add")
    assert call(tooled, "add", "[1, 2]")[0].startswith("The arguments of add must be a JSON object")
    assert "out of cheese" in call(tooled, "crash")[0]
    assert call(tooled, "add", '{"a": 1, "b": 2}') == ("3", False)  # the server is started again


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**KEY, "Origin": FOREIGN}, 403),
        ({**KEY, "Origin": "null"}, 403),
        ({**KEY, "Host": "foreign.example"}, 403),
        ({"Origin": "https://friend.example"}, 401),
        ({**KEY, "Origin": "https://friend.example"}, 200),
    ],
)
def test_the_guard_stands_before_both_routes(tooled: Running, headers: dict[str, str], status: int) -> None:
    with httpx.Client(base_url=tooled.url, headers=headers, timeout=60) as http:
        assert http.get("/mcp/tools").status_code == status
        assert http.post("/mcp/call", json={"name": "process"}).status_code == status
        simple = http.post("/mcp/call", content='{"name": "process"}', headers={"Content-Type": "text/plain"})
        assert simple.status_code == status


def test_bad_bodies_and_methods_call_nothing(tooled: Running) -> None:
    http = tooled.http()
    for body in ({}, {"name": 1}, {"name": "x" * 65}, {"name": "process", "arguments": {"a": 1}}):
        assert http.post("/mcp/call", json=body).status_code == 400
    assert http.get("/mcp/call", params={"name": "process"}).status_code == 405


def test_answers_of_the_server_call_nothing_themselves(tooled: Running) -> None:
    before = call(tooled, "process")
    crash = {"type": "function", "function": {"name": "crash", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [crash], "max_tokens": 200}
    choice = {"type": "function", "function": {"name": "crash"}}
    answer = tooled.http().post("/v1/chat/completions", json={**body, "tool_choice": choice}).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "crash"
    assert call(tooled, "process") == before


def test_a_client_that_goes_ends_its_call(tooled: Running) -> None:
    for _ in range(MOST_CALLS_AT_ONCE + 1):  # calls that went on, for an hour, would leave no room
        with httpx.Client(base_url=tooled.url, headers=KEY) as http, pytest.raises(httpx.ReadTimeout):
            http.post("/mcp/call", json={"name": "hang"}, timeout=httpx.Timeout(60, read=0.3))
    assert call(tooled, "add", '{"a": 1, "b": 2}') == ("3", False)


def test_without_servers_nothing_can_be_called(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, key="secret")) as plain:
        http = plain.http()
        assert http.get("/mcp/tools").json() == {"tools": [], "failures": []}
        assert http.post("/mcp/call", json={"name": "add"}).status_code == 404
        assert "/mcp/call" not in http.get("/openapi.json").json()["paths"]


def test_tools_need_a_key_and_names_that_there_are(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadSetting, match="with --mcp a key is needed"):
        ServerOptions(tool_servers=(ToolServer("a", ("b",)),)).check()
    home.mkdir()
    (home / "config.toml").write_text("[mcp.servers.notes]\ncommand = 'x'\n")
    for arguments, said in ((["nots"], "no MCP server is called 'nots'"), (["notes"], "with --mcp a key is needed")):
        with pytest.raises(SystemExit) as left:
            main(["serve", "-m", str(tiny_model), "--port", "0", "--mcp", *arguments])
        assert (left.value.code, said in capsys.readouterr().err) == (1, True)
