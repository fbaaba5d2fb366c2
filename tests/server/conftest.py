"""Servers in a thread of this process, over tiny models with random weights."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Message

from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.connections import PunctualConnection
from edgeinfer.app.server.listening import ServerOptions, listen
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.pooled_model import PoolLimits
from edgeinfer.app.server.presets import Presets
from edgeinfer.app.server.served_tools import ServedTools
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load, load_with
from edgeinfer.engine.requests.request import Options
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import LocalModel, path_model
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import Progress
from tests.conftest import write_tiny_llama
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, require_package

UNENCRYPTED = False
"""What clients shall verify: nothing; reading the certificates of all authorities takes longer than most requests."""


@dataclass
class Running:
    """A server that runs, and what it runs on."""

    url: str
    pool: ModelPool
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    opened: list[LLM] = field(default_factory=list)
    tools: ServedTools = field(default_factory=lambda: ServedTools(()))
    clients: ExitStack = field(default_factory=ExitStack)

    @property
    def llm(self) -> LLM:
        """Its default model."""
        return self.pool.open[0].llm

    def client(self, **options: object) -> openai.OpenAI:
        key, plain = self.key or "none", openai.DefaultHttpxClient(verify=UNENCRYPTED)
        return self.clients.enter_context(
            openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, http_client=plain, **options)
        )

    def http(self, **options: object) -> httpx.Client:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return self.clients.enter_context(
            httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=UNENCRYPTED, **options)
        )

    def call(self, coroutine: object) -> object:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)  # type: ignore[arg-type]


class Server(uvicorn.Server):
    """Looks all the time whether it shall end; uvicorn looks ten times a second."""

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            await asyncio.sleep(0.01)


NO_DRAFTS: Mapping[str, Any] = MappingProxyType({"spec": "off"})


def loaded(path: Path, options: ServerOptions, lora: Sequence[Path], drafting: Mapping[str, Any]) -> LLM:
    """A model with adapters, which the cpu takes at the scales of each request."""
    device = "cpu" if lora else "auto"
    return load(path, device=device, lora=lora, n_sessions=options.contexts, parallel=options.parallel, **drafting)


@contextmanager
def served(
    default: Path,
    options: ServerOptions | None = None,
    others: list[LocalModel] | None = None,
    defaults: Options | None = None,
    lora: Sequence[Path] = (),
    presets: Presets | None = None,
    reread: Callable[[], Presets] | None = None,
    aliases: Sequence[str] = (),
    drafting: Mapping[str, Any] = NO_DRAFTS,
    **limits: object,
) -> Iterator[Running]:
    """A server over a model, until the block ends. `defaults`: of answers, if requests do not say; `lora`: adapters.

    `drafting`: options of loading, by which nothing is drafted unless they say otherwise. With `presets`, these say
    which model is the default one.
    """
    options, opened = options or ServerOptions(port=0), list[LLM]()

    def open_model(model: LocalModel, progress: Progress) -> LLM:
        if names.presets is None:
            opened.append(loaded(model.path, options, lora, drafting))
        else:
            own = replace(names.presets.settings_of(model).load, spec="off", parallel=options.parallel)
            opened.append(load_with(model.path, replace(own, progress=progress)))
        return opened[-1]

    given = path_model(default) if presets is None else None
    names = ModelList(lambda: others or [], given, aliases, presets, reread)
    listener, found, ready = listen(options.host, 0), list[Running](), threading.Event()

    async def serve() -> None:
        pool = ModelPool(open_model, names, PoolLimits(**limits))  # type: ignore[arg-type]
        for first in names.first_models():
            async with pool.use(first.name):
                pass
        app = create_app(options, pool, defaults or {"temperature": 0.7})
        server = Server(uvicorn.Config(app, http=PunctualConnection, log_config=None, lifespan="off"))
        tools = app.state.server.tools
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found.append(Running(url, pool, asyncio.get_running_loop(), options.key, opened, tools))
        ending.append(lambda: setattr(server, "should_exit", True))
        ready.set()
        await server.serve(sockets=[listener])
        app.state.server.streams.close()
        await asyncio.to_thread(tools.close)
        await pool.close()

    ending, failures = list[Callable[[], None]](), list[BaseException]()
    thread = threading.Thread(target=_run, args=(serve, failures, ready), name="server")
    thread.start()
    if not ready.wait(60):
        faulthandler.dump_traceback()
        pytest.fail("the server is not ready; standard error tells where its threads are")
    if failures:
        raise failures[0]
    try:
        yield found[0]
    finally:
        found[0].clients.close()
        ending[0]()
        thread.join(60)
        listener.close()
        assert not failures


def _run(serve: Callable[[], Coroutine[Any, Any, None]], failures: list[BaseException], ready: threading.Event) -> None:
    """Run a server; `ready` is set if it fails too."""
    try:
        asyncio.run(serve())
    except BaseException as reason:
        failures.append(reason)
    finally:
        ready.set()


def good_tools(*trusted: str, kind: str = "good") -> ToolServer:
    """A server of the official MCP package, some of whose tools are trusted. A call may take an hour."""
    require_package()
    command = sys.executable, str(PROGRAM), kind
    return ToolServer(kind, command, {"PYTHONPATH": PATHS}, trusted=frozenset(trusted), call_limit_s=3600)


async def written(response: Response) -> list[bytes]:
    """What a response sends to a client that stays."""
    sent: list[bytes] = []

    async def stays() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it has stayed")

    async def send(message: Message) -> None:
        if body := message.get("body"):
            sent.append(bytes(body))

    await response({"type": "http"}, stays, send)
    return sent


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose greedy answers go on for a long time."""
    return write_tiny_llama(tmp_path_factory.mktemp("server") / "endless.gguf", seed=3, context=60_000)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    """The tokenizer of the tiny models."""
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Running]:
    """A server over a tiny model."""
    with served(tiny_model) as running:
        yield running
