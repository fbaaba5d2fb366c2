"""The page at "/" in Chromium: as a person uses it, over a server with a key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.wrong_keys import FREE_KEYS
from edgeinfer.app.sessions.importing import chat_of_json
from tests.server.chromium_page import ask, browser, ended, faults, opened, recorded, requires_chromium, saved
from tests.server.conftest import Running, served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
ANSWER = """**Bold** <img src=x onerror="document.title='broken in'"> [link](https://example.org)
[bad](javascript:alert(1))

```python
print("<b>")
```
"""


@pytest.fixture(scope="module")
def guarded(long_model: Path) -> Iterator[Running]:
    """A server with a key, whose answers end only at their limit."""
    options = ServerOptions(port=0, key="secret")
    with served(long_model, options, defaults={"temperature": 0.0, "max_tokens": 24}) as running:
        yield running


@pytest.fixture
def page(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, guarded, faults) as found:
        yield found


def texts(page: Any) -> list[str]:
    """The texts of the branch that is shown."""
    found: list[str] = page.locator(".message > .plain, .message > .markdown").all_inner_texts()
    return found


def test_a_chat_with_branches_is_kept_and_can_be_deleted(page: Any) -> None:
    ask(page, "First question")
    assert "tok/s · 24 tokens · prompt" in page.inner_text(".figures")
    assert page.inner_text("#status").startswith("Answer: ")
    page.click(".assistant >> text=Regenerate")
    ended(page)
    page.wait_for_selector(".assistant .branches:has-text('2/2')")
    page.click("[aria-label='Previous branch']")
    page.wait_for_selector(".assistant .branches:has-text('1/2')")
    page.focus("#input")
    page.keyboard.press("ArrowUp")
    page.fill(".editor textarea", "Second question")
    page.keyboard.press("Enter")
    ended(page)
    page.wait_for_selector(".user .branches:has-text('2/2')")
    page.reload()
    page.wait_for_selector(".user .branches:has-text('2/2')")
    assert texts(page)[0] == "Second question"
    page.click(".user [aria-label='Previous branch']")
    assert texts(page)[0] == "First question"
    name, text = saved(page, "#export-json")
    session, messages = chat_of_json(text)
    assert (name, session.title, len(messages)) == ("First question.json", "First question", 5)
    name, text = saved(page, "#export-markdown")
    assert (name, text.startswith("# First question\n\n## User\n\nFirst question\n\n## Assistant (")) == (
        "First question.md",
        True,
    )
    page.click("#delete-all")
    page.wait_for_selector(".empty")
    assert page.evaluate("[Object.keys(localStorage).length, sessionStorage.length]") == [0, 0]


def test_an_answer_is_stopped_and_goes_on(page: Any, guarded: Running) -> None:
    page.click("#settings-open")
    page.fill("[name=max_tokens]", "20000")
    page.fill("[name=system]", "Be brief.")
    page.click("#settings >> text=Save")
    page.fill("#input", "Go on for long")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".assistant .markdown")).to_have_text(re.compile(".{20}"), timeout=60_000)
    page.keyboard.press("Escape")
    ended(page)
    assert page.inner_text(".assistant .note") == "stopped"
    before = page.evaluate("JSON.parse(Object.entries(localStorage).find(([key]) => key.includes('.chat.'))[1])")
    bodies = recorded(page, {"content": "and on."})
    page.click("text=Continue")
    ended(page)
    text = before["messages"][1]["text"]
    assert [message["content"] for message in bodies[0]["messages"]] == ["Be brief.", "Go on for long", text]
    after = page.evaluate("JSON.parse(Object.entries(localStorage).find(([key]) => key.includes('.chat.'))[1])")
    assert after["messages"][1]["text"] == f"{text}and on."
    http = guarded.http()
    assert any(
        not any(slot["is_processing"] for slot in http.get("/slots").json()) or page.wait_for_timeout(100)
        for _ in range(300)
    )  # the server stops too


def test_thoughts_are_folded_and_text_is_no_html(page: Any) -> None:
    recorded(page, {"role": "assistant", "content": ""}, {"reasoning_content": "I think so."}, {"content": ANSWER})
    ask(page, "<b>Bold?</b>")
    assert page.inner_text(".user > .plain") == "<b>Bold?</b>"
    assert page.inner_text(".thoughts summary") == "thought, 3 words"
    assert not page.is_visible("text=I think so.")
    page.keyboard.press("Alt+KeyT")
    assert page.is_visible("text=I think so.")
    assert page.locator(".markdown strong").inner_text() == "Bold"
    assert page.locator(".markdown img").count() == 0
    assert "onerror" in page.inner_text(".markdown")
    assert "broken in" not in page.title()
    links = page.locator(".markdown a").evaluate_all("all => all.map(({href, rel, target}) => [href, rel, target])")
    assert links == [["https://example.org/", "noopener noreferrer", "_blank"]]
    assert page.inner_text(".figures") == (
        "16.4 tok/s · 1,312 tokens · prompt 65 (20 cached) · first token after 820 ms · prefill 54.9 tok/s"
    )
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("[aria-label='Copy code']")
    page.wait_for_selector(".code >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>")\n'


def test_calls_are_shown_and_their_results_sent(page: Any) -> None:
    tool = '[{"name": "weather", "parameters": {"type": "object"}}]'
    page.click("#settings-open")
    page.fill("[name=tools]", "[{")
    page.click("#settings >> text=Save")
    assert "not valid JSON" in page.inner_text("#settings .fault")
    page.fill("[name=tools]", tool)
    page.fill("[name=temperature]", "0.5")
    page.select_option("[name=thinking]", "off")
    page.click("#settings >> text=Save")
    call = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    bodies = recorded(page, {"role": "assistant", "content": ""}, {"tool_calls": [call]}, reason="tool_calls")
    ask(page, "Weather?")
    assert bodies[0]["tools"] == [{"type": "function", "function": json.loads(tool)[0]}]
    assert (bodies[0]["temperature"], bodies[0]["enable_thinking"]) == (0.5, False)
    assert '"city": "Oslo"' in page.inner_text(".call")
    bodies = recorded(page, {"content": "Four degrees."})
    page.fill("[aria-label='Result of weather']", "4")
    page.click("text=Send results")
    ended(page)
    page.wait_for_selector("text=Four degrees.")
    assert bodies[0]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "4"}
    assert bodies[0]["messages"][-2]["tool_calls"] == [{name: value for name, value in call.items() if name != "index"}]


def test_what_fails_is_told_and_can_be_tried_again(page: Any, faults: list[str]) -> None:
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=503, json={"error": {"message": "too many"}})
    )
    ask(page, "Hi")
    assert page.inner_text(".note.fault") == "too many"
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click(".assistant >> text=Regenerate")
    ended(page)
    assert "does not answer" in page.inner_text(".note.fault")
    recorded(page, {"content": "Hello"})
    page.click(".assistant >> text=Regenerate")
    ended(page)
    assert texts(page) == ["Hi", "Hello"]  # failed answers without text are no branches
    assert page.locator(".branches").count() == 0
    faults.clear()  # the failed requests


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1200, "light")])
def test_it_fits_the_screen_in_both_themes(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.emulate_media(color_scheme=scheme)
    recorded(page, {"content": f"{ANSWER}\n\n| a | b |\n|---|---|\n| {'x' * 90} | {'y' * 90} |\n\n{'z' * 300}"})
    ask(page, "w" * 200)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(
        "document.querySelector('#transcript').scrollWidth <= document.querySelector('#transcript').clientWidth"
    )
    back = [
        int(value) for value in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    ]
    assert (max(back) < 64) == (scheme == "dark")
    assert page.is_visible("#new") == (width > 800)
    if width < 800:
        page.click("#menu")
        page.click("#new")
        page.wait_for_selector(".empty")
        page.wait_for_selector("#new", state="hidden")


def test_everything_has_a_name_and_can_be_reached_by_keys(page: Any, check_names: Callable[[Any], list[str]]) -> None:
    recorded(page, {"reasoning_content": "Hm."}, {"content": ANSWER})
    ask(page, "Hi")
    assert check_names(page) == []
    page.click("#settings-open")
    assert check_names(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("#settings", state="hidden")
    page.focus("a, button, input, select, textarea, summary, [tabindex]")  # the first that the keyboard reaches
    assert page.inner_text(":focus") == "Skip to the input"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "input"
    assert page.get_attribute("#status", "role") == "status"
    assert page.get_attribute("#notice", "role") == "alert"


@pytest.fixture
def check_names() -> Callable[[Any], list[str]]:
    """Finds visible controls that screen readers have no name for."""
    code = """() => [...document.querySelectorAll("button, input, select, textarea, summary, dialog[open], [role=log]")]
      .filter((each) => each.checkVisibility())
      .filter((each) => !(each.innerText || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
        || each.labels?.[0]?.innerText))
      .map((each) => each.outerHTML.slice(0, 80))"""

    def found(page: Any) -> list[str]:
        names: list[str] = page.evaluate(code)
        return names

    return found


def test_the_right_key_is_taken_after_too_many_wrong_ones(browser: Any, guarded: Running, faults: list[str]) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    statuses = [httpx.get(f"{guarded.url}/v1/models", headers=wrong).status_code for _ in range(FREE_KEYS + 1)]
    assert statuses[-1] == 429
    with opened(browser, guarded, faults, refused="too many wrong keys"):
        pass
