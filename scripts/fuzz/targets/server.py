"""Requests to all routes of the server, in all dialects, whatever their paths, queries, headers and bodies are.

Routes are those of the registry that the application is made of. An input is a request as HTTP writes it, which goes
straight into the application, over a tiny model. No answer may be a failure of the server, none may take a second
beyond what its client stays for, and the server answers a plain question afterwards. Clients leave after STAYS_S.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.routing import APIRoute
from json_changes import changed
from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.pooled_model import PoolLimits
from edgeinfer.app.server.routes import ROUTES
from edgeinfer.engine.loading import load
from edgeinfer.models.store import path_model
from targets.gguf import DATA

USUAL_BYTES = 4000
STAYS_S = 0.4
PATIENCE_S = 8.0
"""How long whoever asks the plain question stays: the model may have been unloaded."""
CHECKED_EVERY = 25
MODEL = DATA / "llama-implicit-q8_0.gguf"
FOLDER = scratch()
NOT_FAILURES = frozenset({501, 503})
"""Statuses that say what is off, full or not there; others from 500 on are failures."""

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PIXEL = f"data:image/png;base64,{DOT}"
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
    {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c", "content": "1"},
    {"role": "user", "content": "And?"},
]
SAMPLING = {"max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "stream": True}
PLAIN = [{"role": "user", "content": "Hi"}]
BODIES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "/v1/chat/completions": (
        {"model": "tiny", "messages": PLAIN, **SAMPLING, "stream_options": {"include_usage": True}},
        {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto", "n": 2},
        {"messages": PLAIN, "max_tokens": 6, "response_format": {"type": "json_object"}, "logprobs": True},
        {"messages": PLAIN, "max_tokens": 6, "logit_bias": {"5": 3}, "best_of": 2, "top_logprobs": 2, "logprobs": True},
    ),
    "/v1/completions": ({"prompt": ["a b", [1, 2]], "echo": True, "logprobs": 2, "suffix": "x", **SAMPLING},),
    "/completion": (
        {"prompt": [1, "a"], "n_predict": 4, "grammar": 'root ::= "a"+', "n_probs": 2, "cache_prompt": True},
    ),
    "/infill": ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}]},),
    "/v1/messages": (
        {"model": "tiny", "system": "s", "messages": PLAIN, "max_tokens": 4, "stream": True, "stop_sequences": ["x"]},
        {
            "max_tokens": 4,
            "tools": [{"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]}],
            "messages": [
                *({"role": "user", "content": [{"type": "text", "text": "Hi"}]},),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]},
            ],
        },
    ),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 4, "stream": True, "store": True, "metadata": {"a": "b"}},
        {
            "instructions": "s",
            "max_output_tokens": 4,
            "tools": [{"type": "function", **FUNCTION}],
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
        },
    ),
    "/api/chat": (
        {"model": "tiny", "messages": PLAIN, "options": {"num_predict": 4, "temperature": 0.1}, "format": "json"},
        {"model": "tiny", "messages": PLAIN, "tools": [{"type": "function", "function": FUNCTION}], "think": True},
    ),
    "/api/generate": ({"model": "tiny", "prompt": "a", "images": [], "options": {"num_predict": 4}, "raw": True},),
    "/api/embed": ({"model": "tiny", "input": ["a", "b"], "truncate": True, "dimensions": 4},),
    "/v1/embeddings": ({"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4},),
    "/v1/rerank": ({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True},),
    "/tokenize": ({"content": "a b", "add_special": True, "with_pieces": True},),
    "/detokenize": ({"tokens": [1, 2, 3]},),
    "/apply-template": ({"messages": PLAIN, "chat_template_kwargs": {"a": 1}, "tools": []},),
    "/predict": ({"instances": [{"messages": PLAIN, "max_tokens": 2}], "parameters": {"temperature": 0.1}},),
    "/slots/{id_slot}": ({"filename": "state"},),
    "/modules/{name}": ({"text": "a text", "temperature": 1.0, "prefix": "b"},),
}
OTHERWISE: Mapping[str, Any] = {
    "model": "tiny",
    "name": "tiny",
    "messages": PLAIN,
    "input": "a",
    "prompt": "a",
    "text": "a",
    "query": "a",
    "documents": ["b"],
    "content": "a",
    "tokens": [1],
    "instances": [{"prompt": "a"}],
    "max_tokens": 2,
    "tool": "f",
    "source": "tiny",
    "destination": "other",
    "arguments": {},
    "params": {},
}
"""Values of fields by their names, for routes that BODIES do not name."""
QUERIES = (
    "",
    "",
    "",
    "?model=tiny",
    "?action=save",
    "?action=restore",
    "?action=erase",
    "?conv_id=a&from=0",
    "?reload=1",
)
HEADERS = (
    *("Content-Type: application/json", "Content-Type: multipart/form-data; boundary=x", "Content-Encoding: gzip"),
    *("Content-Encoding: deflate", "Content-Length: 5", "Content-Length: " + "9" * 5000, "Content-Length: -1"),
    *("Authorization: Bearer \xff", "Origin: null", "Origin: http://[::1", "X-Conversation-Id: a", "Accept: text/html"),
    *("X-Conversation-Id: " + "a" * 500, "Sec-Fetch-Site: cross-site", "Transfer-Encoding: chunked", "Range: bytes=0-"),
    *(
        "anthropic-version: 1",
        "Last-Event-ID: \x01",
        "Accept-Encoding: gzip",
        "Cookie: " + "a=b;" * 500,
        "Expect: 100-continue",
    ),
)


class ServerFailed(Exception):
    """What the server should not do."""


@cache
def application() -> FastAPI:
    """A server over a tiny model, with folders of its own and without a network."""
    os.environ["EDGEINFER_HOME"] = str(FOLDER / "home")
    model = FOLDER / "tiny.gguf"
    (FOLDER / "slots").mkdir(exist_ok=True)
    shutil.copy(MODEL, model)
    sys.addaudithook(_refuse_network)
    logging.disable()
    options = ServerOptions(parallel=3, queue=6, slot_folder=FOLDER / "slots", shows_prompts=True)
    names = ModelList(list, path_model(model))
    pool = ModelPool(lambda found, _: load(found.path, device="cpu", spec="off", threads=1), names, PoolLimits())
    return create_app(options, pool, {"temperature": 0.7, "max_tokens": 8})


def _refuse_network(name: str, arguments: tuple[object, ...]) -> None:
    if name in ("socket.connect", "socket.getaddrinfo"):
        raise OSError("no network while fuzzing")


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop in which all requests are answered."""
    return asyncio.new_event_loop()


