"""Tools at a terminal: what is called is shown on standard error, and allowed there by a key.

In: calls. Out: permissions. Without a terminal nobody can be asked, and only trusted tools are called. Control
characters of a model's arguments and of a server's names never reach the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from edgeinfer.app.mcp.answering import Permission
from edgeinfer.app.mcp.connections import Connections
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox, ToolResult
from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.app.progress import ProgressLine

SHOWN_CAP = 2000
"""Characters of arguments that are shown whole: what is allowed must be seen."""
RESULT_SHOWN_CAP = 200
ANSWERS = {"y": Permission.ONCE, "a": Permission.FROM_NOW_ON, "n": Permission.NO, "": Permission.NO}


@contextmanager
def open_tools(servers: Sequence[ToolServer]) -> Iterator[Toolbox]:
    """The tools of these servers, which are started now and end with the context.

    A server that fails is reported, and the others are used. Raises BadSetting.
    """
    with Connections() as connections:
        toolbox = Toolbox(servers, connections)
        with _waiting(f"starting {', '.join(server.name for server in servers)}"):
            n_tools = len(toolbox.tools)
        for failure in toolbox.failures:
            _say(f"note: {failure}")
        if not n_tools:
            _say("note: there are no tools; the answer does without")
        yield toolbox


def try_again_at_terminal(toolbox: Toolbox) -> None:
    """Start servers that failed before, and report what is new about them; Ctrl-C goes on without them."""
    try:
        with _waiting("starting MCP servers again"):
            found = toolbox.try_again()
        for news in found:
            _say(f"note: {news.text}")
    except KeyboardInterrupt:
        _say("note: not waited for MCP servers; the answer does without")


def ask_at_terminal(tool: OfferedTool, arguments: str) -> Permission:
    """Ask whether a call may be made: y once, a always for this tool while the program runs, n or Enter no."""
    server = tool.remote.server
    _say(f"tool {server.name}/{tool.remote.name} wants to be called with {_shown(arguments, SHOWN_CAP)}")
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        _say(f"not called: nobody can be asked here; `trusted` in [mcp.servers.{server.name}] allows it beforehand")
        return Permission.NO
    if len(arguments) > SHOWN_CAP:
        _say("not called: its arguments are too long to be shown")
        return Permission.NO
    _forget_typed()
    while True:
        sys.stderr.write("call it? [y]es, [a]lways, [N]o: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return Permission.NO
        if (said := ANSWERS.get(line.strip().lower()[:1])) is not None:
            return said


def _forget_typed() -> None:
    """Drop what was typed before the question, which it was no answer to."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
    else:
        import termios

        with suppress(OSError, ValueError, termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def tell_at_terminal(name: str, arguments: str, result: ToolResult) -> None:
    """Show a call that was made, and how it ended."""
    outcome = "failed" if result.failed else "gave"
    _say(f"tool {name} {_shown(arguments, RESULT_SHOWN_CAP)} {outcome}: {_shown(result.text, RESULT_SHOWN_CAP)}")


def waiting_at_terminal(name: str) -> AbstractContextManager[object]:
    """Show that a tool is being called, until the context ends."""
    return _waiting(f"calling {name}")


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Show what takes so long, where there is a terminal."""
    with ProgressLine() as progress:
        progress(harmless(what), 0, 0)
        yield


def _shown(text: str, cap: int) -> str:
    line = " ".join(harmless(text).split())
    return line if len(line) <= cap else f"{line[:cap]}…"


def _say(text: str) -> None:
    echo(harmless(text), err=True)
