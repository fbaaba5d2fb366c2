"""`edgeinfer chat`: a conversation."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from edgeinfer.app import options
from edgeinfer.app.command import Command
from edgeinfer.app.web import VARIABLE
from edgeinfer.errors import BadSetting

HOST, PORT = "127.0.0.1", 8000
Host = Annotated[str | None, typer.Option("--host", help=f"With --web: address to listen at. Default: {HOST}.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", help=f"With --web: port to listen at; 0: any that is free. Default: {PORT}.", min=0, max=65535
    ),
]
ESCAPE_MS = "50"
"""How long Textual waits to tell Escape from the beginning of another key; its own 100 ms are felt."""


def chat(
    context: typer.Context,
    model: options.Model = None,
    system: options.System = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Line by line, without a screen: for screen readers and dumb terminals.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="In a browser: serve the app as a page, every tab with the same engine.")
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
    """Chat with a model, on the whole terminal; F1 shows keys and commands, Ctrl-Q leaves.

    With --plain, and in a dumb terminal, line by line: Ctrl-C stops an answer, Ctrl-D leaves. Without a terminal each
    line of standard input is a turn, and only answers are printed.
    """
    if VARIABLE in os.environ:
        from edgeinfer.app.web.tab import run_tab

        _end(run_tab(os.environ))
    if web:
        _serve_page(context, HOST if host is None else host, PORT if port is None else port)
        return
    if host is not None or port is not None:
        raise BadSetting("--host and --port say where a page is served; use them with --web: edgeinfer chat --web")
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    whole = terminal and sys.stderr.isatty()  # which Textual draws on
    if whole and not plain and not stats and os.environ.get("TERM", "dumb" if os.name == "posix" else "") != "dumb":
        os.environ.setdefault("ESCDELAY", ESCAPE_MS)
        from edgeinfer.app.opening import given_options
        from edgeinfer.app.tui.launch import run_app

        _end(run_app(given_options(context)))
    _chat_in_lines(context, terminal=terminal, stats=stats)


def _end(code: int) -> NoReturn:
    raise typer.Exit(code)


def _serve_page(context: typer.Context, host: str, port: int) -> None:
    """Serve the app as a page. Raises BadSetting where what that needs is not installed."""
    try:
        from edgeinfer.app.web.launch import run_web
    except ImportError as reason:
        raise BadSetting(f"--web needs {reason.name}: pip install 'edgeinfer[web]'") from None
    from edgeinfer.app.opening import given_options

    _end(run_web(given_options(context), host, port))


def _chat_in_lines(context: typer.Context, *, terminal: bool, stats: bool) -> None:
    from edgeinfer.app.dialogue import Dialogue
    from edgeinfer.app.line_chat import LineChat
    from edgeinfer.app.opening import answer_options, given_settings, open_llm
    from edgeinfer.app.progress_line import ProgressLine

    settings = given_settings(context)
    with open_llm(settings) as llm, llm.session() as session, ProgressLine() as progress:
        wanted = answer_options(settings)
        wanted["progress"] = progress
        LineChat(llm, Dialogue(session, wanted, settings.generation.system), terminal=terminal, stats=stats).run()


COMMAND = Command(chat)
