"""Names and schemas as the model is told of them, and calls by these names."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.mcp import connections as connections_module
from edgeinfer.app.mcp import toolbox
from edgeinfer.app.mcp.connections import Connections, RemoteResult, RemoteTool, ToolServerFailed
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import ANY_SCHEMA, StartNews, Toolbox, ToolResult, named, result_of, schema_of
from edgeinfer.errors import BadSetting
from edgeinfer.models.text.tools import MOST_TOOLS, functions_of
from tests.unit.app.mcp.conftest import NewServer, late_server, require_package

A, B = ToolServer("a", ("x",)), ToolServer("b", ("y",))


def names(*tools: tuple[ToolServer, str]) -> list[str]:
    return [tool.name for tool in named([RemoteTool(server, name, "", {}) for server, name in tools])]


def test_names_that_collide_are_prefixed() -> None:
    assert names((A, "read"), (B, "read"), (B, "write")) == ["a_read", "b_read", "write"]
    assert names((A, "auto"), (A, "a.b/c"), (A, "")) == ["a_auto", "a_b_c", "tool"]
    tools = [
        (A, "x" * 100),
        (A, "x" * 200),
        (A, "read"),
        (B, "read"),
        (B, "a_read"),
        (A, "s t"),
        (A, "s.t"),
        (A, "s/t"),
    ]
    unique = names(*tools)
    assert len(set(unique)) == len(unique)
    assert all(len(name) <= 64 for name in unique)
    assert unique[4] == "a_read"


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        [],
        {"type": "string"},
        {"type": ["object", "null"]},
        {"type": "object", "properties": "none"},
        {"type": "object", "properties": {"x": True}},
        {"type": "object", "required": "x"},
        {"type": "object", "properties": {f"x{n}": {"type": "string"} for n in range(2000)}},
    ],
)
def test_schemas_that_nothing_can_read_allow_any_object(schema: Any) -> None:
    assert schema_of(schema) == ANY_SCHEMA


def test_other_schemas_stay() -> None:
    schema = {"properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
    assert schema_of(schema) == {"type": "object", **schema}


def test_all_names_may_begin_with_that_of_their_server() -> None:
    remotes = [RemoteTool(A, "read", "", {}), RemoteTool(B, "get", "", {})]
    assert [tool.name for tool in named(remotes, is_prefixed=True)] == ["a_read", "b_get"]


def test_what_is_no_text_is_named() -> None:
    assert result_of(RemoteResult(("a", "b"), ("image",), False)).text == "a\nb\n[image: not shown]"
    assert result_of(RemoteResult((), (), True)).text == "(empty)"


def test_an_empty_text_is_a_text() -> None:
    require_package()
    from mcp_types import CallToolResult, TextContent

    found = CallToolResult(content=[TextContent(type="text", text="")])
    assert result_of(connections_module._result(found)) == ToolResult("(empty)")


def test_odd_tools_of_a_server(connections: Connections, server: NewServer) -> None:
    box = Toolbox([server("odd"), server("broken")], connections)
    assert list(box.tools)[:3] == ["a_b_c_d", "odd_auto", "text"]
    assert [failure.split(" ")[0] for failure in box.failures] == ["broken"]
    told = functions_of([tool.function for tool in box.tools.values()])
    assert len({each.name for each in told}) == len(told) == 8
    assert box.call("a_b_c_d", "{}").text == "a/b.c d\n[image: not shown]"


def test_calls_that_cannot_be_made_are_results(connections: Connections, server: NewServer) -> None:
    box = Toolbox([server("good")], connections)
    assert json.loads(box.call("add", '{"a": 1, "b": 2}').text) == 3
    for name, arguments, text in (
        ("sub", "{}", "There is no tool sub. There are: add,"),
        ("add", "[1, 2]", "must be a JSON object, not: [1, 2]"),
        ("add", "{", "must be a JSON object"),
        ("crash", "{}", "The call failed: good ended"),
    ):
        result = box.call(name, arguments)
        assert result.failed
        assert text in result.text


def test_too_many_tools_are_refused() -> None:
    class Many:
        def tools(self, server: ToolServer, is_stopped: object) -> tuple[RemoteTool, ...]:
            return tuple(RemoteTool(server, f"t{n}", "", {}) for n in range(MOST_TOOLS + 1))

    with pytest.raises(BadSetting, match="choose fewer servers"):
        _ = Toolbox([A], Many()).tools  # type: ignore[arg-type]


def test_servers_that_failed_are_tried_again(
    connections: Connections, server: NewServer, restless: None, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    box = Toolbox([server("good"), late_server(file)], connections)
    assert "add" in box.tools
    assert [failure.split("; ")[1] for failure in box.failures] == ["its last words: not yet"]
    assert box.try_again() == ()  # nothing is new
    file.write_text("closed today")
    (news,) = box.try_again()
    assert (news.failed, "closed today" in news.text) == (True, True)
    assert box.failures == (news.text,)
    file.write_text("")
    assert box.try_again() == (StartNews("late has started: 9 tools", failed=False),)
    assert (box.failures, box.try_again()) == ((), ())
    assert json.loads(box.call("late_add", '{"a": 1, "b": 2}').text) == 3
    assert "add" not in box.tools  # two servers have it


def test_a_server_that_failed_slowly_rests_for_long(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolbox, "REST", 1e9)
    box = Toolbox([late_server(tmp_path / "file")], connections)
    assert box.tools == {}
    (tmp_path / "file").write_text("")
    assert box.try_again() == ()
    assert len(box.failures) == 1


def test_who_is_stopped_does_not_wait_for_a_server(
    connections: Connections, server: NewServer, restless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "START_LIMIT_S", 0.1)
    box = Toolbox([server("silent")], connections)
    assert box.tools == {}
    before = box.failures
    monkeypatch.setattr(connections_module, "START_LIMIT_S", 10_000)
    asked = count()
    assert box.try_again(lambda: next(asked) > 2) == ()
    assert box.failures == before


def test_one_that_started_after_all_is_taken_while_it_rests(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolbox, "AGAIN_LIMIT_S", 0)
    late = late_server(tmp_path / "file")
    box = Toolbox([late], connections)
    assert box.tools == {}
    (tmp_path / "file").write_text("")
    connections.tools(late)  # as if it had been tried again, and not waited for
    assert [news.text for news in box.try_again()] == ["late has started: 9 tools"]


def test_one_that_is_slow_again_is_not_waited_for_and_goes_on_starting(
    connections: Connections, server: NewServer, restless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "START_LIMIT_S", 0.1)
    box = Toolbox([server("silent")], connections)
    assert box.tools == {}
    before = box.failures
    monkeypatch.setattr(connections_module, "START_LIMIT_S", 10_000)
    monkeypatch.setattr(toolbox, "AGAIN_LIMIT_S", 0.3)
    assert box.try_again() == ()
    starting = connections._open["silent"]
    assert box.try_again() == ()
    assert connections._open["silent"] is starting
    assert box.failures == before


def test_a_server_with_too_many_tools_stays_away(restless: None) -> None:
    class Growing:
        n_tools = 0

        def has_started(self, server: ToolServer) -> bool:
            return True

        def tools(self, server: ToolServer, is_stopped: object) -> tuple[RemoteTool, ...]:
            if server is A and not self.n_tools:
                raise ToolServerFailed("not yet")
            return tuple(RemoteTool(server, f"{server.name}{n}", "", {}) for n in range(max(self.n_tools, 1)))

    growing = Growing()
    box = Toolbox([A, B], growing)  # type: ignore[arg-type]
    assert list(box.tools) == ["b0"]
    growing.n_tools = MOST_TOOLS
    assert box.try_again() == (
        StartNews(f"with a there are {MOST_TOOLS + 1} tools; {MOST_TOOLS} are the most", failed=True),
    )
    assert list(box.tools) == ["b0"]
