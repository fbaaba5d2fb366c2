"""`edgeinfer chat --web`: the page and the engine behind it in this process, the app of each tab in its own.

In: what the command line gave. Out: an exit code. A tab's process finds in its environment where the engine is, and
asks it for the rest.
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

from edgeinfer.app.listening import is_loopback, listen, url_of
from edgeinfer.app.opening import load_model
from edgeinfer.app.opening_face import OpeningFace
from edgeinfer.app.server.options import ServerOptions
from edgeinfer.app.web import wire
from edgeinfer.app.web.engine_host import EngineHost
from edgeinfer.app.web.page import Page
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.engine.running import RunningNote
from edgeinfer.errors import DoesNotFit
from edgeinfer.ipc.command import command
from edgeinfer.settings import Settings, load_settings

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM

SHARED = ServerOptions()
"""Tabs share a model as clients of the server do."""
SWITCH_S = 0.0005
LAST_S = 5.0
"""For the apps of tabs to leave."""
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""The terminal was closed, where systems say so; they may say it twice."""
ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of nobody, kept for documentation: on the way to them is the network that others are on."""
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
PLAIN_HTTP = "other computers can open this link, and what is said to and from them can be read on the way: no TLS here"


def run_web(overrides: Mapping[str, object], host: str, port: int) -> int:
    """Serve until interrupted; an exit code. `overrides`: settings by name. Raises BadSetting for a port in use."""
    load_settings(overrides)
    listener = listen(host, port)
    connections, address = wire.listen()
    engine = EngineHost(connections, SharedModels(_load), overrides)
    key = secrets.token_urlsafe(24)
    page = Page(_command(), key, host)
    address.put_into(os.environ)  # textual-serve gives tabs this process's environment
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
    """Serve until a signal comes."""
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
    """What ends a program sets this instead; a second Ctrl-C, while it ends, is an interrupt again."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:  # which is how nohup has it
        numbers.append(HANG_UP)
    before = {each: signal.signal(each, lambda *_: loop.call_soon_threadsafe(ends.set)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if number == HANG_UP else handler)


def _link(listener: socket.socket) -> str:
    """Where a browser reaches a socket; one that listens at all addresses, at the one that other computers see."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return url_of(listener)
    with socket.socket(listener.family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((ANYWHERE[listener.family], port))  # nothing is sent
            own = asking.getsockname()[0]
        except OSError:
            own = LOOPBACK[listener.family]
    return f"http://[{own}]:{port}" if ":" in own else f"http://{own}:{port}"


def _load(path: Path, settings: Settings, face: OpeningFace) -> LLM:
    try:
        return load_model(path, settings, face, n_sessions=SHARED.contexts, parallel=SHARED.parallel)
    except DoesNotFit:  # for the states of a single sequence there may be room
        return load_model(path, settings, face, n_sessions=SHARED.contexts, parallel=1)


def _command() -> str:
    """The command of a tab, as the system's shell reads it."""
    parts = command("edgeinfer", "chat")
    return subprocess.list2cmdline(parts) if os.name == "nt" else shlex.join(parts)
