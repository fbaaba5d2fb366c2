"""Servers in a thread of this process, over tiny models with random weights."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from edgeinfer.app.mcp.chat_tools import ChatTools
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.listening import ServerOptions, listen
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.request import Options
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import LocalModel, path_model
from edgeinfer.models.text import Tokenizer
from tests.conftest import write_tiny_llama
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, require_package


@dataclass
class Running:
    """A server that runs, and what it runs on."""

    url: str
    pool: ModelPool
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    opened: list[LLM] = field(default_factory=list)
    clients: ExitStack = field(default_factory=ExitStack)

    @property
    def llm(self) -> LLM:
        """Its default model."""
        return self.pool.open[0].llm

    def client(self, **options: object) -> openai.OpenAI:
        key = self.key or "none"
        return self.clients.enter_context(
            openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)
        )

    def http(self, **options: object) -> httpx.Client:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return self.clients.enter_context(httpx.Client(base_url=self.url, headers=headers, timeout=60, **options))

    def call(self, coroutine: object) -> object:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)  # type: ignore[arg-type]


def loaded(path: Path, options: ServerOptions, lora: Sequence[Path]) -> LLM:
    """A model with adapters, which the cpu takes at the scales of each request."""
    device = "cpu" if lora else "auto"
    return load(path, device=device, spec="off", lora=lora, n_sessions=options.contexts, parallel=options.parallel)


@contextmanager
def served(
    default: Path,
    options: ServerOptions | None = None,
    others: list[LocalModel] | None = None,
    defaults: Options | None = None,
    lora: Sequence[Path] = (),
    tools: ChatTools | None = None,
    **pool_options: object,
) -> Iterator[Running]:
    """A server over a model, until the block ends. `defaults`: of answers; `lora`: adapters; `tools`: for the page."""
    options = options or ServerOptions(port=0)
    opened: list[LLM] = []

    def open_model(path: Path) -> LLM:
        opened.append(loaded(path, options, lora))
        return opened[-1]

    listener = listen(options.host, 0)
    found: list[Running] = []
    ready = threading.Event()

    async def serve() -> None:
        pool = ModelPool(open_model, lambda: others or [], path_model(default), **pool_options)
        async with pool.use(None):
            pass
        app = create_app(options, pool, defaults or {"temperature": 0.7}, tools)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        port = listener.getsockname()[1]
        found.append(Running(f"http://127.0.0.1:{port}", pool, asyncio.get_running_loop(), options.key, opened))
        ending.append(lambda: setattr(server, "should_exit", True))
        ready.set()
        await server.serve(sockets=[listener])
        await pool.close()

    ending: list[Callable[[], None]] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as reason:
            failures.append(reason)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="server")
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


@contextmanager
def tools_of(*kinds: str, trusted: frozenset[str] = frozenset()) -> Iterator[ChatTools]:
    """The tools of servers of the official MCP package, of these kinds; they are starting. A call may take an hour."""
    require_package()
    env, commands = {"PYTHONPATH": PATHS}, [(kind, (sys.executable, str(PROGRAM), kind)) for kind in kinds]
    tools = ChatTools([ToolServer(*each, env, trusted=trusted, call_limit_s=3600) for each in commands])
    tools.start(lambda text: None)
    try:
        yield tools
    finally:
        tools.close()


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
