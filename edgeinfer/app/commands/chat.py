"""`edgeinfer chat`: a conversation."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from edgeinfer.app.chat.beginning import Beginning
from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.app.command_line.options import Command, Given, takes_settings
from edgeinfer.interrupts import interrupt_plainly

if TYPE_CHECKING:
    from edgeinfer.app.mcp.toolbox import Toolbox

NOT_SERVED = "--web: run `edgeinfer serve` and open the address that it prints, which is a page to chat in"
"""Said to users of `--web`, which served the terminal app to browsers, and of what went with it."""
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        metavar="NAME",
        help="Let answers use the tools of this MCP server, of all, or of none; repeatable. Default: `chat` in [mcp] "
        "of your configuration file.",
    ),
]
Question = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUESTION", help="First message, with or without quotes."),
]
ESCAPE_MS = "50"
"""How long Textual waits to tell Escape from the beginning of another key; its own 100 ms are felt."""


@takes_settings("model", "generation", "load", "theme")
def chat(
    given: Given,
    question: Question = None,
    continue_last: Annotated[bool, typer.Option("--continue", "-c", help="Resume the last chat.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Use line mode, for screen readers and simple terminals.")
    ] = False,
    web: Annotated[bool, typer.Option("--web", hidden=True)] = False,
    host: Annotated[str | None, typer.Option("--host", hidden=True)] = None,
    port: Annotated[str | None, typer.Option("--port", hidden=True)] = None,
    mcp: Tools = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Use line mode, and print statistics of each answer to stderr.")
    ] = False,
) -> None:
    """Chat with a model in the terminal.

    F1 shows keys and commands, Ctrl+Q quits. With --plain, and in a dumb terminal, line by line: Ctrl-C stops an
    answer, Ctrl-D leaves. Without a terminal each line of standard input is a turn, and only answers are printed.
    """
    beginning = Beginning(continue_last, " ".join(question or ()).strip())
    if web or host is not None or port is not None:
        raise Misuse(NOT_SERVED)
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and not (plain or stats) and _has_screen():
        _end(_run_app(given, beginning, mcp or ()))
    _chat_in_lines(given, beginning, mcp or (), terminal=terminal, stats=stats)


def _has_screen() -> bool:
    """Whether the terminal can be drawn on; Textual does so by way of stderr."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb" if os.name == "posix" else "") != "dumb"


def _end(code: int) -> NoReturn:
    raise typer.Exit(code)


def _run_app(given: Given, beginning: Beginning, tool_servers: Sequence[str]) -> int:
    from edgeinfer.app.chat.beginning import typed_ahead

    os.environ.setdefault("ESCDELAY", ESCAPE_MS)
    gc.disable()  # until the first screen is drawn: collections would take a tenth of the start
    with typed_ahead() as typed:  # from before all that is imported here
        from edgeinfer.app.mcp.servers import chat_servers
        from edgeinfer.app.tui.app import ChatApp
        from edgeinfer.app.tui.launch import run_app

        interrupt_plainly()
        system = given.get("system")

        def begins(app: ChatApp) -> None:
            app.state.beginning = replace(beginning, system=None if system is None else str(system))

        return run_app(given, begins=begins, typed=typed, tool_servers=chat_servers(tool_servers))


def _chat_in_lines(
    given: Given, beginning: Beginning, tool_servers: Sequence[str], *, terminal: bool, stats: bool
) -> None:
    from edgeinfer.app.chat.dialogue import Dialogue
    from edgeinfer.app.chat.line_chat import LineChat, saved_chat
    from edgeinfer.app.opening.loading import answer_options, open_llm, without_prefixes
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.settings import load_settings

    settings, system = load_settings(given), given.get("system")
    begun = replace(beginning, system=None if system is None else str(system))
    with (
        saved_chat(begun, settings.generation.system, is_kept=terminal) as chat,
        _tools(tool_servers) as toolbox,
        open_llm(settings if chat is not None else without_prefixes(settings)) as llm,
        llm.session() as session,
        ProgressLine() as progress,
    ):
        wanted = answer_options(settings)
        wanted["progress"] = progress
        dialogue = Dialogue(session, wanted, settings.generation.system, chat, llm.info.name)
        LineChat(llm, dialogue, progress, terminal=terminal, stats=stats, toolbox=toolbox).run(beginning.question)


def _tools(names: Sequence[str]) -> AbstractContextManager[Toolbox | None]:
    """The tools of the chat's MCP servers until the context ends; None if it has no servers. Raises BadSetting."""
    from edgeinfer.app.mcp.servers import chat_servers

    servers = chat_servers(names)
    if not servers:
        return nullcontext()
    from edgeinfer.app.mcp.terminal import open_tools

    return open_tools(servers)


COMMAND = Command(chat)
