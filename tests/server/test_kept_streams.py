"""Streams that go on without their clients: told again from any byte, stopped, replaced, forgotten where many are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgeinfer.app.server.kept_streams import KeptStreams
from edgeinfer.models.store import path_model
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served
from tests.waiting import PATIENCE_S, until

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "the rain in the tin"}], "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def endless(long_model: Path) -> Iterator[Running]:
    """A server whose answers go on until their limit."""
    with served(long_model) as running:
        yield running


def named(identity: str) -> dict[str, str]:
    return {"X-Conversation-Id": identity}


def begun(server: Running, identity: str, n_tokens: int, path: str = CHAT, **body: object) -> bytes:
    """Ask for a stream, read its first bytes, and leave; these bytes."""
    asked = {**ASKED, "max_tokens": n_tokens, **body}
    with server.http().stream("POST", path, json=asked, headers=named(identity)) as response:
        assert response.status_code == 200
        return next(response.iter_bytes())


def resumed(server: Running, identity: str, start: int = 0) -> httpx.Response:
    return server.http().get("/v1/stream", params={"conv_id": identity, "from": start})


def text_of(events: bytes) -> str:
    lines = [line.removeprefix("data: ") for line in events.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for line in lines for choice in json.loads(line)["choices"])


def until_idle(server: Running) -> None:
    until(lambda: not any(model.llm.telemetry.queue.n_active for model in server.pool.open))


def test_an_answer_goes_on_when_its_client_leaves(endless: Running) -> None:
    whole = endless.http().post(CHAT, json={**ASKED, "max_tokens": 300, "stream": False}).json()
    first = begun(endless, "chat 1/2", 300)
    found = resumed(endless, "chat 1/2")
    assert found.headers["content-type"].startswith("text/event-stream")
    assert found.content.startswith(first)
    assert found.content.endswith(b"data: [DONE]\n\n")
    assert text_of(found.content) == whole["choices"][0]["message"]["content"]
    assert resumed(endless, "chat 1/2", 100).content == found.content[100:]
    assert resumed(endless, "chat 1/2", len(found.content)).content == b""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the rain", "messages": None}),
        ("/v1/messages", {}),
        ("/api/chat", {"options": {"num_predict": 40}}),
        ("/completion", {"prompt": "the rain", "n_predict": 40}),
    ],
)
def test_streams_of_all_apis_are_kept(endless: Running, path: str, body: dict[str, object]) -> None:
    first = begun(endless, path, 40, path, model=endless.pool.open[0].name, **body)
    found = resumed(endless, path)
    assert (found.status_code, found.content[: len(first)]) == (200, first)


def test_a_stream_is_stopped_and_forgotten(endless: Running) -> None:
    begun(endless, "b", 50_000)
    gone = endless.http().delete("/v1/stream", params={"conv_id": "b"})
    assert (gone.status_code, gone.content) == (204, b"")
    until_idle(endless)
    for answer in (resumed(endless, "b"), endless.http().delete("/v1/stream", params={"conv_id": "b"})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_who_reads_a_stream_that_is_stopped_sees_it_end(endless: Running) -> None:
    """And not a broken connection, which browsers tell of."""
    body = {**ASKED, "max_tokens": 50_000}
    with endless.http().stream("POST", CHAT, json=body, headers=named("g")) as response:
        parts = response.iter_bytes()
        first = next(parts)
        assert endless.http().delete("/v1/stream", params={"conv_id": "g"}).status_code == 204
        rest = b"".join(parts)
    assert b"[DONE]" not in first + rest
    until_idle(endless)


def test_the_next_turn_of_a_conversation_stops_the_one_before(endless: Running) -> None:
    begun(endless, "c", 50_000)
    begun(endless, "c", 5)
    until_idle(endless)
    assert len(text_of(resumed(endless, "c").content)) < 100


def test_whole_answers_and_errors_are_not_kept(endless: Running) -> None:
    for body in ({**ASKED, "stream": False, "max_tokens": 2}, {"messages": 3, "stream": True}):
        endless.http().post(CHAT, json=body, headers=named("d"))
        assert resumed(endless, "d").status_code == 404
    assert endless.http().post(CHAT, content=b"[", headers=named("d")).status_code == 400
    too_long = endless.http().post(CHAT, json={**ASKED, "max_tokens": 2}, headers=named("x" * 501))
    assert (too_long.status_code, "500 are the most" in too_long.text) == (400, True)


def test_a_whole_answer_still_ends_with_its_client(endless: Running) -> None:
    whole = {**ASKED, "stream": False, "max_tokens": 50_000}
    with pytest.raises(httpx.ReadTimeout):
        endless.http().post(CHAT, json=whole, headers=named("e"), timeout=httpx.Timeout(60, read=1))
    until_idle(endless)


def test_a_stream_that_is_stopped_while_its_model_opens_is_refused(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path_model(write_tiny_llama(tmp_path / "other.gguf", seed=5))
    opens, may_open = threading.Event(), threading.Event()
    with served(tiny_model, others=[other], most_models=2) as server:
        open_model = server.pool._open_model

        def slowly(*given: object) -> object:
            opens.set()
            assert may_open.wait(PATIENCE_S)
            return open_model(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(server.pool, "_open_model", slowly)
        answers: list[httpx.Response] = []

        def ask() -> None:
            asked = {**ASKED, "model": other.name, "max_tokens": 3}
            answers.append(server.http().post(CHAT, json=asked, headers=named("f")))

        asking = threading.Thread(target=ask)
        asking.start()
        assert opens.wait(PATIENCE_S)
        early = resumed(server, "f")
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert server.http().delete("/v1/stream", params={"conv_id": "f"}).status_code == 204
        asking.join(PATIENCE_S)
        may_open.set()
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (400, "cancelled")
        assert resumed(server, "f").status_code == 404


def test_the_oldest_streams_that_are_over_make_room() -> None:
    async def scenario() -> None:
        streams = KeptStreams(most=3, most_bytes=100)
        runs, over, _, later = (streams.begin(name) for name in "abcd")
        streams.make_room()
        assert all(streams.get(name) for name in "abcd")  # all run
        over.end()
        streams.make_room()
        assert [streams.get(name) is not None for name in "abcd"] == [True, False, True, True]
        runs.add(b"x" * 101)
        later.end()
        streams.make_room()
        assert [streams.get(name) is not None for name in "abcd"] == [True, False, True, False]
        assert streams.stop("a")
        assert (runs.stopped.is_set(), runs.is_over) == (True, True)
        last = streams.begin("e")
        last.add(b"kept")
        streams.close()
        assert last.stopped.is_set()
        assert [part async for part in last.follow(1)] == [b"ept"]

    asyncio.run(scenario())
