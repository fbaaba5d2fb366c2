"""The tools of several servers as functions that a model may call, and their calls as texts for it.

In: servers, calls by the names told to the model. Out: functions in OpenAI's form with unique names and sane schemas;
results as text within limits; which servers failed, and what became of them when they were tried again. Calls that
fail are results too: the model reads why. What a server's tools are and what they give is foreign: it is cut, and never
taken for an instruction of the program.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeinfer.app.mcp.connections import Connections, IsStopped, RemoteResult, RemoteTool, ToolServerFailed, never
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.errors import BadSetting
from edgeinfer.models.text.tools import MOST_TOOLS, object_of

NAME_CAP = 64
DESCRIPTION_CAP = 1000
SCHEMA_CAP = 8000
RESULT_CAP = 16_000
"""Characters of a result that the model reads: about 4,000 tokens."""
TAKEN_NAMES = frozenset({"auto", "none", "required"})
"""Names that `tool_choice` means something else by."""
ANY_SCHEMA: Mapping[str, Any] = {"type": "object"}
REST = 10
"""How many times as long as its failed start took a server is left alone before it is tried again."""
AGAIN_LIMIT_S = 5.0
"""Seconds to wait for a server that is tried again; it may go on starting."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool under the name that the model knows it by."""

    name: str
    remote: RemoteTool
    schema: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What it is whatever the model calls it, which depends on the other tools: its server and its own name."""
        return f"{self.remote.server.name}/{self.remote.name}"

    @property
    def function(self) -> Mapping[str, Any]:
        """The tool in the form of OpenAI's API."""
        description = _cut(self.remote.description.strip(), DESCRIPTION_CAP)
        function = {"name": self.name, "description": description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result as the model reads it."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class StartNews:
    """What became of a server that was tried again, in words."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a server could not be used, and until when it is left alone, by the monotonic clock."""

    words: str
    until_s: float


class Toolbox:
    """The tools of these servers. Calls may come from several threads; one thread at a time may start servers."""

    def __init__(self, servers: Sequence[ToolServer], connections: Connections, *, is_prefixed: bool = False) -> None:
        """`is_prefixed`: all names begin with that of their server."""
        self._servers, self._connections, self._is_prefixed = servers, connections, is_prefixed
        self._found: dict[str, tuple[RemoteTool, ...]] = {}
        self._failed: dict[str, _Failure] = {}
        self._tools: Mapping[str, OfferedTool] | None = None

    @property
    def tools(self) -> Mapping[str, OfferedTool]:
        """The tools by the names that the model knows; servers are started when this is first read.

        Raises BadSetting if there are more than a model is told of.
        """
        if self._tools is None:
            for server in self._servers:
                self._start(server)
            n_tools = sum(map(len, self._found.values()))
            if n_tools > MOST_TOOLS:
                raise BadSetting(f"the servers have {n_tools} tools; {MOST_TOOLS} are the most: choose fewer servers")
            self._tools = self._named()
        return self._tools

    @property
    def failures(self) -> tuple[str, ...]:
        """Why servers cannot be used, in words."""
        found = (self._failed.get(server.name) for server in self._servers)
        return tuple(failure.words for failure in found if failure is not None)

    def try_again(self, is_stopped: IsStopped = never) -> tuple[StartNews, ...]:
        """Start the servers that failed and have rested; what is new about them. Ends as soon as `is_stopped`.

        One that is slow goes on starting, and is there as soon as it has started; it rests for longer, so that what
        waits for this is not slowed down much by a server that never comes.
        """
        news: list[StartNews] = []
        for server in self._servers:
            failure = self._failed.get(server.name)
            rests = failure is not None and time.monotonic() < failure.until_s
            if failure is None or is_stopped() or (rests and not self._connections.has_started(server)):
                continue
            self._start(server, is_stopped, time.monotonic() + AGAIN_LIMIT_S)
            now = self._failed.get(server.name)
            if now is None:
                self._tools = self._named()
                news.append(StartNews(f"{server.name} has started: {self._counted(server)}", failed=False))
            elif now.words != failure.words:
                news.append(StartNews(now.words, failed=True))
        return tuple(news)

    def _start(self, server: ToolServer, is_stopped: IsStopped = never, until_s: float = math.inf) -> None:
        """Start a server and note its tools, or why it has none; nothing new if it takes longer than until then."""
        begun_s = time.monotonic()

        def is_over() -> bool:
            return is_stopped() or time.monotonic() > until_s

        try:
            found = self._connections.tools(server, is_over)
            if self._tools is not None and (n_tools := len(self._tools) + len(found)) > MOST_TOOLS:
                raise ToolServerFailed(f"with {server.name} there are {n_tools} tools; {MOST_TOOLS} are the most")
            self._found[server.name] = found
            self._failed.pop(server.name, None)
        except ToolServerFailed as reason:
            if is_stopped():
                return
            now_s, before = time.monotonic(), self._failed.get(server.name)
            words = before.words if before is not None and now_s > until_s else str(reason)
            self._failed[server.name] = _Failure(words, now_s + REST * (now_s - begun_s))

    def _counted(self, server: ToolServer) -> str:
        n_tools = len(self._found[server.name])
        return "1 tool" if n_tools == 1 else f"{n_tools} tools"

    def _named(self) -> Mapping[str, OfferedTool]:
        found = [tool for server in self._servers for tool in self._found.get(server.name, ())]
        return {tool.name: tool for tool in named(found, is_prefixed=self._is_prefixed)}

    def call(self, name: str, arguments: str, is_stopped: IsStopped = never) -> ToolResult:
        """Call a tool by the name that the model knows; `arguments` is the text of a JSON object.

        The call fails as soon as `is_stopped`.
        """
        tool = self.tools.get(name)
        if tool is None:
            return ToolResult(f"There is no tool {name}. There are: {', '.join(self.tools)}", failed=True)
        values = object_of(arguments or "{}")
        if not isinstance(values, Mapping):
            return ToolResult(
                f"The arguments of {name} must be a JSON object, not: {_cut(arguments, 200)}", failed=True
            )
        try:
            return result_of(self._connections.call(tool.remote.server, tool.remote.name, values, is_stopped))
        except ToolServerFailed as reason:
            return ToolResult(f"The call failed: {reason}", failed=True)


def named(remotes: Sequence[RemoteTool], *, is_prefixed: bool = False) -> tuple[OfferedTool, ...]:
    """Give each tool a name that no other has: its own, or with its server's before it where several have it."""
    own = [_plain(remote.name) for remote in remotes]
    counts = Counter(own)
    taken: set[str] = set()
    tools = []
    for remote, own_name in zip(remotes, own, strict=True):
        with_server = is_prefixed or counts[own_name] > 1 or own_name in TAKEN_NAMES
        name = _plain(f"{remote.server.name}_{remote.name}") if with_server else own_name
        unique, number = name, 1
        while unique in taken or (unique != own_name and unique in counts):
            number += 1
            unique = f"{name[: NAME_CAP - 4]}_{number}"
        taken.add(unique)
        tools.append(OfferedTool(unique, remote, schema_of(remote.schema)))
    return tuple(tools)


def schema_of(found: object) -> Mapping[str, Any]:
    """A schema that templates and grammars can read; any object where a server's is none, or is very large."""
    if not isinstance(found, dict) or found.get("type", "object") != "object":
        return ANY_SCHEMA
    properties, required = found.get("properties", {}), found.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(each, dict) for each in properties.values()):
        return ANY_SCHEMA
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        return ANY_SCHEMA
    try:
        if len(json.dumps(found)) > SCHEMA_CAP:
            return ANY_SCHEMA
    except (ValueError, TypeError, RecursionError):
        return ANY_SCHEMA
    return {**found, "type": "object"}


def result_of(found: RemoteResult) -> ToolResult:
    """A result as text; what is no text is named."""
    parts = [*found.texts, *(f"[{kind}: not shown]" for kind in found.other_kinds)]
    return ToolResult(_cut("\n".join(parts), RESULT_CAP) or "(empty)", found.is_error)


def _plain(name: str) -> str:
    """A name that all forms of calls can hold."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_CAP] or "tool"


def _cut(text: str, cap: int) -> str:
    return text if len(text) <= cap else f"{text[:cap]}\n[cut: {len(text) - cap} more characters]"
