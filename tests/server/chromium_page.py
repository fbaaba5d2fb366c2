"""The page at "/" in Chromium: fixtures and steps of its tests."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.conftest import Running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

TIMINGS = {
    "cache_n": 20, "prompt_n": 45, "prompt_ms": 820.0, "prompt_per_second": 54.9, "predicted_n": 1312,
    "predicted_ms": 8e4, "predicted_per_second": 16.4,
}  # fmt: skip
"""What a server says at the end of a recorded answer."""


def requires_chromium() -> pytest.MarkDecorator:
    """Skips tests where there is none."""
    return pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        yield found
        found.close()


@pytest.fixture
def faults() -> list[str]:
    """What the page or its policy complains of."""
    return []


@contextmanager
def opened(
    browser: Any, guarded: Running, faults: list[str], *, refused: str = "the key is wrong|too many wrong keys"
) -> Iterator[Any]:
    """The page in a fresh browser, with the key given; it may ask this server alone, and nothing may go wrong in it.

    `refused`: what it says of a wrong key before, as a regular expression.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True)
    found = context.new_page()
    found.set_default_timeout(60_000)
    asked: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    found.on("request", lambda request: asked.append(request.url))
    found.on("dialog", lambda dialog: dialog.accept())
    found.goto(guarded.url)
    found.fill("#key input", "wrong")
    found.keyboard.press("Enter")
    found.wait_for_selector(f"#key .fault:text-matches('{refused}')")
    found.fill("#key input", "secret")
    found.keyboard.press("Enter")
    found.wait_for_selector("#key", state="hidden")
    found.wait_for_selector("#model option:nth-child(2)", state="attached")
    faults[:] = [fault for fault in faults if "401" not in fault and "429" not in fault]
    yield found
    context.close()
    assert faults == []
    assert [url for url in asked if not url.startswith((guarded.url, "blob:" + guarded.url))] == []


def ask(page: Any, text: str) -> None:
    """Ask a question and wait for the end of its answer."""
    page.fill("#input", text)
    page.keyboard.press("Enter")
    ended(page)


def ended(page: Any) -> None:
    page.wait_for_selector("#send", state="visible")
    page.wait_for_selector(".message:last-child footer .actions")


def becomes(page: Any, expression: str, value: object) -> None:
    """Wait until an expression has a value; the page's policy forbids Playwright's own way, which evaluates in it."""
    ends_s = time.monotonic() + 60
    while (found := page.evaluate(expression)) != value:
        assert time.monotonic() < ends_s, f"{expression} is {found}"
        page.wait_for_timeout(50)


def recorded(page: Any, *deltas: dict[str, object], reason: str = "stop") -> list[Any]:
    """Answer the page's requests with these deltas; returns their bodies."""
    bodies: list[Any] = []
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "model": "m"} for delta in deltas]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "model": "m", "timings": TIMINGS}
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in [*chunks, last]) + "data: [DONE]\n\n"

    def fulfil(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        route.fulfill(content_type="text/event-stream", body=text)

    forgets(page)
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", fulfil)
    return bodies


def forgets(page: Any) -> None:
    """Let the page believe that the server forgets the streams of recorded answers."""
    page.route("**/v1/stream?*", lambda route: route.fulfill(status=204))


def saved(page: Any, button: str) -> tuple[str, str]:
    """The name and the text of the file that a button saves."""
    page.click("#export summary")
    with page.expect_download() as download:
        page.click(button)
    return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")


def fits_a_phone(page: Any) -> bool:
    """Whether nothing is wider than the screen, nor the messages than their place."""
    code = """["html", "#transcript", "#composer", "#side"].every((name) => {
      const found = document.querySelector(name);
      return found.scrollWidth <= found.clientWidth;
    }) && innerWidth <= 390"""
    return bool(page.evaluate(code))
