"""A request from another process is answered as one from a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from edgeinfer.app.cluster.forwarded_request import ForwardedRequest, sent_scope
from edgeinfer.app.server.errors import REQUEST_ID

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}


async def test_the_application_gets_the_body_and_its_messages_come_back() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"!"})

    messages = [each async for part in ForwardedRequest(echo, SCOPE, b"hi").messages() for each in part]
    assert [each.get("body") for each in messages] == [None, b"hi", b"!"]


async def test_to_stop_reading_is_to_leave_and_the_application_may_go_on() -> None:
    after: list[str] = []

    async def follows(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        after.append((await receive())["type"])
        await send({"type": "http.response.body", "body": b"nobody reads this"})

    forwarded = ForwardedRequest(follows, SCOPE, b"")
    parts = forwarded.messages()
    assert len(await anext(parts)) == 1
    await parts.aclose()  # type: ignore[attr-defined]
    await forwarded.task
    assert after == ["http.disconnect"]


async def test_an_application_that_fails_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("by what")

    messages = [each async for part in ForwardedRequest(fails, SCOPE, b"").messages() for each in part]
    assert messages[0]["status"] == 500
    assert b"by what" not in messages[1]["body"]
    assert "POST /v1/x failed" in caplog.text


def test_objects_of_a_process_stay_there() -> None:
    scope = {**SCOPE, REQUEST_ID: "req_1", "app": object(), "state": {}, "extensions": {}}
    assert sent_scope(scope) == {**SCOPE, REQUEST_ID: "req_1"}
