"""Who may ask, what for, and how much."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.errors import api_error
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.listening import ServerOptions, is_address, is_loopback, listen_all
from edgeinfer.errors import BadImage, BadSetting, DeviceFailed, EdgeInferError
from tests.server.conftest import Running, served

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    """A server with a key, a name of its own and a page that may use it."""
    options = ServerOptions(port=0, key="secret", hosts=("box.local",), origins=(PAGE,), most_body_bytes=5000)
    with served(tiny_model, options) as running:
        yield running


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "box.local", "BOX.local"])
def test_it_answers_to_its_names(guarded: Running, host: str) -> None:
    assert guarded.http().get("/v1/models", headers={"Host": f"{host}:8080"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.7"])
def test_names_that_a_stranger_points_here_are_refused(guarded: Running, host: str) -> None:
    found = guarded.http().get("/v1/models", headers={"Host": host})
    assert found.status_code == 403
    assert "not called" in found.json()["error"]["message"]
    assert guarded.http().get("/health", headers={"Host": host}).status_code == 403


def test_pages_that_nobody_allowed_are_refused(guarded: Running) -> None:
    http = guarded.http()
    for origin in ("https://evil.example", "null", "http://page.example", f"{PAGE}.evil.example", "http://["):
        found = http.post("/v1/chat/completions", json=BODY, headers={"Origin": origin})
        assert found.status_code == 403
        assert "access-control-allow-origin" not in found.headers
    allowed = http.post("/v1/chat/completions", json=BODY, headers={"Origin": PAGE})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    del http.headers["Authorization"]
    assert http.options("/v1/chat/completions", headers=asked).status_code == 200  # browsers ask without the key
    assert http.options("/v1/chat/completions", headers=asked | {"Host": "evil.example"}).status_code == 403
    foreign = http.options("/v1/chat/completions", headers=asked | {"Origin": "https://evil.example"})
    assert not [name for name in foreign.headers if name.startswith("access-control")]  # so browsers send nothing
    own = guarded.url.removeprefix("http://")
    assert guarded.http().get("/v1/models", headers={"Origin": f"http://{own}"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_pictures_and_frames_of_other_pages_reach_nothing(guarded: Running, site: str) -> None:
    """Browsers send them without an origin."""
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    is_foreign = site in ("cross-site", "same-site")
    for path in ("/v1/models", "/props?model=tiny", "/models?reload=1"):
        assert guarded.http().get(path, headers=told).status_code == (403 if is_foreign else 200)
    assert guarded.http().get("/", headers=told).status_code == 200  # a link to the page
    allowed = {**told, "Origin": PAGE}
    assert guarded.http().get("/v1/models", headers=allowed).status_code == 200


def test_nothing_but_health_is_told_without_the_key(guarded: Running) -> None:
    http = guarded.http()
    del http.headers["Authorization"]
    paths = ["/v1/models", "/metrics", "/props", "/slots", "/openapi.json", "/nothing", "/v1/models/tiny"]
    for path in paths:
        found = http.get(path)
        assert (found.status_code, found.json()["error"]["type"]) == (401, "authentication_error")
    assert http.get("/health").json() == {"status": "ok"}
    for header in ("secret", "Basic secret", "Bearer", "Bearer secre", "Bearer s\u00e9cret"):
        headers = {"Authorization": header.encode()}
        assert http.get("/v1/models", headers=headers).status_code == 401


def test_names_of_headers_have_capitals(guarded: Running) -> None:
    names = [name for name, _ in guarded.http().get("/v1/models", headers={"Origin": PAGE}).headers.raw]
    assert {b"Content-Type", b"Access-Control-Allow-Origin", b"X-Request-Id"} <= set(names)


def test_pages_that_may_use_it_can_read_why_a_request_is_refused(guarded: Running) -> None:
    for headers, status in (({"Authorization": "Bearer wrong"}, 401), ({"Content-Length": "6000"}, 413)):
        found = guarded.http().post("/v1/chat/completions", headers={"Origin": PAGE, **headers}, content=b"x" * 6000)
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (status, PAGE)
    other = guarded.http().get("/v1/models", headers={"Origin": "https://evil.example", "Authorization": "Bearer no"})
    assert "access-control-allow-origin" not in other.headers


def test_requests_may_not_be_too_large(guarded: Running) -> None:
    large = {**BODY, "messages": [{"role": "user", "content": "x" * 6000}]}
    found = guarded.http().post("/v1/chat/completions", json=large)
    assert (found.status_code, "5000 bytes" in found.text) == (413, True)

    def parts() -> Iterator[bytes]:
        text = json.dumps(large).encode()
        for start in range(0, len(text), 500):
            yield text[start : start + 500]

    found = guarded.http().post("/v1/chat/completions", content=parts(), headers={"Content-Type": "application/json"})
    assert found.status_code == 413


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{" * 4000, b"[" * 4900, b"1" * 4990]
)
@pytest.mark.usefixtures("uncollected")
def test_bodies_that_are_none(guarded: Running, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    found = guarded.http().post("/v1/chat/completions", content=body, headers=headers)
    assert found.status_code == 400
    assert found.json()["error"]["type"] == "invalid_request_error"


def test_lengths_that_are_no_numbers(guarded: Running) -> None:
    connection = http.client.HTTPConnection(guarded.url.removeprefix("http://"))
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Authorization", "Bearer secret")
    connection.putheader("Content-Length", "-5")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_paths_and_methods_that_are_none(guarded: Running) -> None:
    found = guarded.http().get("/v1/nothing")
    assert (found.status_code, found.json()["error"]["message"]) == (404, "there is no GET /v1/nothing")
    assert guarded.http().delete("/v1/chat/completions").status_code == 405


def test_queries_in_other_bytes_than_ascii_are_refused() -> None:
    """The server's own reader of HTTP lets none through; those of other servers do, and routing fails on them."""
    sent, headers = list[Any](), [(b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": "/x/", "query_string": b"v{\xff", "headers": headers}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(None, ServerOptions())(scope, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert b"not ASCII" in sent[1]["body"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "box.local", ""])
def test_others_may_not_reach_it_without_a_key(host: str) -> None:
    with pytest.raises(BadSetting, match="a key is needed"):
        ServerOptions(host=host).check()
    ServerOptions(host=host, key="secret").check()
    with pytest.raises(BadSetting, match="key is empty"):
        ServerOptions(host=host, key=" ").check()
    for key in ("secret ", "secret\n", " secret"):
        with pytest.raises(BadSetting, match="white space"):
            ServerOptions(host=host, key=key).check()
    for key in ("schl\u00fcssel", "a\nb", "a\0b"):
        with pytest.raises(BadSetting, match="cannot send in a header"):
            ServerOptions(host=host, key=key).check()


def test_several_addresses_are_listened_at(tiny_model: Path) -> None:
    options = ServerOptions(host="127.0.0.1, ::1", port=0)
    options.check()
    listeners = listen_all(options.addresses, 0)
    try:
        ports = {listener.getsockname()[1] for listener in listeners}
        assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "::1"]
        assert len(ports) == 1
        with pytest.raises(BadSetting, match="cannot be listened at"):
            listen_all(("127.0.0.2", "127.0.0.1"), ports.pop())
    finally:
        for listener in listeners:
            listener.close()
    with pytest.raises(BadSetting, match=r"10\.0\.0\.7 can be reached"):
        ServerOptions(host="127.0.0.1,10.0.0.7").check()
    with pytest.raises(BadSetting, match="an address is empty"):
        ServerOptions(host="127.0.0.1,").check()
    assert ServerOptions(host="127.0.0.1,10.0.0.7", key="x").knows_host("10.0.0.7:8080")


def test_parts_of_a_server_can_be_off(tiny_model: Path) -> None:
    parts = {"page": ("/page/main.js", 404), "slots": ("/slots", 501), "metrics": ("/metrics", 501)}
    with served(tiny_model, ServerOptions(port=0, without=frozenset(parts))) as running:  # type: ignore[arg-type]
        for path, status in parts.values():
            found = running.http().get(path)
            assert found.status_code == status
            assert found.headers.get("x-should-retry", "false") == "false"
        assert running.http().get("/health").status_code == 200
        assert running.http().get("/").status_code == 404
        assert running.http().head("/").status_code == 200  # what Ollama's clients ask first


def test_a_server_may_show_prompts(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, shows_prompts=True)) as running:
        told = running.http().post("/v1/chat/completions", json=BODY).json()
        shown = running.http().post("/apply-template", json={"messages": BODY["messages"]}).json()["prompt"]
        assert told["__verbose"]["prompt"].endswith(shown)


def test_a_server_for_others_answers_to_addresses_and_to_no_strangers_names() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "box.local", ""):
        options = ServerOptions(host=host, key="secret")
        assert all(map(options.knows_host, ("10.1.2.3", "[fe80::1]", "127.0.0.1", "localhost")))
        assert not any(map(options.knows_host, ("evil.example", "10.1.2.3.evil.example")))
    assert not ServerOptions().knows_host("10.1.2.3")


