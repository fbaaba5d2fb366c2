"""Who may see the page: who has the key, from this computer's own names, and no page of anybody else."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from edgeinfer.app.server.listening import may_be_called
from edgeinfer.app.web import page
from edgeinfer.app.web.page import Page

KEY = "a-long-random-key"


@pytest.fixture
async def client() -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(Page("exit 1", KEY, "laptop.home").application())) as found:
        yield found


async def status_of(client: TestClient, path: str, **headers: str) -> int:
    """What a websocket is answered; 101 where it is opened."""
    try:
        await client.ws_connect(path, headers=headers)
    except aiohttp.WSServerHandshakeError as refused:
        return refused.status
    return 101


async def test_a_tab_is_for_who_has_the_key(client: TestClient) -> None:
    assert await status_of(client, f"/tab/{KEY}") == 101
    for path, status in (("/tab/wrong", 401), ("/tab/", 404), ("/tab/%ff", 401), ("/ws", 404)):
        assert await status_of(client, path) == status
        assert await status_of(client, path, Cookie=f"edgeinfer_key={KEY}; key={KEY}") == status
        assert await status_of(client, f"{path}?key={KEY}") == status
    assert "edgeinfer chat --web" in await (await client.get("/tab/wrong")).text()


async def test_what_browsers_send_to_other_ports_holds_no_key(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css", f"/tab/{KEY}"):
        answer = await client.get(path)
        assert "Set-Cookie" not in answer.headers
        assert KEY not in await answer.text()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_page_keeps_the_key_of_its_link_for_its_own_origin() -> None:
    """One visit with the link and one without, in a browser that has what the script uses and nothing else."""
    browser = """
        const kept = new Map(), visited = [];
        const script = require("fs").readFileSync(process.argv[1], "utf8");
        for (const hash of ["#key=a%2Fb", ""]) {
          const location = { hash, protocol: "http:", host: "127.0.0.1:8000", pathname: "/", search: "?fontsize=20" };
          const history = { replaceState: (state, title, url) => visited.push(url) };
          const localStorage = { setItem: (name, value) => kept.set(name, value), getItem: (name) => kept.get(name) };
          const terminal = { dataset: {} };
          const document = { addEventListener: (name, run) => run(), querySelector: () => terminal };
          const window = { addEventListener: () => {} };
          class MutationObserver { observe() {} }
          const given = { location, history, localStorage, document, window, MutationObserver };
          new Function(...Object.keys(given), script)(...Object.values(given));
          visited.push(terminal.dataset.sessionWebsocketUrl);
        }
        console.log(visited.join(" "));
    """
    script = Path(page.__file__).with_name("page.js")
    found = subprocess.run(["node", "-e", browser, str(script)], capture_output=True, text=True, check=True)
    place = "ws://127.0.0.1:8000/tab/a%2Fb"
    assert found.stdout.split() == ["/?fontsize=20", place, place]


async def test_a_font_size_is_taken_from_the_address(client: TestClient) -> None:
    answer = await client.get("/", params={"fontsize": "20"})
    assert answer.status == 200
    assert 'data-font-size="20"' in await answer.text()


async def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    answer = await client.get("/")
    assert "https://" not in await answer.text()
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    for path, kind in (
        ("/page.css", "text/css"),
        ("/page.js", "javascript"),
        ("/static/css/xterm.css", "text/css"),
        ("/static/js/textual.js", ""),
    ):
        answer = await client.get(path)
        assert answer.status == 200
        assert kind in answer.headers["Content-Type"]
    style = await (await client.get("/page.css")).text()
    for font in (part.split('"')[1] for part in style.split("url(")[1:]):
        assert (await client.get(f"/{font}")).status == 200
    assert "fonts.googleapis" not in style


async def test_names_that_a_stranger_points_here_are_refused(client: TestClient) -> None:
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:99", 200), ("laptop.home", 200)):
        assert (await client.get("/", headers={"Host": host})).status == status
    assert (await client.get("/", headers={"Host": "[::1]:80"})).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_where_others_reach_it_it_is_called_by_its_addresses_and_its_name(host: str) -> None:
    own = socket.gethostname()
    for name in ("192.168.1.5", "[fe80::1]", "127.0.0.1", "localhost", own, own.upper()):
        assert may_be_called(name, host)
    assert not may_be_called("evil.example", host)
    assert not may_be_called("", host)


def test_where_nobody_else_reaches_it_no_other_address_is_its_name() -> None:
    assert not may_be_called("192.168.1.5", "127.0.0.1")
    assert not may_be_called("192.168.1.5", "localhost")


async def test_pages_of_others_open_no_socket(client: TestClient) -> None:
    for origin in ("https://evil.example", "http://127.0.0.1:1", "null", "http://[x"):
        assert await status_of(client, f"/tab/{KEY}", Origin=origin) == 403
    assert await status_of(client, f"/tab/{KEY}", Origin=f"http://{client.host}:{client.port}") == 101


@pytest.mark.parametrize("wanted", ["0", "9999", "-3", "x", "²", "16;x"])
async def test_a_font_size_that_is_none_is_the_usual_one(client: TestClient, wanted: str) -> None:
    answer = await client.get("/", params={"fontsize": wanted})
    assert 'data-font-size="16"' in await answer.text()
