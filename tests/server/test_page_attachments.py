"""Text files attached on the page at "/": chosen, dropped and pasted; how the model reads them, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.chat.attachments import attach
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.message_contents import one_text
from edgeinfer.app.sessions.conversation import with_attachments
from edgeinfer.app.sessions.importing import chat_of_json
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.errors import EdgeInferError
from tests.server.chromium_page import (
    ask,
    browser,
    ended,
    faults,
    fits_a_phone,
    opened,
    recorded,
    requires_chromium,
    saved,
)
from tests.server.conftest import Running, served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
FENCES = "A ```` fence\n```\nand no end"
DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  for (const kind of ["dragover", "drop"]) {
    const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector("#transcript").dispatchEvent(event);
    if (kind === "dragover") document.title = `shown: ${document.querySelector("#drop").checkVisibility()}`;
  }
}"""


@pytest.fixture(scope="module")
def guarded(long_model: Path) -> Iterator[Running]:
    """A server with a key."""
    with served(long_model, ServerOptions(port=0, key="secret"), defaults={"max_tokens": 4}) as running:
        yield running


@pytest.fixture
def page(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, guarded, faults) as found:
        yield found


def chips(page: Any) -> list[str]:
    found: list[str] = page.locator("#chips .chip-name").all_inner_texts()
    return found


def content(message: Any) -> str:
    """The text that the server makes of a message."""
    return one_text(part["text"] for part in message["content"])


def test_chosen_and_dropped_files_are_sent_as_the_app_sends_them(page: Any, tmp_path: Path) -> None:
    bodies = recorded(page, {"content": "Read."})
    for name, text in (("notes.md", FENCES), ("empty.txt", ""), ("unwanted.txt", "x\n")):
        (tmp_path / name).write_text(text)
    page.set_input_files("#attached", [tmp_path / name for name in ("notes.md", "empty.txt", "unwanted.txt")])
    page.wait_for_selector("#chips [aria-label='Remove unwanted.txt']")
    page.evaluate(DROP, ["dropped.py", "print('é')\n"])
    page.click("[aria-label='Remove unwanted.txt']")
    page.wait_for_selector("#chips [aria-label='Remove dropped.py']")
    assert chips(page) == ["notes.md", "empty.txt", "dropped.py"]
    assert not page.is_visible("#drop")
    ask(page, "What do they say?")
    files = [Attachment("notes.md", FENCES), Attachment("empty.txt", ""), Attachment("dropped.py", "print('é')\n")]
    assert content(bodies[0]["messages"][0]) == with_attachments("What do they say?", files)
    assert chips(page) == []
    shown = page.locator(".user .attachment")
    assert shown.locator("summary").all_inner_texts() == ["notes.md\n27 B", "empty.txt\n0 B", "dropped.py\n12 B"]
    assert not page.is_visible("text=print('é')")
    shown.nth(2).locator("summary").click()
    page.wait_for_selector("text=print('é')")
    ask(page, "And now?")  # the next question sends them again
    assert content(bodies[1]["messages"][0]) == content(bodies[0]["messages"][0])
    assert [each["content"] for each in bodies[1]["messages"][1:]] == ["Read.", "And now?"]


def test_the_place_to_drop_is_shown(page: Any) -> None:
    page.evaluate(DROP, ["a.txt", "x"])
    assert page.title() == "shown: true"


def test_the_server_reads_them(page: Any, guarded: Running) -> None:
    """The real prompt: what the page sends is as long as what the app would send."""
    page.evaluate(DROP, ["a.txt", "the hen " * 50])
    page.wait_for_selector(".chip")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "the men")
    message = {"role": "user", "content": with_attachments("the men", [Attachment("a.txt", "the hen " * 50)])}
    sent = {"messages": json.loads(asked.value.post_data)["messages"]}
    http = guarded.http()
    of_app, of_page = (
        http.post("/apply-template", json=body).json()["prompt"] for body in ({"messages": [message]}, sent)
    )
    assert of_page == of_app