def test_this_computer_is_known_by_its_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "example.org", "127.0.0.1.example.org")))


def test_addresses_are_told_from_names() -> None:
    assert all(map(is_address, ("10.1.2.3", "::1", "[fe80::1]")))
    assert not any(map(is_address, ("", "localhost", "10.1.2", "10.1.2.3.example", "0x7f.1")))


def test_clients_are_told_what_is_meant_for_users_and_nothing_else() -> None:
    assert api_error(DeviceFailed("the device is gone")).body()["error"]["message"] == "the device is gone"
    assert api_error(EdgeInferError("x")).status == 500
    assert (api_error(BadImage("x")).status, api_error(BadImage("x")).code) == (400, "invalid_image")
    hidden = api_error(ValueError("/home/anna/secret.txt"))
    assert (hidden.status, hidden.message) == (500, "the server failed; its log says why")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/models?reload=1", None),
        ("GET", "/models/sse", None),
        ("POST", "/models", {"model": "x"}),
        ("POST", "/models/load", {"model": "x"}),
        ("POST", "/models/unload", {"model": "x"}),
        ("DELETE", "/models?model=x", None),
        ("POST", "/api/pull", {"model": "x"}),
        ("DELETE", "/api/delete", {"model": "x"}),
    ],
)
def test_routes_about_models_need_the_key_and_an_allowed_page(
    guarded: Running, method: str, path: str, body: object
) -> None:
    http = guarded.http()
    evil = {"Origin": "https://evil.example"}
    assert http.request(method, path, json=body, headers=evil).status_code == 403
    del http.headers["Authorization"]
    assert http.request(method, path, json=body).status_code == 401


def test_a_length_of_thousands_of_digits_is_too_large(guarded: Running) -> None:
    """Python reads no number of so many digits."""
    found: list[dict[str, Any]] = []

    async def ask() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            found.append(message)

        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer secret"), (b"content-length", b"9" * 5000)]
        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await create_app(ServerOptions(key="secret"), guarded.pool, {})(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(ask())
    assert found[0]["status"] == 413
