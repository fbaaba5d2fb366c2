"""`edgeinfer mcp`: the MCP servers of the configuration file, and whether they work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.plain_text import echo

if TYPE_CHECKING:
    from edgeinfer.app.mcp.servers import ToolServer
    from edgeinfer.app.mcp.toolbox import OfferedTool


def list_servers(as_json: Json = False) -> None:
    """Print the MCP servers of your configuration file; starts none."""
    from edgeinfer.app.mcp.servers import read_servers
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.settings import user_config_path

    servers = read_servers()
    if as_json:
        echo(json.dumps({"servers": [_record(server) for server in servers]}, ensure_ascii=False))
    elif not servers:
        echo(
            f"no MCP server is in {user_config_path()}; a table [mcp.servers.NAME] with command or url adds one",
            err=True,
        )
    else:
        for line in table_lines([("NAME", "TRUSTED", "SERVER"), *map(_row, servers)]):
            echo(line)


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Servers to check; all if omitted.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Start MCP servers, print their tools, and end them. Exits with 1 if one fails."""
    from edgeinfer.app.mcp.connections import Connections, ToolServerFailed
    from edgeinfer.app.mcp.servers import ALL, chosen, read_servers
    from edgeinfer.app.mcp.toolbox import named
    from edgeinfer.app.plain_text import counted, harmless

    records: list[dict[str, object]] = []
    with Connections() as connections:
        for server in chosen(read_servers(), names or (ALL,)):
            record: dict[str, object] = {**_record(server), "error": None, "tools": []}
            try:
                tools = named(connections.tools(server))
                record["tools"] = [_tool_record(tool) for tool in tools]
                shown = [f"{server.name}: {counted(len(tools), 'tool')}", *map(_tool_line, tools)]
            except ToolServerFailed as reason:
                record["error"] = str(reason)
                shown = [f"{server.name}: failed: {reason}"]
            records.append(record)
            for line in () if as_json else shown:
                echo(harmless(line))
    if as_json:
        echo(json.dumps({"servers": records}, ensure_ascii=False))
    if any(record["error"] is not None for record in records):
        raise typer.Exit(1)


def _record(server: ToolServer) -> dict[str, object]:
    """A server as a JSON object, without what may be secret."""
    trusted = "all" if server.trusted is None else sorted(server.trusted)
    return {"name": server.name, "url": server.url, "command": list(server.command), "trusted": trusted}


def _row(server: ToolServer) -> tuple[str, ...]:
    trusted = "all" if server.trusted is None else ", ".join(sorted(server.trusted)) or "none"
    return (server.name, trusted, server.address)


def _tool_record(tool: OfferedTool) -> dict[str, object]:
    server = tool.remote.server
    return {
        "name": tool.remote.name,
        "description": tool.remote.description,
        "trusted": server.trusts(tool.remote.name),
        "schema": tool.schema,
    }


def _tool_line(tool: OfferedTool) -> str:
    trusted = " (trusted)" if tool.remote.server.trusts(tool.remote.name) else ""
    description = " ".join(tool.remote.description.split())
    return f"  {tool.remote.name}{trusted}  {description[:100]}"


COMMAND = Command(
    help="List and check the MCP servers whose tools answers may use.",
    subcommands={"list": list_servers, "check": check},
)
