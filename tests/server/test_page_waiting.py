"""What the page at "/" shows while something is awaited: a prompt that is read, a model, tools that start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.presets import Presets, read_presets
from edgeinfer.models.store import path_model
from edgeinfer.settings import load_settings
from tests.conftest import write_tiny_llama
from tests.server.chromium_page import ask, browser, ended, faults, fits_a_phone, opened, recorded, requires_chromium
from tests.server.conftest import Running, good_tools, served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = requires_chromium()
__all__ = ["browser", "faults"]  # fixtures
WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    const note = document.querySelector(".assistant:last-child > .note");
    const bar = document.querySelector(".assistant:last-child > progress");
    if (note) seen.push([note.textContent, bar.checkVisibility() ? bar.value : null]);
  }).observe(document.querySelector("#transcript"), { subtree: true, childList: true, characterData: true });
}"""
PRESETS = """
[greedy]
model = "one.gguf"
temp = 0
max_tokens = 4

[longer]
model = "one.gguf"
max_tokens = 9
"""


@pytest.fixture(scope="module")
def tooled(long_model: Path) -> Iterator[Running]:
    """A server with tools."""
    options = ServerOptions(port=0, key="secret", tools=(good_tools(),))
    with served(long_model, options, defaults={"max_tokens": 4}) as running:
        yield running


@pytest.fixture
def page(browser: Any, tooled: Running, faults: list[str]) -> Iterator[Any]:
    with opened(browser, tooled, faults) as found:
        yield found


def test_how_much_of_a_prompt_is_read_is_told(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    page.evaluate(WATCH)
    ask(page, "the hen and the men " * 400)
    assert not page.is_visible(".note.fault"), page.inner_text(".note.fault")
    told = [(re.match(r"reading ([\d,]+) of ([\d,]+) tokens … \d+ s", note), share)
            for note, share in page.evaluate("seen")]  # fmt: skip
    steps = [(*(int(number.replace(",", "")) for number in match.groups()), share) for match, share in told if match]
    assert len(steps) > 2
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    (total,) = {total for _, total, _ in steps}
    assert all(share == pytest.approx(done / total) for done, _, share in steps)
    figures = page.inner_text(".figures")  # what the server says at the end
    assert f"prompt {total:,}" in figures
    assert not page.is_visible("progress")
    assert fits_a_phone(page)


def test_tools_that_start_late_appear_in_the_open_settings(page: Any) -> None:
    held: list[Any] = []
    page.route("**/mcp/tools", lambda route: held.append(route))
    page.reload()
    page.wait_for_selector("#tools:has-text('tools are starting')")
    page.click("#settings-open")
    page.fill("[name=temperature]", "0.25")
    assert not page.is_visible("#mcp")
    held[0].continue_()
    page.wait_for_selector("#mcp-tools code:has-text('good/add')")
    assert page.input_value("[name=temperature]") == "0.25"
    page.check("#mcp-tools [value='good/add']")
    page.click("#settings >> text=Save")
    n_tools = page.locator("#mcp-tools li").count()
    page.wait_for_selector(f"#tools:has-text('{n_tools} tools')")
    page.set_viewport_size({"width": 390, "height": 700})
    page.click("#tools")
    assert page.is_checked("#mcp-tools [value='good/add']")
    page.uncheck("#mcp-used")
    page.click("#settings >> text=Save")
    page.wait_for_selector("#tools:has-text('tools are off')")
    assert fits_a_phone(page)


def test_a_question_waits_for_tools_that_start(page: Any) -> None:
    held: list[Any] = []
    page.route("**/mcp/tools", lambda route: held.append(route))
    page.reload()
    page.wait_for_selector("#model option:nth-child(2)", state="attached")
    bodies = recorded(page, {"content": "Hello."})
    for stops in (True, False):
        page.fill("#input", "Hi")
        page.keyboard.press("Enter")
        page.wait_for_selector(".note:has-text('starting tools')")
        if stops:
            page.keyboard.press("Escape")
            page.wait_for_selector("#send", state="visible")
            page.wait_for_selector(".assistant:has-text('stopped')")
            assert bodies == []
    for route in (held[0], held[-1]):
        route.continue_()
    page.wait_for_selector("text=Hello.")
    assert "good_add" in [tool["function"]["name"] for tool in bodies[0]["tools"]]


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Running]:
    """A server with presets, and a model beside them."""
    for seed, name in enumerate(("one", "two")):
        write_tiny_llama(tmp_path / f"{name}.gguf", seed=seed)
    (tmp_path / "presets.toml").write_text(PRESETS)

    def presets() -> Presets:
        return read_presets(tmp_path / "presets.toml", load_settings({}, environ={}, cwd=tmp_path))

    options = ServerOptions(port=0, key="secret")
    with served(
        tmp_path / "one.gguf", options, [path_model(tmp_path / "two.gguf")], presets=presets(), most_models=3
    ) as running:
        yield running


def test_presets_are_listed_by_their_names_and_used(
    browser: Any, several: Running, faults: list[str], tmp_path: Path
) -> None:
    with opened(browser, several, faults) as page:
        named = [each["id"] for each in several.http().get("/v1/models").json()["data"]]
        assert set(named) == {"greedy", "longer", "two"}
        options = page.locator("#model option")
        assert options.evaluate_all("all => all.map((one) => one.value)") == ["", *named]
        texts = options.all_inner_texts()
        assert texts[0] == f"default: {named[0]}"
        assert [text.split(" · ")[0] for text in texts[1:]] == named
        assert re.fullmatch(r"longer · [\d.]+ (kB|MB)( · loaded)?", texts[2])
        page.select_option("#model", "longer")
        ask(page, "the hen")
        assert "9 tokens" in page.inner_text(".figures")
        assert page.inner_text(".assistant h2") == "longer"
        page.wait_for_selector("#model option[value=longer]:has-text('loaded')", state="attached")  # no reload needed
        (tmp_path / "two.gguf").write_bytes(b"GGUF no more")
        page.select_option("#model", "two")
        page.fill("#input", "the men")
        page.keyboard.press("Enter")
        ended(page)
        page.wait_for_selector("#model option[value=two]:has-text('cannot be loaded')", state="attached")
        assert page.is_visible(".note.fault")
        faults.clear()  # the request that failed
