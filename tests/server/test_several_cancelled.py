"""Clients that leave while several answers are written for them: all answers end, and nothing of them stays."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from tests.server.conftest import Running, served
from tests.waiting import PATIENCE_S, until

SHORT = "the rain in the tin"
LONG = "the rain in the tin, the hen in the inn, and " * 250
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "n": (CHATS, {"n": 3}),
    "n streamed": (CHATS, {"n": 3, "stream": True}),
    "n of texts streamed": (TEXTS, {"n": 3, "stream": True}),
    "best_of": (TEXTS, {"n": 2, "best_of": 4}),
    "kept": (CHATS, {"edgeinfer": {"answers": 4}}),
    "kept streamed": (CHATS, {"edgeinfer": {"answers": 4}, "stream": True}),
    "led": (CHATS, {"edgeinfer": {"answers": 4, "lead": "particles"}}),
    "all streamed": (CHATS, {"edgeinfer": {"answers": 4, "pick": "weighted", "stream_all": True}, "stream": True}),
}
SAMPLED = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 6_000}


@pytest.fixture(scope="module")
def endless(long_model: Path) -> Iterator[Running]:
    with served(long_model, ServerOptions(port=0, parallel=4)) as running:
        yield running


@pytest.fixture(scope="module")
def one_by_one(long_model: Path) -> Iterator[Running]:
    with served(long_model, ServerOptions(port=0, parallel=1)) as running:
        yield running


def n_used_pages(llm: LLM) -> int:
    """Pages that hold something, once what ended requests left for others is given up."""
    with llm._pool.lock:
        while llm._driver.scheduler.admission.give_up():
            pass
    return llm.telemetry.limits.n_pages - llm.telemetry.n_free_pages


def body_of(path: str, prompt: str, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": prompt} if path == TEXTS else {"messages": [{"role": "user", "content": prompt}]}
    return {**asked, **SAMPLED, **fields}


def n_answers(fields: dict[str, Any]) -> int:
    """How many are written for a request with these fields."""
    return int(fields.get("edgeinfer", {}).get("answers") or fields.get("best_of") or fields["n"])


def is_queued(llm: LLM, fields: dict[str, Any]) -> bool:
    """Whether all answers of such a request wait."""
    return llm.telemetry.queue.n_waiting == n_answers(fields)


def leave(running: Running, path: str, body: dict[str, Any], when: Callable[[], object]) -> None:
    """Ask, and close the connection once `when()` is true; what was answered by then is not read."""
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    try:
        until(when)
    finally:
        connection.close()


class Held:
    """Passes that wait from a point on, until an answer is told to end."""

    def __init__(self, llm: LLM, is_reached: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
        self._counts, scheduler = llm._driver.scheduler.counts, llm._driver.scheduler
        self._told, self._n_told, self.is_late = threading.Event(), 0, False
        step, stop = scheduler.step, ScheduledSequence.stop

        def held() -> bool:
            if is_reached() and not self._told.wait(PATIENCE_S):
                self.is_late = True
            return step()

        def noted(sequence: ScheduledSequence) -> None:
            is_first = is_reached() and not self._told.is_set()
            self._n_told = self._counts.passes if is_first else self._n_told
            stop(sequence)
            if is_first:
                self._told.set()

        monkeypatch.setattr(scheduler, "step", held)
        monkeypatch.setattr(ScheduledSequence, "stop", noted)

    @property
    def n_after(self) -> int:
        """Passes since then."""
        return self._counts.passes - self._n_told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["prompt", "begin", "middle", "end"])
def test_all_answers_end_within_a_pass_and_their_pages_are_free(
    endless: Running, monkeypatch: pytest.MonkeyPatch, kind: str, point: str
) -> None:
    llm, (path, fields) = endless.llm, KINDS[kind]
    counts, used = llm._driver.scheduler.counts, n_used_pages(llm)
    n_evaluated, n_generated = counts.n_evaluated, counts.n_generated
    points: dict[str, Callable[[], bool]] = {
        "prompt": lambda: counts.n_evaluated > n_evaluated,
        "begin": lambda: counts.n_generated > n_generated,
        "middle": lambda: counts.n_generated > n_generated + 100,
        "end": lambda: counts.n_generated >= n_generated + n_answers(fields) * 39,
    }
    held = Held(llm, points[point], monkeypatch)
    body = body_of(path, LONG if point == "prompt" else SHORT, max_tokens=40 if point == "end" else 6_000, **fields)
    leave(endless, path, body, points[point])
    until(lambda: not llm.telemetry.n_requests)
    assert not held.is_late
    assert held.n_after <= 1 or point == "end"  # where the first may have come to its end by itself
    if point == "prompt":
        assert counts.n_evaluated - n_evaluated < 1000
    until(lambda: not endless.pool.n_users)
    assert n_used_pages(llm) == used


@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_wait_leave_the_queue_and_those_before_them_go_on(one_by_one: Running, kind: str) -> None:
    running, llm, (path, fields) = one_by_one, one_by_one.llm, KINDS[kind]
    used = n_used_pages(llm)
    with running.client().chat.completions.create(
        model="endless", messages=[{"role": "user", "content": SHORT}], stream=True, **GREEDY
    ) as first:
        next(iter(first))
        leave(running, path, body_of(path, SHORT, **fields), lambda: is_queued(llm, fields))
        until(lambda: not llm.telemetry.queue.n_waiting)
        assert llm.telemetry.queue.n_active == 1
        n_generated = llm.telemetry.queue.n_generated
        until(lambda: llm.telemetry.queue.n_generated > n_generated + 5)
    until(lambda: not llm.telemetry.n_requests and not running.pool.n_users)
    assert n_used_pages(llm) == used


@pytest.mark.parametrize("kind", ["kept", "all streamed"])
def test_what_comes_after_is_answered_as_before(endless: Running, kind: str) -> None:
    path, fields = KINDS[kind]
    counts = endless.llm._driver.scheduler.counts
    asked = body_of(path, SHORT, max_tokens=16, **{**fields, "stream": False})
    asked["edgeinfer"] = {**asked["edgeinfer"], "stream_all": False}
    expected = endless.http().post(path, json=asked).json()["edgeinfer"]["answers"]
    n_generated = counts.n_generated
    leave(endless, path, body_of(path, SHORT, **fields), lambda: counts.n_generated > n_generated + 50)
    assert endless.http().post(path, json=asked).json()["edgeinfer"]["answers"] == expected


def test_a_kept_stream_of_all_goes_on_without_its_client_until_it_is_stopped(endless: Running) -> None:
    llm, (path, fields), http = endless.llm, KINDS["all streamed"], endless.http()
    used, n_generated = n_used_pages(llm), llm.telemetry.queue.n_generated
    asked = body_of(path, SHORT, max_tokens=6_000, **fields)
    with http.stream("POST", path, json=asked, headers={"X-Conversation-Id": "four"}) as response:
        next(response.iter_lines())
    until(lambda: llm.telemetry.queue.n_generated > n_generated + 200)
    assert llm.telemetry.n_requests == 4
    assert http.delete("/v1/stream", params={"conv_id": "four"}).is_success
    until(lambda: not llm.telemetry.n_requests and not endless.pool.n_users)
    assert n_used_pages(llm) == used