def test_a_long_text_that_is_pasted_becomes_a_file(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    bodies = recorded(page, {"content": "Long."})
    text = "word " * 1000
    page.focus("#input")
    for copied in ("short", text, text + "again"):
        page.evaluate("(text) => navigator.clipboard.writeText(text)", copied)
        page.keyboard.press("Control+V")
    page.wait_for_selector("#chips [aria-label='Remove pasted text 2']")
    assert chips(page) == ["pasted text 1", "pasted text 2"]
    assert "paste again to have it in the message" in page.inner_text("#attach-note")
    page.keyboard.press("Control+V")
    assert page.input_value("#input") == f"short{text}again"
    assert chips(page) == ["pasted text 1"]
    page.fill("#input", "")
    page.keyboard.press("Enter")  # files alone are a question too
    ended(page)
    assert content(bodies[0]["messages"][0]) == with_attachments("", [Attachment("pasted text 1", text)])
    assert page.input_value("#title") == "pasted text 1"


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        (
            "photo.png",
            b"\x89PNG\r\n\x1a\n\0\0\0",
            "photo.png is an image, and this model reads text alone; choose a model that sees",
        ),
        ("data.bin", b"\0\1\2", "data.bin is not text; only text files can be attached"),
        ("big.txt", b"x" * 1_000_001, "big.txt has 1.0 MB, and a file may have 1.0 MB; attach a part of it"),
    ],
    ids=["image", "bytes", "large"],  # a name as long as a file would not fit in the environment of a browser
)
def test_what_cannot_be_attached_is_named(page: Any, tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.txt").write_text("good")
    page.set_input_files("#attached", [tmp_path / name, tmp_path / "good.txt"])
    page.wait_for_selector(f"#attach-note:has-text('{name}')")
    assert page.inner_text("#attach-note") == told
    assert chips(page) == ["good.txt"]
    with pytest.raises(EdgeInferError):  # the app refuses it too
        attach(tmp_path / name)


def test_files_of_a_message_have_a_limit_together(page: Any, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 900_000)
    page.set_input_files("#attached", sorted(tmp_path.glob("*.txt")))
    page.wait_for_selector("#attach-note:has-text('c.txt was left out')")
    assert chips(page) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "latin-1"])
def test_texts_are_read_as_the_app_reads_them(page: Any, tmp_path: Path, encoding: str) -> None:
    bodies = recorded(page, {"content": "Read."})
    path = tmp_path / "a.txt"
    path.write_bytes((b"\xfe\xff" if encoding == "utf-16-be" else b"") + "Grüße, ça va?\r\n".encode(encoding))
    page.set_input_files("#attached", path)
    page.wait_for_selector(".chip")
    read = attach(path, tmp_path)
    assert page.inner_text("#attach-note") == "\n".join(read.notices)
    ask(page, "Hi")
    assert content(bodies[0]["messages"][0]) == with_attachments("Hi", read.attachments)
    assert "Grüße, ça va?" in content(bodies[0]["messages"][0])


def test_files_stay_with_an_edited_question_and_go_to_the_app(page: Any, tmp_path: Path) -> None:
    bodies = recorded(page, {"content": "Read."})
    for name in ("kept.txt", "dropped.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    page.set_input_files("#attached", [tmp_path / "kept.txt", tmp_path / "dropped.txt"])
    page.wait_for_selector("#chips [aria-label='Remove dropped.txt']")
    ask(page, "First")
    page.click(".user >> text=Edit")
    page.click(".editor [aria-label='Remove dropped.txt']")
    page.fill(".editor textarea", "Second")
    page.keyboard.press("Enter")
    ended(page)
    kept, both = Attachment("kept.txt", "kept.txt\n"), Attachment("dropped.txt", "dropped.txt\n")
    assert content(bodies[1]["messages"][0]) == with_attachments("Second", [kept])
    _, text = saved(page, "#export-markdown")
    assert "File: kept.txt\n```\nkept.txt\n```\n\nSecond" in text
    _, text = saved(page, "#export-json")
    assert [each.attachments for each in chat_of_json(text)[1] if each.role == "user"] == [(kept, both), (kept,)]
    page.set_input_files("#file", {"name": "chat.json", "mimeType": "application/json", "buffer": text.encode()})
    page.wait_for_selector(".user .attachment:has-text('kept.txt')")
    page.reload()
    page.wait_for_selector(".user .attachment:has-text('kept.txt')")


def test_chips_fit_a_phone(page: Any, tmp_path: Path) -> None:
    recorded(page, {"content": "Read."})
    page.set_viewport_size({"width": 390, "height": 700})
    paths = [tmp_path / f"{'long_' * 20}{number}.txt" for number in range(9)]
    for path in paths:
        path.write_text("x" * 300)
    page.set_input_files("#attached", paths)
    page.wait_for_selector("#chips li:nth-child(9)")
    assert fits_a_phone(page)
    assert page.locator("#input").bounding_box()["y"] < 700 - 60
    ask(page, "Hi")
    page.click(".user .attachment >> nth=0")
    assert fits_a_phone(page)
    page.click(".user >> text=Edit")
    page.wait_for_selector(".editor .chip")
    assert fits_a_phone(page)
