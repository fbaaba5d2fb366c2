"""The front passes requests on; whatever becomes of a replica, its clients are told in the words of their API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from edgeinfer.app.cluster.front import guarded_front
from edgeinfer.app.cluster.request_keys import RequestKeys
from edgeinfer.app.server.listening import ServerOptions

SSE, NDJSON, JSON = b"text/event-stream; charset=utf-8", b"application/x-ndjson", b"application/json"


def start(media_type: bytes = JSON, status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", media_type)]}


def part(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Answer:
    """A replica's response: messages, then an error if there is one, or nothing for ever."""

    def __init__(self, messages: list[Message], error: Exception | None, *, hangs: bool) -> None:
        self._messages, self._error, self._hangs = messages, error, hangs
        self.is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        for message in self._messages:
            yield [message]
        if self._hangs:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """Serve's handle, of replicas that answer all alike."""

    def __init__(self, *messages: Message, error: Exception | None = None, hangs: bool = False) -> None:
        self.answer = Answer(list(messages), error, hangs=hangs)
        self.keys: list[RequestKeys] = []
        self.asked: list[tuple[object, ...]] = []
        self.told: list[Any] = []

    def options(self, **options: object) -> Handle:
        return self

    def remote(self, scope: dict[str, Any], body: bytes, keys: RequestKeys) -> Answer:
        self.keys.append(keys)
        return self.answer

    def broadcast(self, *call: object) -> Handle:
        self.asked.append(call)
        return self

    async def results_async(self, **options: object) -> list[Any]:
        return self.told


def client_of(handle: Handle, options: ServerOptions | None = None, client: str = "127.0.0.1") -> httpx.AsyncClient:
    app, _ = guarded_front(handle, options or ServerOptions())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 5))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")


GONE = ConnectionError("it is gone")


async def test_a_response_is_passed_on_with_its_keys() -> None:
    handle = Handle(start(), part(b"{"), part(b"}"))
    handle.answer._messages[1]["more_body"] = True
    async with client_of(handle) as client:
        found = await client.post("/v1/chat/completions", json={"model": "m", "prompt": "x"})
    assert (found.status_code, found.content) == (200, b"{}")
    assert (handle.keys[0].model, handle.keys[0].n_bytes) == ("m", 1)
    assert not handle.answer.is_cancelled


@pytest.mark.parametrize(
    ("path", "media_type", "ends"),
    [
        ("/v1/chat/completions", SSE, b'"code":"replica_lost"'),
        ("/v1/messages", SSE, b"event: error\ndata: {"),
        ("/api/chat", NDJSON, b'{"error":"the replica that was answering has ended'),
    ],
)
@pytest.mark.parametrize("error", [GONE, None])
async def test_a_stream_ends_with_an_error(path: str, media_type: bytes, ends: bytes, error: Exception | None) -> None:
    handle = Handle(start(media_type), part(b"first\n", more=True), error=error)
    async with client_of(handle) as client:
        found = await client.post(path, json={})
    assert found.status_code == 200
    assert found.content.startswith(b"first\n")
    assert ends in found.content
    assert handle.answer.is_cancelled


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "unavailable_error"), ("/v1/messages", "overloaded_error")]
)
async def test_what_has_not_begun_is_refused(path: str, kind: str) -> None:
    async with client_of(Handle(error=GONE)) as client:
        found = await client.post(path, json={})
    assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    assert found.json()["error"]["type"] == kind


async def test_half_a_whole_answer_is_no_answer() -> None:
    handle = Handle(start(), part(b'{"half', more=True), error=GONE)
    app, _ = guarded_front(handle, ServerOptions())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        with pytest.raises(RuntimeError, match="has ended"):
            await client.post("/v1/chat/completions", json={})


async def test_the_end_of_the_server_is_told_to_streams() -> None:
    app, front = guarded_front(Handle(start(SSE), part(b"first\n", more=True), hangs=True), ServerOptions())
    asyncio.get_running_loop().call_later(0.05, front.end)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        found = await client.post("/v1/chat/completions", json={})
    assert json.loads(found.text.partition("data: ")[2])["error"]["code"] == "server_ends"


async def test_other_computers_need_a_key() -> None:
    handle = Handle(start(), part(b"{}"))
    async with client_of(handle, client="10.0.0.7") as client:
        refused = await client.get("/v1/models")
    assert refused.status_code == 403
    assert "EDGEINFER_API_KEY" in refused.json()["error"]["message"]
    async with client_of(handle, ServerOptions(key="k"), client="10.0.0.7") as client:
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer k"})).status_code == 200


async def test_what_a_replica_keeps_is_asked_of_its_holder() -> None:
    handle = Handle(start(), part(b"{}"))
    handle.told = ["", "r2", OSError("this one has ended")]
    async with client_of(handle) as client:
        await client.get("/v1/responses/resp_1/input_items")
        await client.post("/v1/responses", json={"previous_response_id": "resp_2", "input": "x"})
        await client.get("/v1/stream", params={"conv_id": "a b"})
    assert [key.holder for key in handle.keys] == ["r2"] * 3
    assert [call[1:] for call in handle.asked] == [("responses", "resp_1"), ("responses", "resp_2"), ("streams", "a b")]


async def test_changes_of_all_replicas_reach_all() -> None:
    handle = Handle()
    handle.told = [[start(status=404), part(b"no")], [start(status=200), part(b"yes")]]
    async with client_of(handle) as client:
        assert (await client.post("/models/unload", json={"model": "m"})).text == "yes"
        handle.told = []
        assert (await client.post("/models/unload", json={"model": "m"})).status_code == 503
    assert handle.asked[0][0] == "whole_answer"
