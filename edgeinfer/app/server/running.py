"""Runs a server: its socket, the ready line, its shutdown, and the parent process that it ends with.

In: options, a function that opens models. Out: an exit code. As a sidecar of another program, the server prints its
address as one line of JSON and ends with that program, however that program ends; PARENT_GRACE_S seconds later the
process exits, whatever it is doing. uvicorn handles signals; after SIGTERM the exit code is 0.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import uvicorn

from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.connections import LAST_S, http_server
from edgeinfer.app.server.listening import ServerOptions, listen_all, url_of
from edgeinfer.app.server.model_list import ModelList, key_of
from edgeinfer.app.server.model_pool import ModelPool, OpenModel
from edgeinfer.app.server.orderly_end import unwound_by_sigterm
from edgeinfer.app.server.pooled_model import PoolLimits
from edgeinfer.app.server.presets import given_options
from edgeinfer.engine.running import RunningNote
from edgeinfer.errors import BadSetting
from edgeinfer.jit.memory import keep_one_arena

if TYPE_CHECKING:
    from edgeinfer.app.server.state import ServerState
    from edgeinfer.settings import Settings

LOG = logging.getLogger("edgeinfer.server")
LOOK_S = 0.5
"""Seconds between two checks of the parent process, the server's idle time and idle models."""
STOPPED_S = 5.0
"""After a longer look the process was stopped (SIGSTOP) or the computer slept, which is no idleness of clients."""
FINISH_S = LAST_S - 2.0
"""Seconds that running answers have to finish when the server ends; the others fail, with an error to their clients."""
SWITCH_S = 0.0005
"""The interpreter's switch interval in seconds: requests must not delay the engine's thread."""
OBJECTS_PER_COLLECTION = 20_000
"""Python looks for garbage after so many new objects of requests: parts of a request refer to each other, also in the
libraries. After ten times as many, as the program does for its start, 17 MB pile up and a look takes 20 ms, not 1.
"""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Options of a server that belongs to another program.

    `prints_ready`: print one line of JSON on standard output when ready. `parent`: the server ends with this process.
    `idle_timeout_s`: the server ends after this many seconds without a request.
    """

    prints_ready: bool = False
    parent: Parent | None = None
    idle_timeout_s: float | None = None


class HarmlessLines(logging.Formatter):
    """Messages as text that controls no terminal; lines after the first are indented, so that none is forged."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record)).replace("\n", "\n  ")


def log_to_stderr() -> None:
    """Log what the server does. Not each request to an MCP server, whose address may hold a secret."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessLines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("uvicorn", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_no_end)


def _is_no_end(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's is not about a request that it cut off when it ended, which is no fault."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def run_server(
    options: ServerOptions, sidecar: Sidecar, names: ModelList, open_model: OpenModel, settings: Settings
) -> int:
    """Serve until stopped and return the exit code. Raises BadSetting if the port is in use.

    `settings`: how models without a preset are loaded and answer.
    """
    options.check()
    keep_one_arena()
    listeners = listen_all(options.addresses, options.port)
    sys.setswitchinterval(SWITCH_S)
    log_to_stderr()

    async def serve() -> int:
        pool = ModelPool(open_model, names, pool_limits(options), settings.load)
        app = create_app(options, pool, given_options(settings))
        state: ServerState = app.state.server
        server = http_server(app)
        watch = asyncio.create_task(_watch(server, pool, sidecar, state))
        begin = asyncio.create_task(_begin(server, pool, sidecar, listeners[0]))
        try:
            await server.serve(sockets=listeners)
        finally:
            watch.cancel()
            begin.cancel()
            state.streams.close()
            await asyncio.to_thread(state.tools.close)
            await pool.close()
        return await _code(begin)

    try:
        with unwound_by_sigterm(), RunningNote(address=f"{url_of(listeners[0])}/v1"):
            return asyncio.run(serve())
        return 0
    finally:
        for listener in listeners:
            listener.close()


def pool_limits(options: ServerOptions) -> PoolLimits:
    """How many models may be open, as the server's options say."""
    return PoolLimits(
        most_models=options.most_models,
        idle_s=options.idle_unload_s,
        memory_bytes=options.models_bytes,
        loads_on_demand=options.loads_on_demand,
        strict_names=options.strict_names,
        n_sessions=options.contexts,
    )


