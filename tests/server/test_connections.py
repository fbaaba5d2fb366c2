"""Connections that send slowly, much, or what is no request."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.server import connections, guard
from edgeinfer.app.server.connections import PunctualConnection
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.listening import ServerOptions, listen

HEAD = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def counting(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the number of bytes it was sent."""
    n_bytes, goes_on = 0, True
    while goes_on:
        message = await receive()
        n_bytes, goes_on = n_bytes + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(n_bytes).encode()})


def told(app: ASGIApp) -> ASGIApp:
    """Answers with the status of an HTTPException, as FastAPI does."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except HTTPException as error:
            await JSONResponse(error.detail, error.status_code)(scope, receive, send)

    return answered


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that waits for half a second only."""
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    monkeypatch.setattr(guard, "BODY_S", 0.5)
    listener = listen("127.0.0.1", 0)
    app = Guard(told(counting), ServerOptions(most_body_bytes=1000))
    server = uvicorn.Server(
        uvicorn.Config(app, http=PunctualConnection, ws="none", log_config=None, lifespan="off", timeout_keep_alive=60)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(60)
    listener.close()


def everything(connection: socket.socket) -> bytes:
    """What a server sends until it closes the connection."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def test_a_head_that_never_ends_is_not_waited_for(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD)

        def drip() -> None:
            while True:
                try:
                    connection.sendall(b"X-Name: x\r\n")
                except OSError:
                    return
                time.sleep(0.05)

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert everything(connection) == b""
        connection.close()
        dripping.join(60)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert everything(silent) == b""


def test_a_connection_may_be_used_again_however_long_it_was_idle(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False) as client:
        assert client.post("/x", content=b"abc").text == "3"
        time.sleep(1.2)
        assert client.post("/x", content=b"abcd").text == "4"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += connection.recv(65536)
        connection.sendall(HEAD)  # a second request whose head never ends
        assert everything(connection) == b""


def test_a_body_that_pauses_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 5\r\nConnection: close\r\n\r\nab")
        assert b" 408 " in everything(connection)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 5\r\n\r\nab")
        time.sleep(0.2)
        connection.sendall(b"cde")
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += connection.recv(65536)
        assert b"\r\n5\r\n" in answer


def test_heads_are_limited(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        answer = b""
        try:
            connection.sendall(HEAD + b"X-Long: " + b"x" * (1 << 20))
            answer = everything(connection)
        except OSError:  # closed while we were sending
            pass
        assert b" 200 " not in answer


async def test_there_are_no_websockets() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def reached(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it went through")

    scope = {"type": "websocket", "path": "/", "headers": [(b"origin", b"https://evil.example")]}
    await Guard(reached, ServerOptions())(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_an_upgrade_to_a_websocket_is_a_plain_request(port: int) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    answer = httpx.get(f"http://127.0.0.1:{port}/", headers=upgrade, timeout=60, verify=False)
    assert answer.status_code == 200
