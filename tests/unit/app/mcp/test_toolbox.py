"""Names and schemas as the model is told of them, and calls by these names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeinfer.app.mcp import connections
from edgeinfer.app.mcp.connections import Connections, RemoteResult, RemoteTool
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import ANY_SCHEMA, Toolbox, ToolResult, named, result_of, schema_of
from edgeinfer.errors import BadSetting
from edgeinfer.models.text.tools import MOST_TOOLS, functions_of
from tests.unit.app.mcp.conftest import NewServer, require_package

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
    assert result_of(connections._result(found)) == ToolResult("(empty)")


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
        def tools(self, server: ToolServer) -> tuple[RemoteTool, ...]:
            return tuple(RemoteTool(server, f"t{n}", "", {}) for n in range(MOST_TOOLS + 1))

    with pytest.raises(BadSetting, match="choose fewer servers"):
        _ = Toolbox([A], Many()).tools  # type: ignore[arg-type]
