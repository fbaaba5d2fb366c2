"""The random clients of a soaked server: what they ask, how they misbehave, and what they find wrong.

In: the server's address, a seed and an end. Out: answers counted by kind and status, and problems in words.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
from soak_protocols import PROTOCOLS, Protocol, fault_of_stream

KEY = "soak"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEXT = "the keeper climbs stairs of a lighthouse and looks out at sea while ships pass in fog"
WORDS = tuple(TEXT.split(" "))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"]}
NO_REQUESTS = (b"{", b"[]", b'{"messages": 3}', b"\xff\xfe", b'{"messages": [{"role": "user"}]}', b"null", b"")
DESERVED = {200, 400, 401, 403, 404, 405, 413, 422, 429}


@dataclass
class Client:
    """A client that sends random requests, one after another."""

    url: str
    draw: random.Random
    ends: float
    models: tuple[str, ...] = ()
    """Names of models to ask by turns; none: whatever is served."""
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
        named = {"model": self.draw.choice(self.models)} if self.models else {}
        return {"messages": messages, "max_tokens": self.draw.randint(1, 120), "temperature": 0.8, **named, **more}

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


def first_token_ms(url: str, n: int = 1) -> float:
    """Median ms to the first token of a short question, asked `n` times one after another."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "stream": True}
    seconds = []
    with httpx.Client(base_url=url, headers=HEADERS, timeout=300) as http:
        for _ in range(n):
            began = time.monotonic()
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                next(line for line in response.iter_lines() if '"content"' in line)
                seconds.append(time.monotonic() - began)
    return statistics.median(seconds) * 1e3


def begin_clients(
    url: str, n: int, ends: float, seed: int, models: tuple[str, ...] = ()
) -> tuple[list[threading.Thread], list[Client]]:
    clients = [Client(url, random.Random(seed + number), ends, models) for number in range(n)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    return threads, clients


def run_clients(url: str, n: int, seconds: float, seed: int) -> None:
    for thread in begin_clients(url, n, time.monotonic() + seconds, seed)[0]:
        thread.join()
