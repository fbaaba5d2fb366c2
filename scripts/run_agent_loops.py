"""Runs agents' loops of five steps through the SDKs of OpenAI, Anthropic and Ollama: none may break.

Run: `python scripts/run_agent_loops.py --model FILE [TEMPLATE.jinja …] [--loops 200] [--together 4] [--seed 0]`. The
model gets each template in turn (`agent_loops/dressed.py`); without any: those of tests/unit/models/text/templates.
Random weights are the hardest to keep in form: `make_model.py --shape 1b --width 64 --layers 2 --ffn 96 --heads 4
--kv-heads 2 --type F32`. What is drawn for each step, and what must hold: `agent_loops/loop.py`. Prints a table and
every fault; exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from agent_loops.dressed import dress
from agent_loops.loop import Loop, Seen, WatchedPrompts, kinds_of

import edgeinfer
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.listening import ServerOptions, listen
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.models.store import LocalModel, path_model
from edgeinfer.steps import Progress

TEMPLATES = Path(__file__).resolve().parent.parent / "tests" / "unit" / "models" / "text" / "templates"
FAMILIES = ("qwen25", "llama3", "mistral")
N_CONTEXT = 8192
THOUGHT_TOKENS = 24
"""Most tokens of thoughts, which random weights would never end."""
COLUMNS = ("loops", "whole loops", "steps", "calls", "calls by choice", "several at once", "errors given", "reports")


@contextlib.contextmanager
def serving(path: Path, together: int) -> Iterator[tuple[str, edgeinfer.LLM]]:
    """Run a server in a thread; yields its address, and the model. Raises what keeps it from being there."""
    options = ServerOptions(port=0, parallel=together)
    listener, ready = listen(options.host, 0), threading.Event()
    found: list[edgeinfer.LLM] = []
    servers: list[uvicorn.Server] = []
    failures: list[Exception] = []

    def open_model(model: LocalModel, _: Progress) -> edgeinfer.LLM:
        return edgeinfer.load(
            model.path, device="cpu", spec="off", n_context=N_CONTEXT, n_sessions=2, parallel=together
        )

    async def serve() -> None:
        pool = ModelPool(open_model, ModelList(list, path_model(path)))
        async with pool.use(None) as model:
            found.append(model.llm)
        app = create_app(options, pool, {"temperature": 0.8, "max_thought_tokens": THOUGHT_TOKENS})
        servers.append(uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")))
        ready.set()
        await servers[0].serve(sockets=[listener])
        await pool.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as reason:
            failures.append(reason)
        ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    if failures:
        raise failures[0]
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", found[0]
    servers[0].should_exit = True
    thread.join()


def run_family(model: Path, template: Path, numbers: Sequence[int], together: int) -> dict[str, Seen]:
    """Run loops with a template; what was seen by wire."""
    seen: dict[str, Seen] = {}
    kinds = kinds_of(len(numbers))
    with tempfile.TemporaryDirectory() as folder:
        path = dress(model, template.read_text(encoding="utf-8"), Path(folder) / f"{template.stem}.gguf")
        with serving(path, together) as (url, llm), ThreadPoolExecutor(together) as threads:
            prompts = WatchedPrompts(llm)
            loops = [Loop(number, kind, url, prompts) for number, kind in zip(numbers, kinds, strict=True)]
            for loop, _ in zip(loops, threads.map(Loop.run, loops), strict=True):
                whole = seen.setdefault(loop.kind, Seen())
                whole.counts += Counter({"loops": 1}) + loop.seen.counts
                whole.faults += loop.seen.faults
    return seen


def show(name: str, seen: Seen) -> None:
    cells = "".join(f"{seen.counts[column]:>{len(column) + 2}}" for column in (*COLUMNS, "cut"))
    print(f"{name:<58}{cells}{len(seen.faults):>8}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("templates", nargs="*", type=Path, metavar="TEMPLATE")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--loops", type=int, default=200, help="of all templates together")
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    templates = given.templates or [TEMPLATES / f"{name}.jinja" for name in FAMILIES]
    print(f"{'template, wire':<58}" + "".join(f"  {column}" for column in (*COLUMNS, "cut")) + "  faults")
    total, began = Seen(), time.perf_counter()
    for place, template in enumerate(templates):
        numbers = range(given.seed * 10_000 + place, given.seed * 10_000 + given.loops, len(templates))
        for kind, seen in run_family(given.model, template, numbers, given.together).items():
            show(f"{template.stem[:38]}, {kind}", seen)
            print(*seen.faults, sep="\n", end="\n" * bool(seen.faults), flush=True)
            total.counts += seen.counts
            total.faults += seen.faults
    show(f"all, {time.perf_counter() - began:.0f} s", total)
    return 1 if total.faults else 0


if __name__ == "__main__":
    sys.exit(main())
