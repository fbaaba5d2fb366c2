"""The page at "/" in Chromium: fixtures and steps of its tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.conftest import Running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def requires_chromium() -> pytest.MarkDecorator:
    """Skips tests where there is none."""
    return pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def faults() -> list[str]:
    """What the page or its policy complains of."""
    return []


@contextmanager
def opened(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    """The page in a fresh browser, with the key given; it may ask this server alone, and nothing may go wrong in it."""
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
    found.wait_for_selector("#key .fault:has-text('the key is wrong')")
    found.fill("#key input", "secret")
    found.keyboard.press("Enter")
    found.wait_for_selector("#key", state="hidden")
    found.wait_for_selector("#model option:nth-child(2)", state="attached")
    faults[:] = [fault for fault in faults if "401" not in fault]
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
