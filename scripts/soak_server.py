"""Runs random clients against a server for a while and checks what remains: memory, threads, files, cache, answers.

Run: `python scripts/soak_server.py [--minutes M] [--clients N] [--model NAME] [--seed S]`. Starts its own server, with
clients that wait for answers, read streams fast or slowly, disconnect during a body, a prompt or an answer, send
malformed requests, and ask for schemas, embeddings, texts and too much. Prints the resources of the server's process
once a minute and, at rest, at the beginning and at the end; every kind of answer with its status; and problems:
unexpected statuses, answers that are still being generated, files or threads that remain. Pages of the cache are
printed but not judged: stored prefixes hold some at rest.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import psutil

KEY = "soak"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEXT = "the keeper climbs stairs of a lighthouse and looks out at sea while ships pass in fog"
WORDS = tuple(TEXT.split(" "))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"]}
NO_REQUESTS = (b"{", b"[]", b'{"messages": 3}', b"\xff\xfe", b'{"messages": [{"role": "user"}]}', b"null", b"")
DESERVED = {200, 400, 401, 403, 404, 405, 413, 422, 503}
REST_S = 5.0


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

    def completion(self) -> int:
        return self.send("/v1/completions", {"prompt": self.text(300), "max_tokens": 20})

    def response(self) -> int:
        return self.send("/v1/responses", {"input": self.text(), "max_output_tokens": 20})

    def schema(self) -> int:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        return self.send("/v1/chat/completions", self.body(response_format=form))

    def embedding(self) -> int:
        return self.send("/v1/embeddings", {"model": "default", "input": [self.text() for _ in range(3)]})

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
        with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True)) as response:
            for _ in response.iter_raw():
                pass
            return response.status_code

    def slow_stream(self) -> int:
        with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True, logprobs=True)) as response:
            for _ in response.iter_raw(512):
                time.sleep(0.05)
            return response.status_code

    def left_stream(self) -> int:
        with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True, max_tokens=2000)) as response:
            n_left = self.draw.randint(0, 30)
            for number, _ in enumerate(response.iter_lines()):
                if number >= n_left:
                    break
            return response.status_code

    def left_waiting(self) -> str:
        """Disconnect before there is an answer, or during the prompt."""
        body = self.body(max_tokens=2000, messages=[{"role": "user", "content": self.text(2000)}])
        with contextlib.suppress(httpx.TimeoutException):
            self.http.post("/v1/chat/completions", json=body, timeout=self.draw.uniform(0.01, 1.0))
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
    *[Client.answer] * 3,
    *[Client.stream] * 4,
    *[Client.left_stream] * 3,
    *[Client.left_waiting] * 2,
    *[Client.slow_stream] * 2,
    Client.completion,
    Client.response,
    Client.schema,
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


def held(process: psutil.Process, url: str) -> dict[str, float]:
    """The resources that the server holds now."""
    text = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=30).text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("edgeinfer_")]
    gauges = {name.partition("{")[0]: float(value) for name, _, value in lines}
    memory = process.memory_full_info()
    return {
        "RSS MB": memory.rss / 1e6,
        "own MB": memory.uss / 1e6,
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "active": gauges["edgeinfer_answers_active"],
        "waiting": gauges["edgeinfer_answers_waiting"],
        "free pages": gauges["edgeinfer_kv_free_pages"],
        "pages": gauges["edgeinfer_kv_pages"],
    }


def show(name: str, now: dict[str, float]) -> None:
    print(f"{name:>10}  " + "  ".join(f"{key} {value:.0f}" for key, value in now.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    command = [sys.executable, "-m", "edgeinfer", "serve", "-m", given.model, "--port", "0", "--ready-json"]
    command += ["--parent-pid", str(os.getpid())]
    environ = {**psutil.Process().environ(), "EDGEINFER_API_KEY": KEY}
    with subprocess.Popen([*command, "--queue", "16"], stdout=subprocess.PIPE, env=environ) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            return soak(psutil.Process(server.pid), url, given)
        finally:
            server.terminate()


def soak(process: psutil.Process, url: str, given: argparse.Namespace) -> int:
    """Run all clients at once, then rest. Returns an exit code: 1 if something is wrong."""
    run_clients(url, given.clients, 20.0, given.seed + 1000)  # each kind once, to import all modules
    time.sleep(REST_S)
    before = held(process, url)
    show("at rest", before)
    ends = time.monotonic() + 60 * given.minutes
    threads, clients = begin_clients(url, given.clients, ends, given.seed)
    minute = 0
    while time.monotonic() < ends:
        time.sleep(min(60.0, max(0.1, ends - time.monotonic())))
        minute += 1
        show(f"{minute} min", held(process, url))
    for thread in threads:
        thread.join()
    time.sleep(REST_S)
    after = held(process, url)
    show("at rest", after)
    found = sum((client.found for client in clients), collections.Counter[str]())
    print(f"{sum(found.values())} requests: " + ", ".join(f"{name}: {n}" for name, n in sorted(found.items())))
    wrong = [each for client in clients for each in client.wrong]
    wrong += [
        f"{name} {after[name]:.0f}, {before[name]:.0f} before"
        for name in ("threads", "files")
        if after[name] > before[name]
    ]
    wrong += [f"{after['active']:.0f} answers in the making" for _ in range(1) if after["active"] or after["waiting"]]
    print("wrong: " + ("; ".join(wrong[:20]) or "nothing"))
    return 1 if wrong else 0


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
