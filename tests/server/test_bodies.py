"""Requests as clients send them: packed, without a type, with HEAD, and from pages of all kinds."""

from __future__ import annotations

import gc
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.allowed import allows_origin
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.errors import BadSetting
from tests.server.conftest import Running, served

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PLAIN = json.dumps(BODY).encode()
LIMIT = 5000


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Running]:
    options = ServerOptions(
        port=0,
        hosts=("*.box.local", "named:1234"),
        origins=("https://*.page.example", "http://localhost:*", "vscode-webview://*"),
        most_body_bytes=LIMIT,
    )
    with served(tiny_model, options) as running:
        yield running


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_json_whatever_it_is_called(server: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    found = server.http().post(CHAT, content=PLAIN, headers=headers)
    assert (found.status_code, len(found.json()["choices"])) == (200, 1)


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_bodies(server: Running, coding: str, pack: Any) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    assert server.http().post(CHAT, content=pack(PLAIN), headers=headers).status_code == 200

    def parts() -> Iterator[bytes]:
        yield from (pack(PLAIN)[place : place + 7] for place in range(0, len(pack(PLAIN)), 7))

    assert server.http().post(CHAT, content=parts(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("gzip", gzip.compress(b" " * (100 << 20)), 413),
        ("gzip", gzip.compress(PLAIN + b" " * LIMIT), 413),
        ("gzip", gzip.compress(PLAIN)[:-9], 400),
        ("gzip", PLAIN, 400),
        ("gzip", b"", 400),
        ("br", PLAIN, 415),
    ],
    ids=["a bomb", "too large", "cut", "not packed", "empty", "unknown"],
)
def test_packed_bodies_that_are_refused(server: Running, coding: str, body: bytes, status: int) -> None:
    found = server.http().post(CHAT, content=body[: LIMIT - 1], headers={"Content-Encoding": coding})
    assert (found.status_code, "message" in found.json()["error"]) == (status, True)


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/v1/models", "/models", "/v1/models/tiny", "/props"])
def test_what_can_be_got_can_be_asked_for_its_head(server: Running, path: str) -> None:
    head, whole = server.http().head(path), server.http().get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert server.http().head("/v1/nothing").status_code == 404


def test_models_are_as_old_as_their_files(server: Running, tiny_model: Path) -> None:
    (listed,) = server.client().models.list().data
    assert listed.created == int(tiny_model.stat().st_mtime)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("a.box.local:80", 200),
        ("a.b.BOX.local", 200),
        ("named:1234", 200),
        ("named:1235", 403),
        ("named", 403),
        ("box.local", 403),
        ("evil.example/.box.local", 403),
    ],
)
def test_names_by_pattern_and_port(server: Running, host: str, status: int) -> None:
    assert server.http().get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://a.page.example", 200),
        ("http://localhost:5173", 200),
        ("http://localhost", 200),
        ("vscode-webview://1a2b-3c", 200),
        ("https://page.example", 403),
        ("https://localhost:5173", 403),
        ("https://evil.example/.page.example", 403),
        ("https://a.page.example.evil.example", 403),
        ("http://a.page.example", 403),
        ("https://evil.example\n.page.example", 403),
    ],
)
def test_pages_by_pattern_and_port(server: Running, origin: str, status: int) -> None:
    if "\n" in origin:
        assert not allows_origin(("https://*.page.example",), origin)
        return
    found = server.http().post(CHAT, json=BODY, headers={"Origin": origin})
    assert found.status_code == status
    assert found.headers.get("access-control-allow-origin") == (origin if status == 200 else None)


def test_pages_may_ask_for_a_private_network(server: Running) -> None:
    asked = {
        "Origin": "http://localhost:5173",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-api-key",
        "Access-Control-Request-Private-Network": "true",
    }
    found = server.http().options(CHAT, headers=asked)
    assert (found.status_code, found.headers["access-control-allow-private-network"]) == (200, "true")
    assert "DELETE" in found.headers["access-control-allow-methods"]


def test_every_page_and_every_name(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, hosts=("*",), origins=("*",))) as running:
        headers = {"Origin": "null", "Host": "anything.example:99"}
        assert running.http().post(CHAT, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        {"origins": ("example.org",)},
        {"origins": ("https://example.org/page",)},
        {"origins": ("https://example.org:port",)},
        {"origins": ("",)},
        {"hosts": ("https://example.org",)},
        {"hosts": ("example.org/page",)},
        {"hosts": ("a b",)},
        {"hosts": ("",)},
    ],
)
def test_patterns_that_nothing_matches_are_refused_at_the_start(options: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(BadSetting, match="--allow-"):
        ServerOptions(**options).check()  # type: ignore[arg-type]


def test_addresses_are_names_too() -> None:
    options = ServerOptions(hosts=("10.0.0.7", "::1", "[fe80::2]"))
    options.check()
    assert all(map(options.knows_host, ("10.0.0.7:80", "[fe80::2]:80", "[::1]")))
    assert not options.knows_host("10.0.0.8")


@pytest.mark.parametrize("begin", ["", '{"messages": 3, "more": "'], ids=["no JSON", "wrong JSON"])
def test_a_refused_body_is_let_go_at_once(tiny_model: Path, begin: str) -> None:
    body = (begin + "x" * 3_000_000 + '"}').encode()
    with served(tiny_model, ServerOptions(port=0)) as running:
        http = running.http()
        http.post(CHAT, content=body)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(6):
                assert http.post(CHAT, content=body).status_code == 400
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < 4 * len(body)  # of twelve
