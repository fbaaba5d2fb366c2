"""`edgeinfer chat`: a conversation."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated, NoReturn

import typer

from edgeinfer.app import options
from edgeinfer.app.beginning import Beginning
from edgeinfer.app.command import Command
from edgeinfer.app.misuse import Misuse
from edgeinfer.app.web import VARIABLE
from edgeinfer.errors import BadSetting
from edgeinfer.interrupts import interrupt_plainly

HOST, PORT = "127.0.0.1", 8000
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help=f"With --web: address to listen on. Default: {HOST}.")
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="N",
        help=f"With --web: port to listen on; 0 picks a free one. Default: {PORT}.",
        min=0,
        max=65535,
    ),
]
Question = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUESTION", help="Asked at once, with or without quotes; then the chat goes on."),
]
ESCAPE_MS = "50"
"""How long Textual waits to tell Escape from the beginning of another key; its own 100 ms are felt."""


def chat(
    context: typer.Context,
    question: Question = None,
    continue_last: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last chat instead of beginning a new one.")
    ] = False,
    model: options.Model = None,
    system: options.System = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Line by line, for screen readers and simple terminals.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Chat in a browser: print a link to open; all tabs share one model.")
    ] = False,
    host: Host = None,
    port: Port = None,
    theme: options.Theme = None,
    temp: options.Temp = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    ctx: options.Ctx = None,
    spec: options.SpecOption = None,
    verify_cost: options.VerifyCost = None,
    draft_from: options.DraftFrom = None,
    history: options.History = None,
    threads: options.Threads = None,
    cores: options.Cores = None,
    device: options.Device = None,
    schedule: options.Schedule = None,
    kv: options.KV = None,
    mode: options.Mode = None,
    isolate: options.Isolate = None,
    ram: options.Ram = None,
    approx: options.Approx = None,
    pack: options.Pack = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Line by line: print the speed of each answer on standard error.")
    ] = False,
) -> None:
    """Chat with a model in the terminal; F1 shows keys and commands, Ctrl+Q leaves.

    With --plain, and in a dumb terminal, line by line: Ctrl-C stops an answer, Ctrl-D leaves. Without a terminal each
    line of standard input is a turn, and only answers are printed.
    """
    beginning = Beginning(continue_last, " ".join(question or ()).strip())
    if VARIABLE in os.environ:
        from edgeinfer.app.web.tab import run_tab

        _end(run_tab(os.environ))
    if web:
        _serve_page(context, beginning, HOST if host is None else host, PORT if port is None else port)
    if host is not None or port is not None:
        raise Misuse("--host and --port say where a page is served; use them with --web: edgeinfer chat --web")
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and not (plain or stats) and _has_screen():
        _end(_run_app(context, beginning))
    _chat_in_lines(context, beginning, terminal=terminal, stats=stats)


def _has_screen() -> bool:
    """Whether the terminal can be drawn on; Textual does so by way of stderr."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb" if os.name == "posix" else "") != "dumb"


def _end(code: int) -> NoReturn:
    raise typer.Exit(code)


def _run_app(context: typer.Context, beginning: Beginning) -> int:
    from edgeinfer.app.typed_ahead import typed_ahead

    os.environ.setdefault("ESCDELAY", ESCAPE_MS)
    with typed_ahead() as typed:  # from before all that is imported here
        from edgeinfer.app.opening import given_options
        from edgeinfer.app.tui.app import ChatApp
        from edgeinfer.app.tui.launch import run_app

        interrupt_plainly()
        options = given_options(context)
        system = options.get("system")

        def begins(app: ChatApp) -> None:
            app.desk.beginning = replace(beginning, system=None if system is None else str(system))

        return run_app(options, begins=begins, typed=typed)


def _serve_page(context: typer.Context, beginning: Beginning, host: str, port: int) -> NoReturn:
    """Serve the app as a page. Raises BadSetting where what that needs is not installed."""
    if beginning != Beginning():
        raise Misuse("--web opens a page: type the question there, and open earlier chats with Ctrl+O")
    try:
        from edgeinfer.app.web.launch import run_web
    except ImportError as reason:
        raise BadSetting(f"--web needs {reason.name}: pip install 'edgeinfer[web]'") from None
    from edgeinfer.app.opening import given_options

    interrupt_plainly()
    _end(run_web(given_options(context), host, port))


def _chat_in_lines(context: typer.Context, beginning: Beginning, *, terminal: bool, stats: bool) -> None:
    from edgeinfer.app.dialogue import Dialogue
    from edgeinfer.app.line_chat import LineChat, saved_chat
    from edgeinfer.app.opening import answer_options, given_options, given_settings, open_llm
    from edgeinfer.app.progress_line import ProgressLine

    settings = given_settings(context)
    given = given_options(context).get("system")
    begun = replace(beginning, system=None if given is None else str(given))
    with (
        saved_chat(begun, settings.generation.system, is_kept=terminal) as chat,
        open_llm(settings) as llm,
        llm.session() as session,
        ProgressLine() as progress,
    ):
        wanted = answer_options(settings)
        wanted["progress"] = progress
        dialogue = Dialogue(session, wanted, settings.generation.system, chat, llm.info.name)
        LineChat(llm, dialogue, progress, terminal=terminal, stats=stats).run(beginning.question)


COMMAND = Command(chat)
