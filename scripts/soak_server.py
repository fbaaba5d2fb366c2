"""Runs random clients against a server for a while and checks what remains: memory, threads, files, cache, answers.

Run: `python scripts/soak_server.py [--seconds S] [--clients N] [--model NAME] [--seed S] [--spec auto]`. Starts its own
server, with clients that speak all of its protocols (`soak_protocols.py`): they wait for answers, read streams fast or
slowly, disconnect during a body, a prompt or an answer, send malformed requests, and ask for schemas, embeddings, texts
and too much. Prints the resources of the server's process as they change and, at rest, at the beginning and at the end;
every kind of answer with its status; and problems: unexpected statuses (any from 500 on), streams that do not end as
they must, memory that grows after the first third, answers that are still being generated, tasks, files or threads that
remain. Pages of the cache are printed but not judged: stored prefixes hold some at rest.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from soak_protocols import PROTOCOLS, Protocol, fault_of_stream

KEY = "soak"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEXT = "the keeper climbs stairs of a lighthouse and looks out at sea while ships pass in fog"
WORDS = tuple(TEXT.split(" "))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"]}
NO_REQUESTS = (b"{", b"[]", b'{"messages": 3}', b"\xff\xfe", b'{"messages": [{"role": "user"}]}', b"null", b"")
DESERVED = {200, 400, 401, 403, 404, 405, 413, 422}
REST_S = 5.0
N_LOOKS = 18
MOST_GROWTH, MOST_GROWTH_MB = 0.02, 10.0
POOL = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio starts as it needs them, and keeps."""
SERVES = "SOAK_SERVES"
"""Set in the environment of the server."""


