"""Tools of MCP servers on the page at "/": what is called, and what is asked before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.records import MadeCall, ToolRound
from edgeinfer.app.sessions.store import SessionStore
from tests.server.chromium_page import ask, browser, faults, forgets, opened, requires_chromium
from tests.server.conftest import Running, good_tools, served
from tests.unit.app.mcp.conftest import late_server, restless

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults", "restless"]  # fixtures


@pytest.fixture(scope="module")
def tooled(long_model: Path) -> Iterator[Running]:
    """A server with tools of a server of the official MCP package."""
    options = ServerOptions(port=0, key="secret", tools=(good_tools("fail"),))
    with served(long_model, options) as running:
        yield running


@pytest.fixture
def page(browser: Any, tooled: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, tooled, faults) as found:
        assert any(has_tools(found) or found.wait_for_timeout(200) for _ in range(300))  # their server is starting
        yield found


def has_tools(page: Any) -> bool:
    page.click("#settings-open")
    n_tools: int = page.locator("#mcp-tools code:has-text('good/add')").count()
    page.keyboard.press("Escape")
    page.wait_for_selector("#settings", state="hidden")
    return n_tools > 0


def in_turn(page: Any, *answers: str | list[tuple[str, str]]) -> list[Any]:
    """Answer the page's requests with these answers in turn: a text, or calls by name and arguments."""
    bodies: list[Any] = []

    def fulfil(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        answer = answers[len(bodies) - 1]
        calls = [] if isinstance(answer, str) else answer
        delta: dict[str, object] = {"content": answer} if isinstance(answer, str) else {}
        delta["tool_calls"] = [
            {
                "index": at,
                "id": f"c{len(bodies)}{at}",
                "type": "function",
                "function": {"name": name, "arguments": text},
            }
            for at, (name, text) in enumerate(calls)
        ]
        parts = [(delta, None), ({}, "tool_calls" if calls else "stop")]
        chunks = [{"choices": [{"index": 0, "delta": one, "finish_reason": reason}]} for one, reason in parts]
        text = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=text)

    forgets(page)
    page.route("**/v1/chat/completions", fulfil)
    return bodies


def results(body: Any) -> list[str]:
    """What a request tells of calls."""
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


ADD = ("good_add", '{"a": 1, "b": 2}')
PROCESS = ("good_process", "{}")


def test_calls_of_tools_are_made_once_the_person_allows_them(page: Any) -> None:
    called: list[str] = []
    page.on("request", lambda request: called.append(request.url) if request.url.endswith("/mcp/call") else None)
    bodies = in_turn(page, [ADD, PROCESS], "It is 3.")
    page.fill("#input", "What is 1 + 2?")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-label='May process be called?']")
    assert "good_add" in [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert "May add of good be called with this?" in page.inner_text(".call:first-child .question")
    assert called == []
    page.click("[aria-label='May add be called?'] >> text=Allow")
    page.wait_for_selector(".call-end:has-text('gave: 3')")
    page.click("[aria-label='May process be called?'] >> text=Refuse")
    page.wait_for_selector("text=It is 3.")
    assert results(bodies[1]) == ["3", "The user did not allow this call."]
    assert len(called) == 1
    assert [call["id"] for call in bodies[1]["messages"][1]["tool_calls"]] == ["c10", "c11"]
    assert not page.is_visible(".message.tool .plain")
    page.click(".message.tool summary")
    assert page.inner_text(".message.tool .plain") == "3"


def test_trusted_tools_are_listed_and_called_at_once(page: Any) -> None:
    bodies = in_turn(
        page, [("good_fail", '{"reason": "not today"}')], [ADD], [ADD], "Done.", [ADD], "Refused.", "No tools."
    )
    page.fill("#input", "Fail")
    page.keyboard.press("Enter")
    page.click("[aria-label='May add be called?'] >> text=Always")
    page.wait_for_selector("text=Done.")
    assert "not today" in results(bodies[1])[0]
    assert results(bodies[3])[1:] == ["3", "3"]
    page.click("#settings-open")
    boxes = page.locator("#mcp-tools input").evaluate_all(
        "all => all.map((one) => [one.value, one.checked, one.disabled])"
    )
    assert [box for box in boxes if box[1]] == [["good/add", True, False], ["good/fail", True, True]]
    page.uncheck("#mcp-tools [value='good/add']")
    page.click("#settings >> text=Save")
    page.fill("#input", "Again")
    page.keyboard.press("Enter")
    page.click("[aria-label='May add be called?'] >> text=Refuse")
    page.wait_for_selector("text=Refused.")
    page.click("#settings-open")
    page.uncheck("#mcp-used")
    page.click("#settings >> text=Save")
    ask(page, "Without")
    assert "tools" not in bodies[-1]


def test_calls_of_a_chat_of_the_app_are_shown_and_sent(page: Any, tmp_path: Path) -> None:
    rounds = (ToolRound("See:", (MadeCall("add", ADD[1], "3"), MadeCall("fail", "{}", "no", failed=True)), "Hm."),)
    with SessionStore(tmp_path / "chats.db") as store:
        session = store.create(None, None).number
        question = store.add(session, None, "user", "What is it?")
        store.add(session, question.number, "assistant", "It is 3.", rounds=rounds)
        page.set_input_files("#file", export_chat(store, session, tmp_path / "chat.json"))
    page.wait_for_selector("text=It is 3.")
    assert page.locator(".call-end").all_inner_texts() == ["gave: 3", "failed: no"]
    bodies = in_turn(page, "Yes.")
    ask(page, "Sure?")
    assert [message["role"] for message in bodies[0]["messages"]] == [
        "user", "assistant", "tool", "tool", "assistant", "user"
    ]  # fmt: skip
    assert results(bodies[0]) == ["3", "no"]


def test_a_call_is_stopped_and_a_reloaded_page_calls_nothing_by_itself(page: Any) -> None:
    in_turn(page, [("good_hang", "{}"), ("good_fail", '{"reason": "x"}')])
    page.fill("#input", "Hang")
    page.keyboard.press("Enter")
    page.click("[aria-label='May hang be called?'] >> text=Allow")
    page.wait_for_selector(".note:has-text('calling good_hang')")
    page.reload()
    page.wait_for_selector("#model option:nth-child(2)", state="attached")
    page.wait_for_selector("[aria-label='May hang be called?']")
    page.click("[aria-label='May hang be called?'] >> text=Allow")
    page.wait_for_selector(".note:has-text('calling good_hang')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".call-end:has-text('The user stopped this call.')")
    assert page.is_visible("#send")


def test_servers_that_failed_are_tried_again_with_each_question(
    browser: Any, long_model: Path, faults: list[str], restless: None, tmp_path: Path
) -> None:
    file, late = tmp_path / "file", ("late_add", ADD[1])
    options = ServerOptions(port=0, key="secret", tools=(late_server(file, trusted=None),))
    with served(long_model, options) as running, opened(browser, running, faults) as page:
        page.wait_for_selector("#notice:has-text('Tools are missing: late ended')")
        bodies = in_turn(page, "No tools.", "None.", [late], "It is 3.")
        ask(page, "Add")
        file.write_text("closed today")
        ask(page, "Add")
        page.wait_for_selector("#notice:has-text('closed today')")
        file.write_text("")
        page.fill("#input", "Again")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=It is 3.")
        assert ["tools" in body for body in bodies] == [False, False, True, True]
        assert results(bodies[3]) == ["3"]
        assert page.inner_text("#tools") == "9 tools"
        assert page.inner_text("#notice") == "Tools have started: late"
