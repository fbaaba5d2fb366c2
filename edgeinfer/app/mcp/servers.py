"""Which MCP servers the user has: the tables `[mcp.servers.NAME]` of the configuration file, and which are for chats.

In: the user's file alone, as such a table may name any program: a file that lies in a folder must not start one. Out:
frozen records, validated. Starts nothing.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeinfer.errors import BadSetting
from edgeinfer.settings import user_config_path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
CALL_LIMIT_S = 60.0
MOST_SECONDS = 3600.0
ALL, NONE = "all", "none"
"""What a command line says for every server, and for no server although the file names some for chats."""
KEYS = ("command", "args", "env", "cwd", "url", "headers", "trusted", "timeout")


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server: a command that speaks over its standard input and output, or a URL (streamable HTTP).

    `trusted`: the tools that need no permission, by their own names; None for all. `call_limit_s`: seconds for a call.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    folder: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    trusted: frozenset[str] | None = frozenset()
    call_limit_s: float = CALL_LIMIT_S

    @property
    def address(self) -> str:
        """What people know it by: its URL, or its command."""
        return self.url or " ".join(self.command)

    def trusts(self, tool: str) -> bool:
        """Whether calls of a tool need no permission."""
        return self.trusted is None or tool in self.trusted


def read_servers(path: Path | None = None) -> tuple[ToolServer, ...]:
    """The servers of the user's file, in its order. Raises BadSetting."""
    path = path or user_config_path()
    return tuple(
        _server(name, record, f"{path}: [mcp.servers.{name}]")
        for name, record in _table(path).get("servers", {}).items()
    )


def chat_servers(given: Sequence[str] = (), path: Path | None = None) -> tuple[ToolServer, ...]:
    """The servers of chats: those given on the command line, else those that `chat` in [mcp] names. Raises BadSetting.

    "none" alone stands for no server.
    """
    path = path or user_config_path()
    if tuple(given) == (NONE,):
        return ()
    if not given:
        chat = _table(path).get("chat", [])
        given = _texts([chat] if isinstance(chat, str) else chat, f"{path}: [mcp] chat")
    return chosen(read_servers(path), given) if given else ()


def _table(path: Path) -> dict[str, Any]:
    """The table [mcp]. Raises BadSetting."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise BadSetting(f"{path} is not valid TOML: {reason}") from None
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}") from None
    mcp = table.get("mcp", {})
    if not isinstance(mcp, dict) or set(mcp) - {"servers", "chat"} or not isinstance(mcp.get("servers", {}), dict):
        raise BadSetting(
            f"{path}: [mcp] holds tables [mcp.servers.NAME], and chat, the servers of chats, and nothing else"
        )
    return mcp


def chosen(servers: Sequence[ToolServer], names: Sequence[str]) -> tuple[ToolServer, ...]:
    """The servers of these names; "all" for every one. Raises BadSetting for a name that no server has."""
    known = {server.name: server for server in servers}
    if not known and names:
        raise BadSetting(f"there is no MCP server in {user_config_path()}: it needs a table [mcp.servers.NAME]")
    for name in names:
        if name != ALL and name not in known:
            raise BadSetting(f"no MCP server is called {name!r}; there are: {', '.join(known)}")
    return tuple(server for server in servers if ALL in names or server.name in names)


def _server(name: str, record: object, where: str) -> ToolServer:
    if not NAME.fullmatch(name) or name in (ALL, NONE):
        raise BadSetting(f"{where}: a name has letters, digits, - and _, 32 at most, and is not {ALL} or {NONE}")
    if not isinstance(record, dict):
        raise BadSetting(f"{where} must be a table")
    for key in record:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(KEYS)}"
            raise BadSetting(f"{where} has no {key!r}; {hint}")
    command, url = record.get("command"), record.get("url")
    if (command is None) == (url is None):
        raise BadSetting(f"{where} needs either a command or a url")
    for key in ("args", "env", "cwd") if command is None else ("headers",):
        if key in record:
            raise BadSetting(f"{where}: {key} goes with a {'command' if command is None else 'url'}")
    return ToolServer(
        name,
        ()
        if command is None
        else (_text(command, f"{where}.command"), *_texts(record.get("args", []), f"{where}.args")),
        _pairs(record.get("env", {}), f"{where}.env"),
        None if "cwd" not in record else _text(record["cwd"], f"{where}.cwd"),
        None if url is None else _url(url, f"{where}.url"),
        _pairs(record.get("headers", {}), f"{where}.headers"),
        _trusted(record.get("trusted", False), f"{where}.trusted"),
        _seconds(record.get("timeout", CALL_LIMIT_S), f"{where}.timeout"),
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadSetting(f"{where} needs a text, not {value!r}")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadSetting(f'{where} needs a list of texts, such as ["-y", "a-server"], not {value!r}')
    return tuple(value)


def _pairs(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise BadSetting(f'{where} needs a table of texts, such as {{ NAME = "value" }}')  # may hold secrets: not shown
    return MappingProxyType(dict(value))


def _url(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise BadSetting(f"{where} needs a URL of http or https, not {value!r}")
    return value


def _trusted(value: object, where: str) -> frozenset[str] | None:
    if isinstance(value, bool):
        return None if value else frozenset()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return frozenset(value)
    raise BadSetting(f"{where} needs true, false or a list of tools, not {value!r}")


def _seconds(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise BadSetting(f"{where} needs seconds up to {MOST_SECONDS:.0f}, not {value!r}")
    return float(value)
