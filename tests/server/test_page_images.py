"""Images on the page at "/": chosen, dropped, pasted, shown, kept, made smaller, and only where the model sees."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.models.store import path_model
from tests.server.chromium_page import (
    ask,
    becomes,
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
from tests.server.test_images import LOADING, PHOTO, SEEING, file_of, url_of
from tests.server.test_page_attachments import chips

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
DROP = """(url) => {
  const blob = new Blob([Uint8Array.from(atob(url.split(",")[1]), (one) => one.charCodeAt(0))]);
  const data = new DataTransfer();
  data.items.add(new File([blob], "dropped.png", { type: "image/png" }));
  for (const kind of ["dragover", "drop"]) {
    const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector("#transcript").dispatchEvent(event);
  }
}"""
COPY = """async (url) => {
  const bytes = Uint8Array.from(atob(url.split(',')[1]), (one) => one.charCodeAt(0));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
}"""
WIDTHS = "((selector) => [...document.querySelectorAll(selector)].map((image) => image.naturalWidth))"
SENT_WIDTHS = f"{WIDTHS}('.user .attached-image')"


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    """A server of a model that sees, and one that does not."""
    options = ServerOptions(port=0, key="secret")
    with served(
        SEEING, options, [path_model(tiny_model)], {"max_tokens": 4}, drafting=LOADING, most_models=2
    ) as running:
        yield running


@pytest.fixture
def page(browser: Any, guarded: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, guarded, faults) as found:
        yield found


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    return path


def test_images_are_attached_and_sent_before_the_text(page: Any, photo: Path, tmp_path: Path) -> None:
    bodies = recorded(page, {"content": "Seen."})
    assert page.get_attribute("#attach", "title") == "Attach images or text files"
    (tmp_path / "notes.txt").write_text("Notes.\n")
    page.set_input_files("#attached", [photo, tmp_path / "notes.txt"])
    page.wait_for_selector("#chips [aria-label='Remove notes.txt']")
    page.evaluate(DROP, url_of(PHOTO))
    page.wait_for_selector("#chips [aria-label='Remove dropped.png']")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(COPY, url_of(PHOTO))
    page.focus("#input")
    page.keyboard.press("Control+V")
    page.wait_for_selector("#chips li:nth-child(4)")
    assert chips(page)[:3] == ["photo.png", "notes.txt", "dropped.png"]
    becomes(page, f"{WIDTHS}('#chips img').every((width) => width === 56)", True)
    page.click("[aria-label='Remove dropped.png']")
    ask(page, "What is it?")
    (content,) = [each["content"] for each in bodies[0]["messages"]]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text", "text"]
    assert content[0]["image_url"] == {"url": url_of(PHOTO)}
    assert content[3] == {"type": "text", "text": "What is it?"}
    becomes(page, SENT_WIDTHS, [56, 56])
    assert page.get_attribute(".user .attached-image >> nth=0", "alt") == "photo.png"
    ask(page, "And now?")
    assert bodies[1]["messages"][0]["content"] == content


def test_the_model_sees_what_the_page_sends(page: Any, guarded: Running, photo: Path) -> None:
    page.set_input_files("#attached", photo)
    page.wait_for_selector(".chip img")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "What?")
    n_rows = guarded.http().post("/v1/chat/completions/input_tokens", json=json.loads(asked.value.post_data)).json()
    assert f"prompt {n_rows['input_tokens']}" in page.inner_text(".assistant .figures")


def test_a_large_image_is_made_smaller(page: Any, tmp_path: Path) -> None:
    from PIL import Image

    bodies = recorded(page, {"content": "Seen."})
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8).repeat(10, 0).repeat(10, 1)
    (tmp_path / "large.bmp").write_bytes(file_of(pixels, "BMP"))
    page.set_input_files("#attached", tmp_path / "large.bmp")
    page.wait_for_selector(".chip img")
    ask(page, "")
    kind, _, data = bodies[0]["messages"][0]["content"][0]["image_url"]["url"].partition(";base64,")
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert (kind, image.size) == ("data:image/jpeg", (1536, 1024))
        shown = np.asarray(image.resize((300, 200), Image.Resampling.BOX), np.float32)
    assert np.abs(shown - pixels[::10, ::10]).mean() < 25


def test_an_image_with_many_details_is_made_smaller_still(page: Any, tmp_path: Path) -> None:
    from PIL import Image

    bodies = recorded(page, {"content": "Seen."})
    noise = np.random.default_rng(0).integers(0, 256, (1536, 1536, 3), np.uint8)
    (tmp_path / "noise.png").write_bytes(file_of(noise))
    page.set_input_files("#attached", tmp_path / "noise.png")
    page.wait_for_selector(".chip img")
    ask(page, "")
    data = base64.b64decode(bodies[0]["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2])
    assert 200_000 < len(data) <= 900_000
    with Image.open(io.BytesIO(data)) as image:
        assert 500 < image.size[0] == image.size[1] < 1536


def test_images_stay_with_a_chat_and_its_file(page: Any, photo: Path) -> None:
    recorded(page, {"content": "Seen."})
    page.set_input_files("#attached", photo)
    page.wait_for_selector(".chip img")
    ask(page, "First")
    page.click(".user >> text=Edit")
    page.wait_for_selector(".editor .chip img")
    page.fill(".editor textarea", "Second")
    page.keyboard.press("Enter")
    ended(page)
    page.reload()
    becomes(page, SENT_WIDTHS, [56])
    assert f"![photo.png]({url_of(PHOTO)})" in saved(page, "#export-markdown")[1]
    _, text = saved(page, "#export-json")
    kept = [each["attachments"] for each in json.loads(text)["messages"] if each["role"] == "user"]
    assert kept == [[{"name": "photo.png", "text": "", "image": url_of(PHOTO)}]] * 2
    page.set_input_files("#file", {"name": "chat.json", "mimeType": "application/json", "buffer": text.encode()})
    becomes(page, SENT_WIDTHS, [56])
    for address in ("https://example.org/a.png", "data:text/html;base64,QUJD", "javascript:1"):
        foreign = text.replace(url_of(PHOTO), address).encode()
        page.set_input_files("#file", {"name": "chat.json", "mimeType": "application/json", "buffer": foreign})
        page.wait_for_selector("#notice:has-text('is no data URL')")
    heard = text.replace('"image"', '"sound"').encode()
    page.set_input_files("#file", {"name": "chat.json", "mimeType": "application/json", "buffer": heard})
    page.wait_for_selector("#notice:has-text('has a sound, photo.png; this page takes none')")


def test_images_are_refused_where_the_model_sees_nothing(page: Any, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.png").write_bytes(PHOTO[:40])
    page.set_input_files("#attached", tmp_path / "damaged.png")
    page.wait_for_selector("#attach-note:has-text('damaged.png cannot be shown by this browser')")
    page.select_option("#model", "tiny")
    assert page.get_attribute("#attach", "title") == "Attach text files"
    page.set_input_files("#attached", photo)
    page.wait_for_selector("#attach-note:has-text('photo.png is an image, and this model reads text alone')")
    assert chips(page) == []


def test_images_fit_a_phone(page: Any, tmp_path: Path) -> None:
    recorded(page, {"content": "Seen."})
    page.set_viewport_size({"width": 390, "height": 700})
    for number in range(3):
        (tmp_path / f"{'long_' * 20}{number}.png").write_bytes(file_of(np.full((40, 900, 3), number, np.uint8)))
    page.set_input_files("#attached", sorted(tmp_path.glob("*.png")))
    page.wait_for_selector("#chips li:nth-child(3)")
    assert fits_a_phone(page)
    ask(page, "Hi")
    becomes(page, f"{SENT_WIDTHS}.length", 3)
    assert fits_a_phone(page)


COUNT = """() => new Promise((done) => {
  indexedDB.open("edgeinfer", 1).onsuccess = ({ target: { result: database } }) => {
    const request = database.transaction("images").objectStore("images").getAllKeys();
    request.onsuccess = () => { done(request.result.length); database.close(); };
  };
})"""
CLEAR = """() => new Promise((done) => {
  indexedDB.open("edgeinfer", 1).onsuccess = ({ target: { result: database } }) => {
    const writing = database.transaction("images", "readwrite");
    writing.objectStore("images").clear();
    writing.oncomplete = () => { database.close(); done(); };
  };
})"""
KEPT_CHARACTERS = "Object.values(localStorage).reduce((sum, text) => sum + text.length, 0)"
ROOM = 5_000_000
"""Characters that localStorage has room for."""


def noise(number: int, side: int = 700) -> bytes:
    return file_of(np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8))


def test_more_photos_than_local_storage_holds_are_kept(page: Any, tmp_path: Path) -> None:
    bodies = recorded(page, {"content": "Seen."})
    paths = [tmp_path / f"{number}.png" for number in range(16)]
    for number in range(0, len(paths), 2):
        for path in paths[number : number + 2]:
            path.write_bytes(noise(int(path.stem)))
        page.set_input_files("#attached", paths[number : number + 2])
        page.wait_for_selector("#chips li:nth-child(2) img")
        ask(page, f"Turn {number}")
    assert page.is_hidden("#notice")
    sent = [part["image_url"]["url"] for turn in bodies[-1]["messages"][::2] for part in turn["content"][:2]]
    assert len(set(sent)) == len(paths)
    assert sum(map(len, sent)) > ROOM
    assert page.evaluate(KEPT_CHARACTERS) < ROOM / 100
    page.reload()
    becomes(page, SENT_WIDTHS, [700] * len(paths))
    assert page.evaluate("[...document.querySelectorAll('.attached-image')].map(({ src }) => src)") == sent
    ask(page, "Once more")
    again = [part["image_url"]["url"] for turn in bodies[-1]["messages"][:-1:2] for part in turn["content"][:2]]
    assert again == sent
    kept = json.loads(saved(page, "#export-json")[1])["messages"]
    assert [each["image"] for message in kept for each in message.get("attachments", ())] == sent
    assert page.evaluate(COUNT) == len(paths)


def test_a_request_has_its_images_before_they_are_shown(page: Any, photo: Path) -> None:
    bodies = recorded(page, {"content": "Seen."})
    page.set_input_files("#attached", photo)
    page.wait_for_selector(".chip img")
    ask(page, "First")
    page.reload()
    page.wait_for_selector(".message.assistant")
    ask(page, "Second")
    assert bodies[1]["messages"][0] == bodies[0]["messages"][0]


def test_images_are_deleted_with_their_chat(page: Any, photo: Path) -> None:
    recorded(page, {"content": "Seen."})
    for _ in range(2):
        page.set_input_files("#attached", photo)
        page.wait_for_selector(".chip img")
        ask(page, "What?")
        page.click("#new")
    assert page.evaluate(COUNT) == 2
    page.click("#chats li [aria-label^=Delete] >> nth=0")
    becomes(page, COUNT, 1)
    page.click("#chats .chat >> nth=0")
    becomes(page, SENT_WIDTHS, [56])
    page.click("#delete-all")
    becomes(page, COUNT, 0)
    assert page.evaluate("localStorage.length") == 0


def test_an_image_that_is_gone_is_told_of(page: Any, photo: Path) -> None:
    bodies = recorded(page, {"content": "Seen."})
    page.set_input_files("#attached", photo)
    page.wait_for_selector(".chip img")
    ask(page, "First")
    page.evaluate(CLEAR)
    page.reload()
    page.click(".attachment summary")
    page.wait_for_selector(".attachment pre >> text='[This image is no longer kept in the browser.]'")
    ask(page, "Second")
    first = bodies[1]["messages"][0]["content"][0]
    assert first["type"] == "text"
    assert "no longer kept" in first["text"]


def test_images_of_chats_of_before_are_moved(page: Any, photo: Path) -> None:
    """Chats of earlier versions have their images themselves."""
    recorded(page, {"content": "Seen."})
    page.set_input_files("#attached", photo)
    page.wait_for_selector(".chip img")
    ask(page, "First")
    page.evaluate(
        """(url) => { for (const [key, text] of Object.entries(localStorage)) {
          if (key.includes(".chat.")) localStorage.setItem(key, text.replace(/kept:[0-9a-f]+/, url));
        } }""",
        url_of(PHOTO),
    )
    page.evaluate(CLEAR)
    page.reload()
    becomes(page, SENT_WIDTHS, [56])
    ask(page, "Second")
    becomes(page, COUNT, 1)
    assert url_of(PHOTO) not in page.evaluate("Object.values(localStorage).join()")
    page.reload()
    becomes(page, SENT_WIDTHS, [56])