def routes() -> Iterator[tuple[str, str, Sequence[Mapping[str, Any]]]]:
    """Method, path and valid bodies of all routes."""
    app = application()
    described = app.openapi()
    schemas = described["components"]["schemas"]
    own: dict[object, Sequence[Mapping[str, Any]]] = {}
    found = [each for router in ROUTES.entries().values() for each in router.routes if isinstance(each, APIRoute)]
    for route in found:
        if route.path in BODIES:
            own[route.endpoint] = BODIES[route.path]
    for route in found:
        for method in sorted(route.methods):
            told = described["paths"].get(route.path, {}).get(method.lower(), {})
            told = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = schemas.get(told.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
            usual = {name: value for name, value in OTHERWISE.items() if name in fields}
            yield method, route.path, own.get(route.endpoint, (usual,))


def written(method: str, path: str, headers: Sequence[str], body: bytes) -> bytes:
    """A request as HTTP writes it."""
    return "\n".join([f"{method} {path}", *headers, "", ""]).encode("utf-8", "surrogatepass") + body


@cache
def requests() -> Sequence[tuple[str, str, Any]]:
    """A request of each body of each route."""
    return [(method, path, body) for method, path, bodies in routes() for body in bodies]


@cache
def asking() -> Sequence[tuple[str, str, Any]]:
    """Those with a body that says something."""
    return [each for each in requests() if each[0] != "GET" and each[2]]


def seeds() -> list[bytes]:
    """All of them."""
    return [written(method, path, (), json.dumps(body).encode()) for method, path, body in requests()]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A request with a changed body, or with anything about it changed."""
    if rng.random() < 0.15:
        return mutated_bytes(seeds, rng, limit)
    method, path, body = rng.choice(asking() if rng.random() < 0.8 else requests())
    headers = rng.sample(HEADERS, rng.choice((0, 0, 0, 0, 0, 0, 1, 2)))
    if rng.random() < 0.03:
        method = rng.choice(("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "X"))
    name = rng.choice(("tiny", "0", "1", "a", "-1", "..", "%2e%2e%2f", "%00", "x" * 300, "%ff", "99999999999999999999"))
    path = path.replace("{id_slot}", rng.choice(("0", name))).replace("{name:path}", name)
    path = "/".join(name if part.startswith("{") else part for part in path.split("/"))
    query = rng.choice(QUERIES)
    if rng.random() < 0.05:
        query = (
            "?" + quote(rng.choice(("model", "action", "from", "conv_id"))) + "=" + rng.choice(("%ff", "%00", "-1", ""))
        )
    text = json.dumps(body).encode() if rng.random() < 0.05 else changed(body, rng, [each for _, _, each in requests()])
    if rng.random() < 0.1:
        text = mutated_bytes([text], rng, limit)
    return written(method, path + query, headers, text)


class Client:
    """Sends a request, stays for a while, and notes what comes back."""

    def __init__(self, data: bytes) -> None:
        head, _, self._body = data.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = target.partition(b"?")
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method.decode("latin-1").upper(),
            "path": _unquoted(path),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8080"), *map(_header, lines)],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        self._gone = asyncio.Event()
        self._n_received = 0
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> dict[str, object]:
        """The body, in two pieces; then nothing until the client leaves."""
        self._n_received += 1
        middle = len(self._body) // 2
        if self._n_received == 1:
            return {"type": "http.request", "body": self._body[:middle], "more_body": True}
        if self._n_received == 2:
            return {"type": "http.request", "body": self._body[middle:], "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Note a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.answer += message.get("body", b"")

    async def ask(self, app: FastAPI, stays_s: float = STAYS_S) -> None:
        """The whole exchange."""
        leaving = asyncio.get_running_loop().call_later(stays_s, self._gone.set)
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            leaving.cancel()


def _unquoted(path: bytes) -> str:
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(path).decode("utf-8", "replace")


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


_n_run = 0
QUESTION = written("POST", "/v1/chat/completions", (), json.dumps({"messages": PLAIN, "max_tokens": 2}).encode())


def run(data: bytes) -> None:
    """Send it, and now and then ask a plain question before."""
    global _n_run
    app = application()
    if _n_run % CHECKED_EVERY == 0:
        _check(app)
    _n_run += 1
    client = Client(data)
    loop().run_until_complete(client.ask(app))
    if (client.status >= 500 and client.status not in NOT_FAILURES) or not client.status:
        raise ServerFailed(f"{client.status} for {bytes(data[:60])!r}: {bytes(client.answer[:200])!r}")


def _check(app: FastAPI) -> None:
    """A plain question is answered, after whatever came before."""
    if not (FOLDER / "tiny.gguf").exists():
        shutil.copy(MODEL, FOLDER / "tiny.gguf")
    check = Client(QUESTION)
    loop().run_until_complete(check.ask(app, PATIENCE_S))
    if check.status != 200:
        raise ServerFailed(f"a plain question is answered with {check.status}: {bytes(check.answer[:200])!r}")
