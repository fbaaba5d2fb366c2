"""Takes screenshots of the server's page with the starter model, for docs/screenshots.

Run: `python scripts/screenshot_page.py MODEL.gguf [FOLDER]` with `pip install 'edgeinfer[server,mcp]' playwright` and a
Chromium of the system. The answers are the model's own; the tool is one of the tests' MCP server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tests/unit/app/mcp/tool_server.py"
KEY = "screenshots"
WIDE, SMALL = {"width": 1200, "height": 800}, {"width": 390, "height": 780}
LISTING = '''def total(prices, vat=0.2):
    """The sum of prices with tax."""
    return sum(prices) * (1 + vat)


def cheapest(prices):
    return min(prices)
'''
QUESTIONS = ("Name three lighthouses as a list.", "What is a hen? Answer in one sentence.")
CALL = """Repeat this exactly and nothing else:
<tool_call>
{"name": "good_add", "arguments": {"a": 17, "b": 25}}
</tool_call>"""
ORDERS = b"id,price\n1,9.5\n" * 80


@contextmanager
def server(model: Path) -> Iterator[str]:
    """The address of a server with a key and a tool."""
    with tempfile.TemporaryDirectory() as home:
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        (Path(home) / "config.toml").write_text(
            f"[mcp.servers.good]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(TOOLS), 'good'])}\n"
            f"env = {{ PYTHONPATH = {json.dumps(path)} }}\n"
        )
        environ = {**os.environ, "EDGEINFER_HOME": home, "EDGEINFER_API_KEY": KEY}
        command = [sys.executable, "-m", "edgeinfer", "serve", "-m", str(model), "--mcp", "good", "--port", "0"]
        command += ["--ready-json", "--temp", "0", "--max-tokens", "200"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["url"]
            finally:
                process.terminate()


def ask(page: Any, text: str) -> None:
    """Ask a question and wait for the end of its answer."""
    page.fill("#input", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#send", state="visible")


def photograph(page: Any, folder: Path) -> None:
    """Photograph the page as it is used."""

    def take(name: str, scheme: str, size: dict[str, int]) -> None:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(400)
        page.screenshot(path=folder / f"{name}.png")

    page.click("#settings-open")
    page.uncheck("#mcp-used")
    page.click("#settings >> text=Save")
    for question in QUESTIONS:
        page.click("#new")
        ask(page, question)
    page.click("#new")
    page.set_input_files("#attached", {"name": "prices.py", "mimeType": "text/plain", "buffer": LISTING.encode()})
    ask(page, "What does each function of this file do?")
    page.click(".attachment summary")
    page.set_input_files("#attached", {"name": "orders.csv", "mimeType": "text/csv", "buffer": ORDERS})
    page.fill("#input", "And which function fits these orders?")
    take("page", "light", WIDE)
    take("page-small", "dark", SMALL)
    page.fill("#input", "")
    page.click("[aria-label='Remove orders.csv']")
    page.set_viewport_size(WIDE)
    page.fill("#search", "lighthouse")
    page.click("#chats .result >> nth=0")
    take("page-search", "dark", WIDE)
    page.fill("#search", "")
    page.click("#new")
    page.click("#settings-open")
    page.check("#mcp-used")
    page.click("#settings >> text=Save")
    ask(page, CALL)
    take("page-tools", "dark", WIDE)


def main() -> None:
    model = Path(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with server(model) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport=WIDE)
        page.set_default_timeout(300_000)
        page.goto(url)
        page.fill("#key input", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#tools:has-text('tools')")
        photograph(page, folder)
        browser.close()


if __name__ == "__main__":
    main()