@dataclass
class Client:
    """A client that sends random requests, one after another."""

    url: str
    draw: random.Random
    ends: float
    found: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, headers=HEADERS, timeout=300) as self.http:
            while time.monotonic() < self.ends:
                kind = self.draw.choice(KINDS)
                try:
                    status = kind(self)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                    self.wrong.append(f"{kind.__name__}: {error!r}")
                if isinstance(status, int) and status not in DESERVED:
                    self.wrong.append(f"{kind.__name__}: status {status}")
                self.found[f"{kind.__name__.strip('_')} {status}"] += 1

    def text(self, most: int = 60) -> str:
        return " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, most)))

    def body(self, **more: object) -> dict[str, object]:
        system = [{"role": "system", "content": "You are brief."}] if self.draw.random() < 0.5 else []
        messages = [*system, {"role": "user", "content": self.text()}]
        return {"messages": messages, "max_tokens": self.draw.randint(1, 120), "temperature": 0.8, **more}

    def send(self, path: str, body: dict[str, object]) -> int:
        return self.http.post(path, json=body).status_code

    def answer(self) -> int:
        return self.send("/v1/chat/completions", self.body(n=self.draw.choice([1, 1, 1, 2])))

    def schema(self) -> int:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        return self.send("/v1/chat/completions", self.body(response_format=form))

    def embedding(self) -> int:
        path = self.draw.choice(["/v1/embeddings", "/api/embed"])
        return self.send(path, {"model": "default", "input": [self.text() for _ in range(3)]})

    def stored(self) -> int:
        """Continue a response, then forget both."""
        identity = None
        for _ in range(2):
            body = {"input": self.text(), "max_output_tokens": 9, "previous_response_id": identity}
            found = self.http.post("/v1/responses", json=body)
            if found.status_code != 200:
                return found.status_code
            identity = found.json()["id"]
        return self.http.delete(f"/v1/responses/{identity}").status_code

    def tokens(self) -> int:
        return self.send("/tokenize", {"content": self.text()})

    def standing(self) -> int:
        return self.http.get(self.draw.choice(["/health", "/metrics", "/slots", "/props", "/v1/models"])).status_code

    def too_long(self) -> int:
        return self.send("/v1/chat/completions", self.body(messages=[{"role": "user", "content": "word " * 20_000}]))

    def too_large(self) -> int:
        return self.http.post("/v1/chat/completions", content=b"x" * (17 << 20)).status_code

    def no_request(self) -> int:
        return self.http.post("/v1/chat/completions", content=self.draw.choice(NO_REQUESTS)).status_code

    def wrong_key(self) -> int:
        return self.http.get("/v1/models", headers={"Authorization": "Bearer no"}).status_code

    def nowhere(self) -> int:
        return self.http.get("/v1/nowhere").status_code

    def no_model(self) -> int:
        return self.send("/v1/chat/completions", self.body(model="none-such"))

    def stream(self) -> int:
        """Read a whole stream, fast or slowly."""
        protocol, is_slow = self.draw.choice(PROTOCOLS), self.draw.random() < 0.4
        body = {**protocol.body(self.text(), self.draw.randint(1, 120)), "stream": True}
        with self.http.stream("POST", protocol.path, json=body) as response:
            text = b""
            for part in response.iter_raw(256 if is_slow else None):
                text += part
                time.sleep(0.05 * is_slow)
            if response.status_code == 200:
                self._judge(protocol, text)
            return response.status_code

    def resumed(self) -> int:
        """Leave a stream that goes on, and come back for it."""
        protocol, identity = self.draw.choice(PROTOCOLS), f"{threading.get_ident()} {self.draw.randint(1, 3)}"
        body = {**protocol.body(self.text(), self.draw.randint(1, 120)), "stream": True}
        named = {"X-Conversation-Id": identity}
        with self.http.stream("POST", protocol.path, json=body, headers=named) as response:
            if response.status_code != 200:
                return response.status_code
            next(response.iter_lines(), None)
        found = self.http.get("/v1/stream", params={"conv_id": identity})
        if found.status_code == 200:
            self._judge(protocol, found.content)
        return found.status_code

    def _judge(self, protocol: Protocol, text: bytes) -> None:
        """Note what is wrong with a whole stream."""
        lines = [line for line in text.decode().split("\n") if line and not line.startswith(": ")]
        fault = fault_of_stream(protocol, lines)
        self.wrong += [f"{protocol.name}: {fault}"] if fault else []

    def whole(self) -> int:
        protocol = self.draw.choice(PROTOCOLS)
        body = {**protocol.body(self.text(), self.draw.randint(1, 120)), "stream": False}
        return self.send(protocol.path, body)

    def left_stream(self) -> int:
        protocol = self.draw.choice(PROTOCOLS)
        body = {**protocol.body(self.text(), 2000), "stream": True}
        with self.http.stream("POST", protocol.path, json=body) as response:
            n_left = self.draw.randint(0, 30)
            for number, _ in enumerate(response.iter_lines()):
                if number >= n_left:
                    break
            return response.status_code

    def left_waiting(self) -> str:
        """Disconnect before there is an answer, or during the prompt."""
        protocol = self.draw.choice(PROTOCOLS)
        body = {**protocol.body(self.text(2000), 2000), "stream": False}
        with contextlib.suppress(httpx.TimeoutException):
            self.http.post(protocol.path, json=body, timeout=self.draw.uniform(0.01, 1.0))
            return "answered"
        return "left"

    def raw(self) -> str:
        """Send bytes that are not HTTP, or not a complete request."""
        host, port = self.url.removeprefix("http://").split(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n".encode()
        whole = json.dumps(self.body()).encode()
        sent = self.draw.choice(
            [b"", b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", head, head + b"Content-Length: 900\r\n\r\n" + whole[:20]]
        )
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(sent)
            time.sleep(self.draw.uniform(0, 0.5))
        return "sent"


KINDS: tuple[Callable[[Client], int | str], ...] = (
    *[Client.answer] * 2,
    *[Client.whole] * 4,
    *[Client.stream] * 7,
    *[Client.left_stream] * 4,
    *[Client.left_waiting] * 3,
    *[Client.resumed] * 2,
    Client.schema,
    Client.stored,
    Client.embedding,
    Client.tokens,
    Client.standing,
    Client.too_long,
    Client.too_large,
    Client.no_request,
    Client.wrong_key,
    Client.nowhere,
    Client.no_model,
    Client.raw,
)


class Server:
    """A server in a process of its own, which also tells its tasks."""

    def __init__(self, model: str, spec: str) -> None:
        flags = ["-m", model, "--port", "0", "--ready-json", "--parent-pid", str(os.getpid()), "--queue", "64"]
        flags += ["--ctx", "2048", "--contexts", "2"]  # few pages: all are touched soon, and memory shows leaks alone
        flags += ["--spec", spec, "--no-history"]
        environ = {**os.environ, "EDGEINFER_API_KEY": KEY, SERVES: "1"}
        self._child = subprocess.Popen(
            [sys.executable, __file__, "serve", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
        )
        self._process = psutil.Process(self._child.pid)
        self.url: str = self._line()["url"]

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def held(self) -> dict[str, float]:
        """The resources that the server holds now."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        text = httpx.get(f"{self.url}/metrics", headers=HEADERS, timeout=60).text
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("edgeinfer_")]
        gauges = {name.partition("{")[0]: float(value) for name, _, value in lines}
        slots = httpx.get(f"{self.url}/slots", headers=HEADERS, timeout=60).json()
        memory = self._process.memory_full_info()
        return {
            "RSS MB": memory.rss / 1e6,
            "own MB": memory.uss / 1e6,
            "threads": self._process.num_threads(),
            "files": self._process.num_fds(),
            "tasks": self._line()["tasks"],
            "active": gauges["edgeinfer_answers_active"],
            "waiting": gauges["edgeinfer_answers_waiting"],
            "busy slots": sum(slot["is_processing"] for slot in slots),
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

    def tell() -> None:
        for _ in sys.stdin:
            tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
            print(json.dumps({"tasks": len(tasks)}), flush=True)

    from edgeinfer.__main__ import main as edgeinfer_main

    threading.Thread(target=tell, daemon=True).start()
    edgeinfer_main()


def show(name: str, now: dict[str, float]) -> None:
    print(f"{name:>10}  " + "  ".join(f"{key} {value:.0f}" for key, value in now.items()), flush=True)


def main() -> int:
    if os.environ.pop(SERVES, None):
        serve()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spec", default="off", help="with drafts, tables of what was read grow for a long time")
    given = parser.parse_args()
    server = Server(given.model, given.spec)
    try:
        return soak(server, given)
    finally:
        server.close()


def soak(server: Server, given: argparse.Namespace) -> int:
    """Run all clients at once, then rest. Returns an exit code: 1 if something is wrong."""
    run_clients(server.url, given.clients, 20.0, given.seed + 1000)  # each kind once, to import all modules
    time.sleep(REST_S)
    before = server.held()
    show("at rest", before)
    began = time.monotonic()
    ends = began + given.seconds
    threads, clients = begin_clients(server.url, given.clients, ends, given.seed)
    series = []
    while time.monotonic() < ends:
        time.sleep(min(given.seconds / N_LOOKS, max(0.1, ends - time.monotonic())))
        series.append(server.held())
        show(f"{time.monotonic() - began:.0f} s", series[-1])
    for thread in threads:
        thread.join()
    time.sleep(REST_S)
    after = server.held()
    show("at rest", after)
    found = sum((client.found for client in clients), collections.Counter[str]())
    print(f"{sum(found.values())} requests: " + ", ".join(f"{name}: {n}" for name, n in sorted(found.items())))
    wrong = [each for client in clients for each in client.wrong]
    wrong += remaining(before, after) + growing([now["RSS MB"] for now in series])
    if after["files"] > before["files"]:
        print(f"files: {server.files()}")
    print("wrong: " + ("; ".join(wrong[:20]) or "nothing"))
    return 1 if wrong else 0


def remaining(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What is held at rest that was not before, in words."""
    more = [name for name in ("files", "tasks") if after[name] > before[name]]
    more += ["threads"] if after["threads"] > before["threads"] + POOL else []
    busy = [name for name in ("active", "waiting", "busy slots") if after[name]]
    return [f"{name} {after[name]:.0f}, {before[name]:.0f} before" for name in (*more, *busy)]


def growing(series: Sequence[float]) -> list[str]:
    """Whether memory grew after the first third, in words: the last third against the one in the middle."""
    n = len(series) // 3
    middle, last = statistics.mean(series[n : 2 * n]), statistics.mean(series[-n:])
    is_flat = last <= middle + max(MOST_GROWTH_MB, MOST_GROWTH * middle)
    return [] if is_flat else [f"RSS {last:.0f} MB in the last third, {middle:.0f} in the one before"]


def begin_clients(url: str, n: int, ends: float, seed: int) -> tuple[list[threading.Thread], list[Client]]:
    clients = [Client(url, random.Random(seed + number), ends) for number in range(n)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    return threads, clients


def run_clients(url: str, n: int, seconds: float, seed: int) -> None:
    for thread in begin_clients(url, n, time.monotonic() + seconds, seed)[0]:
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
