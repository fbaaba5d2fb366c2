"""The routes about tools of MCP servers, with servers of the official package."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.running import log_to_stderr
from edgeinfer.app.server.served_tools import MOST_CALLS
from tests.server.conftest import UNENCRYPTED, Running, good_tools, served
from tests.unit.app.mcp.conftest import late_server, restless

__all__ = ["restless"]  # a fixture
KEY = {"Authorization": "Bearer secret"}
FOREIGN = "https://foreign.example"


@pytest.fixture(scope="module")
def tooled(tiny_model: Path) -> Iterator[Running]:
    """A server with tools and a key, which pages of another origin may use."""
    servers = good_tools("add"), good_tools(kind="broken")
    options = ServerOptions(port=0, key="secret", origins=("https://friend.example",), tools=servers)
    with served(tiny_model, options) as running:
        yield running


def call(running: Running, name: str, arguments: str = "{}") -> tuple[str, bool]:
    response = running.http().post("/mcp/call", json={"name": name, "arguments": arguments})
    assert response.status_code == 200, response.text
    return response.json()["text"], response.json()["failed"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_nothing_is_forwarded(tooled: Running, method: str) -> None:
    refused = tooled.http().request(method, "/cors-proxy", params={"url": "http://example.com"})
    assert refused.status_code == 403
    assert method == "HEAD" or "--mcp" in refused.json()["error"]["message"]
    assert httpx.request(method, f"{tooled.url}/cors-proxy").status_code == 401


def test_tools_are_listed_and_called(tooled: Running) -> None:
    listed = tooled.http().get("/mcp/tools").json()
    assert "no licence for Tuesdays" in listed["failures"][0]
    by_name = {tool["name"]: tool for tool in listed["tools"]}
    assert [(tool["server"], tool["tool"], tool["trusted"]) for tool in listed["tools"][:2]] == [
        ("good", "add", True),
        ("good", "fail", False),
    ]
    assert by_name["good_add"]["function"]["parameters"]["properties"]["a"]["type"] == "integer"
    assert call(tooled, "good_add", '{"a": 1, "b": 2}') == ("3", False)
    assert call(tooled, "good_fail", '{"reason": "not today"}')[1]
    assert call(tooled, "nothing")[0].startswith("There is no tool nothing. There are: good_add")
    assert call(tooled, "good_add", "[1, 2]")[0].startswith("The arguments of good_add must be a JSON object")
    assert "out of cheese" in call(tooled, "good_crash")[0]
    assert call(tooled, "good_add", '{"a": 1, "b": 2}') == ("3", False)  # the server is started again


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
    with httpx.Client(base_url=tooled.url, headers=headers, timeout=60, verify=UNENCRYPTED) as http:
        assert http.get("/mcp/tools").status_code == status
        assert http.post("/mcp/call", json={"name": "good_process"}).status_code == status
        simple = http.post("/mcp/call", content='{"name": "good_process"}', headers={"Content-Type": "text/plain"})
        assert simple.status_code == status


def test_bad_bodies_and_methods_call_nothing(tooled: Running) -> None:
    http = tooled.http()
    for body in ({}, {"name": 1}, {"name": "x" * 65}, {"name": "good_process", "arguments": {"a": 1}}):
        assert http.post("/mcp/call", json=body).status_code == 400
    assert http.get("/mcp/call", params={"name": "good_process"}).status_code == 405


def test_answers_of_the_server_call_nothing_themselves(tooled: Running) -> None:
    before = call(tooled, "good_process")
    crash = {"type": "function", "function": {"name": "good_crash", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [crash], "max_tokens": 200}
    choice = {"type": "function", "function": {"name": "good_crash"}}
    answer = tooled.http().post("/v1/chat/completions", json={**body, "tool_choice": choice}).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "good_crash"
    assert call(tooled, "good_process") == before


def test_a_client_that_goes_ends_its_call(tooled: Running) -> None:
    for _ in range(MOST_CALLS + 1):  # calls that went on, for an hour, would leave no room
        with (
            httpx.Client(base_url=tooled.url, headers=KEY, verify=UNENCRYPTED) as http,
            pytest.raises(httpx.ReadTimeout),
        ):
            http.post("/mcp/call", json={"name": "good_hang"}, timeout=httpx.Timeout(60, read=0.1))
    assert call(tooled, "good_add", '{"a": 1, "b": 2}') == ("3", False)


def test_without_servers_nothing_can_be_called(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, key="secret")) as plain:
        http = plain.http()
        assert http.get("/mcp/tools").json() == {"tools": [], "failures": []}
        assert http.post("/mcp/call", json={"name": "good_add"}).status_code == 404
        assert http.get("/tools").json() == []
        assert "/mcp/call" not in http.get("/openapi.json").json()["paths"]


def test_a_server_that_failed_is_tried_again_with_the_next_request(
    tiny_model: Path, tmp_path: Path, restless: None
) -> None:
    file, add = tmp_path / "file", {"name": "late_add", "arguments": '{"a": 1, "b": 2}'}
    tools = (late_server(file, frozenset({"add"})),)
    with served(tiny_model, ServerOptions(port=0, key="secret", tools=tools)) as running:
        http = running.http()
        listed = http.get("/mcp/tools").json()
        assert (listed["tools"], "not yet" in listed["failures"][0]) == ([], True)
        assert "There is no tool late_add" in call(running, **add)[0]
        assert http.post("/tools", json={"tool": "late_add", "params": {"a": 1, "b": 2}}).status_code == 404
        file.write_text("")
        assert call(running, **add) == ("3", False)
        assert http.get("/mcp/tools").json()["failures"] == []
        assert [each["tool"] for each in http.get("/tools").json()] == ["late_add"]


def test_addresses_of_tool_servers_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("httpx")
    monkeypatch.setattr(log, "level", logging.INFO)
    monkeypatch.setattr(log, "_cache", {})
    log_to_stderr()
    assert not log.isEnabledFor(logging.INFO)


def test_without_a_key_the_page_calls_nothing(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, tools=(good_tools("add"),))) as open_to_all:
        http = open_to_all.http()
        listed = http.get("/mcp/tools").json()
        assert (listed["tools"], "only if the server has a key" in listed["failures"][0]) == ([], True)
        assert http.post("/mcp/call", json={"name": "good_add"}).status_code == 404


def test_other_clients_call_trusted_tools_alone(tooled: Running) -> None:
    http = tooled.http()
    assert [each["tool"] for each in http.get("/tools").json()] == ["good_add"]
    assert http.post("/tools", json={"tool": "good_process"}).status_code == 404
