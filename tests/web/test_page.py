"""Who may see the page: who has the key, from this computer's own names, and no page of anybody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from edgeinfer.app.web.page import COOKIE, Page

KEY = "a-long-random-key"
IN = {"Cookie": f"{COOKIE}={KEY}"}


@pytest.fixture
async def client() -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(Page("exit 1", KEY, ("laptop.home",)).application())) as found:
        yield found


async def test_the_link_leads_in_once_and_then_a_cookie_does(client: TestClient) -> None:
    answer = await client.get("/")
    assert answer.status == 401
    assert "edgeinfer chat --web" in await answer.text()
    assert (await client.get("/", params={"key": "wrong"})).status == 401
    answer = await client.get("/", params={"key": KEY}, allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (303, "./")
    cookie = answer.cookies[COOKIE]
    assert (cookie.value, cookie["httponly"], cookie["samesite"]) == (KEY, True, "Strict")
    answer = await client.get("/", headers=IN, params={"fontsize": "20"})
    assert answer.status == 200
    text = await answer.text()
    assert f'"ws://{client.host}:{client.port}/ws"' in text
    assert 'data-font-size="20"' in text
    assert KEY not in text


async def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    answer = await client.get("/", headers=IN)
    assert "https://" not in await answer.text()
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    for path, kind in (
        ("/page.css", "text/css"),
        ("/page.js", "javascript"),
        ("/static/css/xterm.css", "text/css"),
        ("/static/js/textual.js", ""),
    ):
        answer = await client.get(path, headers=IN)
        assert answer.status == 200
        assert kind in answer.headers["Content-Type"]
    style = await (await client.get("/page.css", headers=IN)).text()
    for font in (part.split('"')[1] for part in style.split("url(")[1:]):
        assert (await client.get(f"/{font}", headers=IN)).status == 200
    assert "fonts.googleapis" not in style


@pytest.mark.parametrize("path", ["/", "/ws", "/page.css", "/static/js/textual.js", "/download/x"])
async def test_nothing_is_shown_without_the_key(client: TestClient, path: str) -> None:
    assert (await client.get(path)).status == 401
    assert (await client.get(path, headers={"Cookie": f"{COOKIE}=wrong"})).status == 401
    assert path == "/" or (await client.get(path, params={"key": KEY})).status == 401


async def test_names_that_a_stranger_points_here_are_refused(client: TestClient) -> None:
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:99", 200), ("laptop.home", 200)):
        assert (await client.get("/", headers={**IN, "Host": host})).status == status
    assert (await client.get("/", headers={**IN, "Host": "[::1]:80"})).status == 200


async def test_pages_of_others_open_no_socket(client: TestClient) -> None:
    for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect("/ws", headers={**IN, "Origin": origin})
        assert refused.value.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await client.ws_connect("/ws")
    assert refused.value.status == 401


@pytest.mark.parametrize("wanted", ["0", "9999", "-3", "x", "²", "16;x"])
async def test_a_font_size_that_is_none_is_the_usual_one(client: TestClient, wanted: str) -> None:
    answer = await client.get("/", headers=IN, params={"fontsize": wanted})
    assert 'data-font-size="16"' in await answer.text()


async def test_a_host_name_is_never_part_of_the_page_unescaped(client: TestClient) -> None:
    answer = await client.get("/", headers={**IN, "Host": 'localhost:"><script>'})
    assert answer.status in (400, 200)
    assert "><script>" not in (await answer.text()).replace('js"></script>', "")
