"""Requests to a server that may be killed: plain HTTP of the standard library, and what came of a stream.

In: a port, paths, bodies. Out: statuses and records; of a stream the text that came, and whether it was whole.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

BROKEN = (OSError, http.client.HTTPException, ValueError)


def free_port() -> int:
    """A port of this computer that nothing uses, and that no program is given that asks for any (as tests do)."""
    for port in random.sample(range(10_000, 30_000), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise SystemExit("no port is free")


def call(port: int, method: str, path: str, body: object = None, limit_s: float = 120.0) -> tuple[int, Any]:
    """The status and the record of a request. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text[:1] in b"{[" and text else None
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    """Whether a server answers there with its model open."""
    try:
        return call(port, "GET", "/health", limit_s=2.0)[0] == 200
    except BROKEN:
        return False


@dataclass
class Streamed:
    """A stream of a chat: `is_whole` if it ended as streams end."""

    text: str = ""
    is_whole: bool = False
    failure: str = ""


def stream(port: int, body: dict[str, object], into: Streamed, identity: str = "") -> Streamed:
    """Read a stream of a chat to its end, or up to where it is cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"Content-Type": "application/json", **({"X-Conversation-Id": identity} if identity else {})}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), headers)
        response = connection.getresponse()
        for line in response:
            if line.startswith(b"data: [DONE]"):
                into.is_whole = True
            elif line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices") or [{}]
                into.text += choices[0].get("delta", {}).get("content") or ""
    except BROKEN as reason:
        into.failure = f"{type(reason).__name__}: {reason}"
    finally:
        connection.close()
    return into


class Clients:
    """Threads that begin when a server is ready, each with a request; they end when it does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_ended = threading.Event()
        self.ready_s: float | None = None
        self._threads: list[threading.Thread] = []

    def add(self, work: Any) -> None:
        """Call `work()` once the server is ready."""
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Any) -> None:
        while not is_ready(self.port):
            if self.is_ended.is_set():
                return
            time.sleep(0.02)
        self.ready_s = self.ready_s or time.monotonic()
        work()

    def are_done(self) -> bool:
        """Whether all have ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Wait for them, after their server has ended."""
        self.is_ended.set()
        for thread in self._threads:
            thread.join(30)
