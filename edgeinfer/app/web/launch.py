"""`edgeinfer chat --web`: the page and the engine behind it in this process, the app of each tab in its own.

In: what the command line gave. Out: an exit code. A tab's process finds in its environment where the engine is, and
asks it for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from aiohttp import web

from edgeinfer.app.listening import is_loopback, listen, url_of
from edgeinfer.app.opening import load_model
from edgeinfer.app.opening_face import OpeningFace
from edgeinfer.app.web import wire
from edgeinfer.app.web.engine_host import EngineHost
from edgeinfer.app.web.page import Page
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.children import command
from edgeinfer.settings import Settings, load_settings

if TYPE_CHECKING:
    import socket

    from edgeinfer.engine.llm import LLM

CONTEXTS = 2
"""Whole contexts that a model's cache has memory for: chats that rest give theirs up to others."""
PARALLEL = 8
SWITCH_S = 0.0005
PLAIN_HTTP = "other computers can open this link, and what is said to and from them can be read on the way: no TLS here"


def run_web(overrides: Mapping[str, object], host: str, port: int) -> int:
    """Serve until interrupted; an exit code. `overrides`: settings by name. Raises BadSetting for a port in use."""
    load_settings(overrides)
    listener = listen(host, port)
    connections, address = wire.listen()
    engine = EngineHost(connections, SharedModels(_load), overrides)
    key = secrets.token_urlsafe(24)
    page = Page(_command(), key, () if host in ("0.0.0.0", "::") else (host,))
    address.tell(os.environ)  # textual-serve gives tabs this process's environment
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("textual-serve").setLevel(logging.WARNING)
    if not is_loopback(host):
        typer.echo(PLAIN_HTTP, err=True)
    typer.echo(f"open {url_of(listener)}/?key={key}   (Ctrl-C ends it)")
    try:
        asyncio.run(_serve(page, listener))
    finally:
        engine.close()
    return 0


async def _serve(page: Page, listener: socket.socket) -> None:
    """Serve until a signal comes."""
    ends = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(ends.set))
    runner = web.AppRunner(page.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        await ends.wait()
    finally:
        await runner.cleanup()


def _load(path: Path, settings: Settings, face: OpeningFace) -> LLM:
    return load_model(path, settings, face, n_sessions=CONTEXTS, parallel=PARALLEL)


def _command() -> str:
    """The command of a tab, as the system's shell reads it."""
    parts = command("edgeinfer", "chat")
    return subprocess.list2cmdline(parts) if os.name == "nt" else shlex.join(parts)
