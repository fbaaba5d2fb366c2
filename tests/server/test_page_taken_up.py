"""The page at "/" takes up answers that went on without it: after a reload, in another tab, on a broken connection."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.server.chromium_page import browser, ended, faults, forgets, opened, requires_chromium
from tests.server.conftest import Running, served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
N_TOKENS = 4000
QUESTION = "Go on for long"


@pytest.fixture(scope="module")
def guarded(long_model: Path) -> Iterator[Running]:
    """A server with a key, whose answers take a while."""
    options = ServerOptions(port=0, key="secret")
    with served(long_model, options, defaults={"temperature": 0.0, "max_tokens": N_TOKENS}) as running:
        yield running


@pytest.fixture
def page(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, guarded, faults) as found:
        yield found


@pytest.fixture
def asked(page: Any) -> list[tuple[str, str]]:
    """What any tab asks the server for from now on: methods and paths."""
    found: list[tuple[str, str]] = []
    page.context.on("request", lambda request: found.append((request.method, request.url)))
    return found


def begin(page: Any) -> None:
    """Ask, and wait until a part of the answer is there."""
    page.fill("#input", QUESTION)
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".assistant .markdown")).to_have_text(re.compile(".{20}"), timeout=60_000)
    assert page.is_visible("#stop")


def kept(page: Any) -> dict[str, Any]:
    """The answer as the browser keeps it."""
    code = "JSON.parse(Object.entries(localStorage).find(([key]) => key.includes('.chat.'))[1]).messages.at(-1)"
    message: dict[str, Any] = page.evaluate(code)
    return message


def whole_answer(guarded: Running) -> str:
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    choices = guarded.http().post("/v1/chat/completions", json=body).json()["choices"]
    text: str = choices[0]["message"]["content"]
    return text


def n_asked(asked: list[tuple[str, str]], method: str, path: str) -> int:
    return sum(each == method and path in url for each, url in asked)


def assert_taken_up(
    page: Any, guarded: Running, asked: list[tuple[str, str]], n_resumed: tuple[int, ...] = (1,)
) -> None:
    """The whole answer is there, was asked for once, and the server keeps nothing of it."""
    ended(page)
    message = kept(page)
    assert (message["state"], "stream" in message) == ("cut", False)
    assert message["figures"]["n_generated"] == N_TOKENS
    assert message["text"] == whole_answer(guarded)
    assert n_asked(asked, "POST", "/chat/completions") == 1
    assert n_asked(asked, "GET", "/v1/stream") in n_resumed
    (url,) = [url for method, url in asked if method == "DELETE"]
    assert guarded.http().get(url).status_code == 404
    assert page.evaluate("sessionStorage.getItem('edgeinfer.stream')") is None


def test_after_a_reload(page: Any, guarded: Running, asked: list[tuple[str, str]]) -> None:
    begin(page)
    page.reload()
    page.wait_for_selector("#stop", state="visible")
    assert_taken_up(page, guarded, asked)


def test_in_another_tab(page: Any, guarded: Running, asked: list[tuple[str, str]]) -> None:
    begin(page)
    page.goto("about:blank")
    other = page.context.new_page()
    other.goto(guarded.url)
    other.fill("#key input", "secret")
    other.keyboard.press("Enter")
    assert_taken_up(other, guarded, asked, n_resumed=(1, 2))  # one more if it asks before it has the key


def test_not_while_its_own_tab_is_there(page: Any, guarded: Running, asked: list[tuple[str, str]]) -> None:
    begin(page)
    other = page.context.new_page()
    other.goto(guarded.url)
    other.fill("#key input", "secret")
    other.keyboard.press("Enter")
    ended(page)
    assert n_asked(asked, "GET", "/v1/stream") == 0
    assert kept(page)["text"] == whole_answer(guarded)


def test_it_can_be_stopped_after_a_reload(page: Any, guarded: Running, asked: list[tuple[str, str]]) -> None:
    begin(page)
    page.reload()
    page.wait_for_selector("#stop", state="visible")
    page.keyboard.press("Escape")
    ended(page)
    assert page.inner_text(".assistant .note") == "stopped"
    assert n_asked(asked, "DELETE", "/v1/stream") == 1
    http = guarded.http()
    assert any(
        not any(slot["is_processing"] for slot in http.get("/slots").json()) or page.wait_for_timeout(100)
        for _ in range(300)
    )


def test_what_the_server_has_forgotten_has_stopped(page: Any, faults: list[str]) -> None:
    begin(page)
    gone = {"error": {"message": "there is no such stream"}}
    page.route("**/v1/stream?*", lambda route: route.fulfill(status=404, json=gone))
    page.reload()
    ended(page)
    assert page.inner_text(".assistant .note") == "stopped"
    assert len(kept(page)["text"]) >= 20
    assert page.is_visible("text=Continue")
    faults.clear()  # the request that found nothing


def test_a_broken_connection_is_no_end(page: Any) -> None:
    parts = ["First, ", "second, ", "third."]
    events = [f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': part}}]})}\n\n" for part in parts]
    kind = "text/event-stream"
    forgets(page)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type=kind, body="".join(events[:2])))
    whole = "".join(events) + "data: [DONE]\n\n"
    page.route("**/v1/stream?*", lambda route: route.fulfill(content_type=kind, body=whole))
    page.fill("#input", QUESTION)
    page.keyboard.press("Enter")
    ended(page)
    assert (kept(page)["text"], kept(page)["state"]) == ("First, second, third.", "whole")
