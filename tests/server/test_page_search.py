"""The search over all chats on the page at "/"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.sessions.exporting import json_text
from edgeinfer.app.sessions.records import Attachment, KeptMessage, KeptSession
from tests.server.chromium_page import browser, faults, fits_a_phone, opened, requires_chromium
from tests.server.conftest import Running, served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
FILLER = "Nothing of note. " * 200


@pytest.fixture(scope="module")
def guarded(long_model: Path) -> Iterator[Running]:
    """A server with a key."""
    with served(long_model, ServerOptions(port=0, key="secret")) as running:
        yield running


@pytest.fixture
def page(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    """The page with three chats, of which the last one is open."""
    with opened(browser, guarded, faults) as found:
        keep(
            found,
            "Lighthouses",
            ("user", None, "Name a lighthouse"),
            ("assistant", 1, f"{FILLER} The Crème lighthouse stands in Brest. {FILLER}"),
            ("assistant", 1, "Another: the Eddystone lighthouse."),
            ("user", 3, "More"),
            ("assistant", 4, FILLER),
        )
        keep(found, "Hens", ("user", None, "What do hens eat?"), ("assistant", 1, "Corn. <b>Grit</b> helps."))
        keep(found, "Files of Brest", ("user", None, "Read it"), files=(Attachment("harbour.txt", "x"),))
        yield found


def keep(page: Any, title: str, *said: tuple[str, int | None, str], files: tuple[Attachment, ...] = ()) -> None:
    """Import a chat of the app."""
    messages = [
        KeptMessage(number, 1, parent, role, text, "whole", 5.0, attachments=files)  # type: ignore[arg-type]
        for number, (role, parent, text) in enumerate(said, 1)
    ]
    text = json_text(KeptSession(1, title, None, "m", len(said), 5.0, 6.0), messages)
    page.set_input_files("#file", {"name": "chat.json", "mimeType": "application/json", "buffer": text.encode()})
    page.wait_for_selector(f"#chats .current:has-text('{title}')")


def find(page: Any, query: str, found: str) -> list[str]:
    """Search, and what is listed once `found` tells how much that is."""
    page.fill("#search", "")
    page.wait_for_selector("#found", state="hidden")
    page.fill("#search", query)
    page.wait_for_selector(f"#found:has-text('{found}')")
    listed: list[str] = page.locator("#chats .result").all_inner_texts()
    return listed


def test_words_are_found_in_texts_titles_and_names_of_files(page: Any) -> None:
    assert find(page, "EDDYSTONE another", "1 place in 1 chat") == ["Lighthouses\nAnother: the Eddystone lighthouse."]
    assert page.locator("#chats mark").all_inner_texts() == ["Another", "Eddystone"]
    assert find(page, "creme", "1 place in 1 chat")[0].startswith("Lighthouses\n…")
    assert page.locator("#chats mark").all_inner_texts() == ["Crème"]
    assert [each.split("\n")[0] for each in find(page, "brest", "2 places in 2 chats")] == [
        "Files of Brest", "Lighthouses"
    ]  # fmt: skip
    assert find(page, "harbour", "1 place in 1 chat") == ["Files of Brest\nharbour.txt Read it"]
    assert find(page, "<b>", "1 place") == ["Hens\nCorn. <b>Grit</b> helps."]
    assert find(page, "hens lighthouse", "Nothing found.") == []


def test_keys_open_a_message_in_its_branch(page: Any) -> None:
    page.focus("#input")
    page.keyboard.press("Control+K")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("lighthouse")
    page.wait_for_selector("#found:has-text('3 places in 1 chat')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(":focus").startswith("Lighthouses\n…")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.found:has-text('stands in Brest')")
    assert page.inner_text(".assistant .branches") == "‹1/2›".replace("‹", "‹\n").replace("›", "\n›")
    box, place = (page.locator(name).bounding_box() for name in (".message.found", "#transcript"))
    assert box["y"] < place["y"] + place["height"]
    assert box["y"] + box["height"] > place["y"]
    assert page.input_value("#title") == "Lighthouses"
    page.keyboard.press("Control+K")  # the words are still there, and Enter opens the first place
    page.keyboard.type("eddystone")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.found:has-text('Eddystone')")
    page.wait_for_selector(".assistant .branches:has-text('2/2')")
    page.keyboard.press("Control+K")
    page.keyboard.press("Escape")
    assert page.input_value("#search") == ""
    assert page.locator("#chats .chat").all_inner_texts() == ["Files of Brest", "Hens", "Lighthouses"]


def test_a_found_message_is_scrolled_to(page: Any) -> None:
    find(page, "name lighthouse", "1 place")
    page.click("#chats .result")
    page.wait_for_selector(".message.found")
    box, place = (page.locator(name).bounding_box() for name in (".message.found", "#transcript"))
    assert place["y"] <= box["y"] < place["y"] + place["height"]


def test_it_is_used_on_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    page.click("#menu")
    assert len(find(page, "lighthouse", "3 places in 1 chat")) == 3
    page.click("#new")  # ends the search
    page.click("#menu")
    assert page.locator("#chats .chat").count() == 3
    assert len(find(page, "lighthouse", "3 places in 1 chat")) == 3
    assert fits_a_phone(page)
    page.click("#chats .result:has-text('Eddystone')")
    page.wait_for_selector(".message.found:has-text('Eddystone')")
    page.wait_for_selector("#search", state="hidden")
    assert fits_a_phone(page)


def test_many_and_long_chats_are_searched_soon(page: Any) -> None:
    """What is typed is searched while chats fill what the browser keeps."""
    chats = [
        {"id": f"n{n}", "title": f"Chat {n}", "changed_s": n, "leaf": 1, "settings": {},
         "messages": [{"number": 1, "parent": None, "role": "user", "text": f"{'ﬁller é ' * 2000} needle {n}"}]}
        for n in range(120)
    ]  # fmt: skip
    code = "(all) => all.forEach((chat) => localStorage.setItem(`edgeinfer.chat.${chat.id}`, JSON.stringify(chat)))"
    page.evaluate(code, chats)
    assert len(find(page, "needle", "120 places in 120 chats; the first 100 are shown")) == 100