async def _begin(server: uvicorn.Server, pool: ModelPool, sidecar: Sidecar, listener: socket.socket) -> int:
    """Open the models to start with and report that the server is ready; shut down if any of this fails."""
    try:
        device = ""
        for model in pool.names.first_models():
            async with pool.use(model.name) as pooled:
                if key_of(model) == key_of(pool.default):
                    device = f" on {pooled.llm.info.device}"
        gc.freeze()  # what the start has made stays
        gc.set_threshold(OBJECTS_PER_COLLECTION)
        print_ready(pool.default.name, device, sidecar, listener)
    except Exception as reason:
        server.should_exit = True
        LOG.error("error: %s", str(reason) or type(reason).__name__)  # unlike printing, this never raises
        return 1
    return 0


def print_ready(model: str, device: str, sidecar: Sidecar, listener: socket.socket) -> None:
    """Print the ready line with the default model and where it runs. Raises OSError if standard output is closed."""
    url, (host, port) = url_of(listener), listener.getsockname()[:2]
    if sidecar.prints_ready:
        ready = {"ready": True, "url": url, "host": host, "port": port, "pid": os.getpid(), "model": model}
        print(json.dumps(ready), flush=True)
    echo(f"{model}{device} at {url}/v1, a page to chat in at {url}", err=True)


async def _code(begin: asyncio.Task[int]) -> int:
    with suppress(asyncio.CancelledError):
        return await begin
    return 0


async def _watch(server: uvicorn.Server, pool: ModelPool, sidecar: Sidecar, state: ServerState | None = None) -> None:
    """Shut the server down with its parent or when it is idle, and close idle models.

    Calls of tools end with it; answers have FINISH_S seconds, then their clients are told.
    """
    ends_s: float | None = None
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(LOOK_S)
        if time.monotonic() - before_s > STOPPED_S:  # and what clients have sent meanwhile is not seen yet
            pool.used_s = time.monotonic()
        if server.should_exit:
            pool.events.close()
            ends_s = time.monotonic() + FINISH_S if ends_s is None else ends_s
            if state is not None:
                if time.monotonic() >= ends_s:
                    state.ending.set()
                await asyncio.to_thread(state.tools.close)
        if sidecar.parent is not None and sidecar.parent.has_ended:
            server.should_exit = True
            for model in pool.open:
                model.llm.stop()
        idle_s = sidecar.idle_timeout_s
        if idle_s is not None and not pool.is_busy and time.monotonic() - pool.used_s >= idle_s:
            LOG.info("no request for %.0f s; the server ends", idle_s)
            server.should_exit = True
        try:
            await pool.close_idle()
        except Exception:
            LOG.exception("an idle model could not be closed")


PARENT_GRACE_S = 6.0
"""Seconds allowed for an orderly shutdown; downloading or loading a model would take minutes more."""


class Parent:
    """Watches a process from a thread."""

    def __init__(self, number: int) -> None:
        """Raises BadSetting if there is no such process."""
        try:
            self._process = psutil.Process(number)
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            raise BadSetting(f"--parent-pid {number}: there is no such process") from None
        self._has_ended = threading.Event()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether the watched process has ended, so that this one should too."""
        return self._has_ended.is_set()

    def _watch(self) -> None:
        while self._is_alive():
            time.sleep(LOOK_S)
        self._has_ended.set()
        with suppress(OSError):  # the parent may have been the reader of standard error
            echo("the program that this server belongs to has ended", err=True)
        time.sleep(PARENT_GRACE_S)
        os._exit(1)

    def _is_alive(self) -> bool:
        """Whether the process is still running; its id may have been reused."""
        try:
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
