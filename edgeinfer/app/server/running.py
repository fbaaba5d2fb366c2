"""Running a server: its socket, the line that says it is ready, and when it ends.

In: options, what opens models. Out: an exit code. As a sidecar of another program it says where it listens in one line
of JSON and ends with that program, however that ends. Signal handlers are the web server's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import uvicorn

from edgeinfer.app.listening import listen, url_of
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.hosting import Hosted, Hosting
from edgeinfer.app.server.options import ServerOptions
from edgeinfer.app.server.parent import Parent
from edgeinfer.engine.running import RunningNote

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.models.store import LocalModel

LOG = logging.getLogger("edgeinfer.server")
LOOK_S = 0.5
"""How often it is looked whether the parent has ended, for idleness, for models that nobody uses."""
LAST_S = 3.0
"""For running requests to end when the server does."""
SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another one waits: requests must not keep the engine waiting."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """How a server that belongs to another program behaves.

    `tells_ready`: one line of JSON on standard output. `parent`: the program with which it ends. `idle_timeout_s`: it
    ends when nothing was asked for so long.
    """

    tells_ready: bool = False
    parent: Parent | None = None
    idle_timeout_s: float | None = None


def run_server(
    options: ServerOptions,
    sidecar: Sidecar,
    default: LocalModel,
    open_model: Callable[[Path], LLM],
    listed: Callable[[], Sequence[LocalModel]],
    defaults: Options,
) -> int:
    """Serve until told to end; an exit code. Raises BadSetting for a port in use."""
    options.check()
    listener = listen(options.host, options.port)
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def serve() -> int:
        hosting = Hosting(open_model, listed, default, most_models=options.most_models, idle_s=options.idle_unload_s)
        app = create_app(options, hosting, defaults)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(LAST_S),
            server_header=False,
        )
        server = uvicorn.Server(config)
        watch = asyncio.create_task(_watch(server, hosting, sidecar))
        begin = asyncio.create_task(_begin(server, hosting, sidecar, listener))
        try:
            await server.serve(sockets=[listener])
        finally:
            watch.cancel()
            begin.cancel()
            await hosting.close()
        return await _code(begin)

    try:
        with RunningNote(address=f"{url_of(listener)}/v1"):
            return asyncio.run(serve())
    finally:
        listener.close()


async def _begin(server: uvicorn.Server, hosting: Hosting, sidecar: Sidecar, listener: socket.socket) -> int:
    """Open the default model and say that the server is ready. A server of which nobody hears that is of no use."""
    try:
        async with hosting.use(None) as hosted:
            _tell_ready(hosted, sidecar, listener)
    except Exception as reason:
        server.should_exit = True
        LOG.error("error: %s", str(reason) or type(reason).__name__)  # unlike printing, this never raises
        return 1
    return 0


def _tell_ready(hosted: Hosted, sidecar: Sidecar, listener: socket.socket) -> None:
    """Raises OSError where nobody reads it."""
    url, (host, port) = url_of(listener), listener.getsockname()[:2]
    if sidecar.tells_ready:
        ready = {"ready": True, "url": url, "host": host, "port": port, "pid": os.getpid(), "model": hosted.name}
        print(json.dumps(ready), flush=True)
    typer.echo(f"{hosted.name} on {hosted.llm.info.device} at {url}/v1", err=True)


async def _code(begin: asyncio.Task[int]) -> int:
    with suppress(asyncio.CancelledError):
        return await begin
    return 0


async def _watch(server: uvicorn.Server, hosting: Hosting, sidecar: Sidecar) -> None:
    """End the server with its parent or when nobody needs it, and close models that nobody uses."""
    while True:
        await asyncio.sleep(LOOK_S)
        if sidecar.parent is not None and sidecar.parent.has_ended:
            server.should_exit = True
            for hosted in hosting.open:
                hosted.llm.stop()
        idle_s = sidecar.idle_timeout_s
        if idle_s is not None and not hosting.is_busy and time.monotonic() - hosting.used_s >= idle_s:
            LOG.info("nothing was asked for %.0f s", idle_s)
            server.should_exit = True
        try:
            await hosting.close_idle()
        except Exception:
            LOG.exception("a model that nobody uses could not be closed")
