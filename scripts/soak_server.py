"""Runs random clients against a server for a while and checks what remains: memory, threads, files, cache, answers.

Run: `python scripts/soak_server.py [--seconds S] [--clients N] [--model NAME] [--other NAME] [--seed S] [--out FILE]
[-- OPTIONS OF SERVE]`. Starts its own server, with clients that speak all of its protocols (`soak_protocols.py`): they
wait for answers, read streams fast or slowly, disconnect during a body, a prompt or an answer, send malformed requests,
and ask for schemas, embeddings, texts and too much (`soak_clients.py`). `--other` makes them ask two models by turns,
of which one fits at a time, so that models are loaded and unloaded all the while.

Prints the resources of the server's process as they change and, at rest, at the beginning and at the end, with the time
to the first token; every kind of answer with its status; and problems: unexpected statuses (any from 500 on), streams
that do not end as they must, memory that grows after the first third (by over 1 % in an hour or more), answers that are
still being generated, tasks, files or threads that remain. Pages of the cache are printed but not judged: stored
prefixes hold some at rest. `--out` appends every row as JSON; `draw_soak.py` draws them.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from soak_clients import HEADERS, KEY, begin_clients, first_token_ms, run_clients
from soak_record import Row, growing, remaining, save, slower

REST_S = 5.0
N_LOOKS = 18
MOST_LOOK_S = 60.0
N_PROBES = 15
SERVES = "SOAK_SERVES"
"""Set in the environment of the server."""


class Server:
    """A server in a process of its own, which also tells its tasks."""

    def __init__(self, model: str, other: str | None, given: list[str]) -> None:
        flags = ["-m", model, "--port", "0", "--ready-json", "--parent-pid", str(os.getpid()), "--queue", "64"]
        flags += ["--ctx", "2048", "--contexts", "2"]  # few pages: all are touched soon, and memory shows leaks alone
        flags += ["--most-models", "1"] if other else []
        environ = {**os.environ, "EDGEINFER_API_KEY": KEY, SERVES: "1"}
        self._child = subprocess.Popen(
            [sys.executable, __file__, "serve", *flags, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        self._process = psutil.Process(self._child.pid)
        self.url: str = self._line()["url"]

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def held(self) -> Row:
        """The resources that the server and its children hold now."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        text = httpx.get(f"{self.url}/metrics", headers=HEADERS, timeout=300).text
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("edgeinfer_")]
        gauges = collections.Counter[str]()  # of all models
        for name, _, value in lines:
            gauges[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
        slots = httpx.get(f"{self.url}/slots", headers=HEADERS, timeout=300).json()
        memory = self._process.memory_full_info()
        return {
            "RSS MB": memory.rss / 1e6,
            "own MB": (_anonymous(self._child.pid) or memory.uss) / 1e6,
            "threads": self._process.num_threads(),
            "files": self._process.num_fds(),
            "children": len(self._process.children(recursive=True)),
            "tasks": self._line()["tasks"],
            "active": gauges["edgeinfer_answers_active"],
            "waiting": gauges["edgeinfer_answers_waiting"],
            "busy slots": sum(slot["is_processing"] for slot in slots) if isinstance(slots, list) else 0,
            "free pages": gauges["edgeinfer_kv_free_pages"],
            "pages": gauges["edgeinfer_kv_pages"],
        }

    def files(self) -> list[str]:
        """What the server has open."""
        folder = Path(f"/proc/{self._child.pid}/fd")
        links = [str(each.readlink()) for each in folder.iterdir()] if folder.exists() else []
        return [*links, *map(str, self._process.net_connections())]

    def close(self) -> None:
        self._child.terminate()
        self._child.wait()


def serve() -> None:
    """Be the server: the command line is edgeinfer's, and every line on standard input asks for the number of tasks."""
    loops: list[asyncio.AbstractEventLoop] = []
    make = asyncio.events.new_event_loop

    def kept() -> asyncio.AbstractEventLoop:
        loops.append(make())
        return loops[-1]

    def tell() -> None:
        for _ in sys.stdin:
            print(json.dumps({"tasks": sum(len(asyncio.all_tasks(loop)) for loop in loops)}), flush=True)

    from edgeinfer.__main__ import main as edgeinfer_main
    from edgeinfer.jit.memory import keep_one_arena

    keep_one_arena()  # as the server does, which begins no thread before
    asyncio.events.new_event_loop = kept
    threading.Thread(target=tell, daemon=True).start()
    edgeinfer_main()


def _anonymous(pid: int) -> int:
    """Bytes that a process holds beside the files it maps, of which more and more are read; 0 if the system tells none.

    Parts of files count as its own (USS) only while no other process maps them, too.
    """
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def show(name: str, now: Row) -> None:
    print(f"{name:>10}  " + "  ".join(f"{key} {value:.0f}" for key, value in now.items()), flush=True)


def main() -> int:
    if os.environ.pop(SERVES, None):
        serve()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--other", help="a second model, loaded in place of the first when a client asks for it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append rows to this file")
    parser.add_argument(
        "serve", nargs="*", metavar="-- OPTION", help="options of serve; default: --spec off --no-history"
    )
    given = parser.parse_args()
    server = Server(given.model, given.other, given.serve or ["--spec", "off", "--no-history"])
    try:
        return soak(server, given)
    finally:
        server.close()


def soak(server: Server, given: argparse.Namespace) -> int:
    """Run all clients at once, then rest. Returns an exit code: 1 if something is wrong."""
    models = (given.model, given.other) if given.other else ()
    run_clients(server.url, given.clients, 20.0, given.seed + 1000)  # each kind once, to import all modules
    before = at_rest(server, given.out, 0.0)
    began = time.monotonic()
    ends = began + given.seconds
    threads, clients = begin_clients(server.url, given.clients, ends, given.seed, models)
    series = []
    while time.monotonic() < ends:
        time.sleep(min(given.seconds / N_LOOKS, MOST_LOOK_S, max(0.1, ends - time.monotonic())))
        waited = first_token_ms(server.url)
        series.append({"s": time.monotonic() - began, **server.held(), "first token ms": waited})
        show(f"{series[-1]['s']:.0f} s", series[-1])
        save(given.out, series[-1])
    for thread in threads:
        thread.join()
    after = at_rest(server, given.out, time.monotonic() - began)
    found = sum((client.found for client in clients), collections.Counter[str]())
    print(f"{sum(found.values())} requests: " + ", ".join(f"{name}: {n}" for name, n in sorted(found.items())))
    wrong = [each for client in clients for each in client.wrong]
    wrong += remaining(before, after) + slower(before["first token ms"], after["first token ms"])
    if not given.other:  # with two, it depends on which of them is loaded
        wrong += growing([row["own MB"] for row in series], given.seconds)
    if after["files"] > before["files"]:
        print(f"files: {server.files()}")
    counted = [f"{text} ({n} times)" if n > 1 else text for text, n in collections.Counter(wrong).most_common()]
    print("wrong: " + ("; ".join(counted[:20]) or "nothing"))
    return 1 if wrong else 0


def at_rest(server: Server, out: Path | None, seconds: float) -> Row:
    """What is held without clients, and the median time to the first token."""
    time.sleep(REST_S)
    waited = first_token_ms(server.url, N_PROBES)
    time.sleep(REST_S)
    row = {"s": seconds, **server.held(), "first token ms": waited, "at rest": 1}
    show("at rest", row)
    save(out, row)
    return row


if __name__ == "__main__":
    sys.exit(main())
