"""`edgeinfer chat --web`: serves the page and the engine from this process, and the app of each tab from its own.

In: command-line arguments. Out: an exit code. A tab's process finds the engine's address in its environment and asks
the engine for the rest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from aiohttp import web

from edgeinfer.app.opening.face import OpeningFace
from edgeinfer.app.opening.loading import load_model
from edgeinfer.app.server.listening import ServerOptions, is_loopback, listen, url_of
from edgeinfer.app.web import wire
from edgeinfer.app.web.engine_host import EngineHost
from edgeinfer.app.web.page import Page
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.engine.running import RunningNote
from edgeinfer.errors import DoesNotFit
from edgeinfer.process import command
from edgeinfer.settings import Settings, load_settings

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM

SHARED = ServerOptions()
"""Tabs share a model in the same way as the server's clients."""
SWITCH_S = 0.0005
LAST_S = 5.0
"""Seconds for the apps of tabs to end."""
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""Sent when the terminal is closed, on systems that have the signal; it may arrive twice."""
ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Unassigned addresses, reserved for documentation: the route to them shows which local address other computers see."""
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
PLAIN_HTTP = "other computers can open this link, and what is said to and from them can be read on the way: no TLS here"


def run_web(overrides: Mapping[str, object], host: str, port: int) -> int:
    """Serve until interrupted and return an exit code. `overrides`: settings by name.

    Raises BadSetting if the port is in use.
    """
    load_settings(overrides)
    listener = listen(host, port)
    connections, address = wire.listen()
    engine = EngineHost(connections, SharedModels(_load), overrides)
    key = secrets.token_urlsafe(24)
    page = Page(_command(), key, host)
    address.put_into(os.environ)  # textual-serve passes this process's environment to tabs
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("textual-serve").setLevel(logging.WARNING)
    if not is_loopback(host):
        typer.echo(PLAIN_HTTP, err=True)
    typer.echo(f"open {_link(listener)}/#key={key}   (Ctrl-C ends it)")
    try:
        with RunningNote(address=url_of(listener)):
            asyncio.run(_serve(page, listener))
    finally:
        engine.close()
    return 0


async def _serve(page: Page, listener: socket.socket) -> None:
    """Serve until a signal arrives."""
    ends = asyncio.Event()
    runner = web.AppRunner(page.application(), access_log=None, shutdown_timeout=LAST_S)
    with _signals_set(ends):
        try:
            await runner.setup()
            await web.SockSite(runner, listener).start()
            await ends.wait()
        finally:
            await runner.cleanup()


@contextmanager
def _signals_set(ends: asyncio.Event) -> Iterator[None]:
    """Make terminating signals set `ends` for the block; after it Ctrl-C interrupts again and hang-ups are ignored."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:  # nohup sets SIG_IGN
        numbers.append(HANG_UP)
    before = {each: signal.signal(each, lambda *_: loop.call_soon_threadsafe(ends.set)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if number == HANG_UP else handler)


def _link(listener: socket.socket) -> str:
    """The URL at which a browser reaches a socket; if it listens on all addresses, the one that other computers see."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return url_of(listener)
    with socket.socket(listener.family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((ANYWHERE[listener.family], port))  # sends nothing
            own = asking.getsockname()[0]
        except OSError:
            own = LOOPBACK[listener.family]
    return f"http://[{own}]:{port}" if ":" in own else f"http://{own}:{port}"


def _load(path: Path, settings: Settings, face: OpeningFace) -> LLM:
    try:
        return load_model(path, settings, face, n_sessions=SHARED.contexts, parallel=SHARED.parallel)
    except DoesNotFit:  # the states of a single sequence may still fit
        return load_model(path, settings, face, n_sessions=SHARED.contexts, parallel=1)


def _command() -> str:
    """The command of a tab, quoted for the system's shell."""
    parts = command("edgeinfer", "chat")
    return subprocess.list2cmdline(parts) if os.name == "nt" else shlex.join(parts)
