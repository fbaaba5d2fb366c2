"""`edgeinfer chat --web` as a whole: a process for each tab, one engine for all, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from edgeinfer.app.sessions.store import SessionStore
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?<>=$]*[a-zA-Z]|\x1b[()][A-Z0-9]")


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.02)


@dataclass
class Tab:
    """A browser's tab: what was drawn in it, without what says where and in which colour."""

    socket: aiohttp.ClientWebSocketResponse
    drawn: str = ""
    reader: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            if message.type == aiohttp.WSMsgType.BINARY:
                self.drawn += ESCAPES.sub("", message.data.decode("utf-8", "replace"))

    async def shows(self, text: str) -> None:
        await until(lambda: text in self.drawn)

    async def ask(self, text: str) -> None:
        await self.shows("Ask anything")
        self.drawn = ""
        await self.socket.send_json(["stdin", text])
        await self.shows("the draft adds")  # else Return would be part of what is pasted
        await asyncio.sleep(0.3)
        await self.socket.send_json(["stdin", "\r"])


@dataclass
class Program:
    """`edgeinfer chat --web`, and a browser."""

    process: subprocess.Popen[str]
    url: str
    key: str
    browser: aiohttp.ClientSession
    tabs: list[Tab] = field(default_factory=list)

    async def open(self) -> Tab:
        tab = Tab(await self.browser.ws_connect(f"{self.url}/tab/{self.key}?width=100&height=30"))
        self.tabs.append(tab)
        return tab

    @property
    def apps(self) -> list[psutil.Process]:
        """The processes of tabs, without the shells that started them."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in children if "edgeinfer" in each.cmdline() and each.name() != "sh"]


@asynccontextmanager
async def program(home: Path, *arguments: str, folder: Path | None = None, **more: str) -> AsyncIterator[Program]:
    environ = {**os.environ, "EDGEINFER_HOME": str(home), "EDGEINFER_OFFLINE": "1", "PYTHONPATH": str(ROOT), **more}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "edgeinfer", "chat", "--web", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environ,
    )
    assert process.stdout is not None
    link = next(word for word in process.stdout.readline().split() if word.startswith("http"))
    url, _, key = link.partition("/#key=")
    try:
        async with aiohttp.ClientSession() as browser:
            async with browser.get(url) as answer:
                assert answer.status == 200
            found = Program(process, url, key, browser)
            yield found
            for tab in found.tabs:
                await tab.socket.close()
                tab.reader.cancel()
    finally:
        process.kill()
        process.communicate()


async def test_tabs_share_one_engine(home: Path, tiny_model: Path) -> None:
    async with program(home, "-m", str(tiny_model), "--temp", "0", "--max-tokens", "30") as running:
        first, second = await running.open(), await running.open()
        await first.shows("tiny")
        await second.shows("tiny")
        await first.ask("tell me")
        await second.ask("tell me more")
        for tab in (first, second):
            await tab.shows("30 tokens")
        assert len(running.apps) == 2
        if sys.platform == "linux":
            maps = [Path(f"/proc/{each.pid}/maps").read_text() for each in running.apps]
            assert not any("libllvmlite" in each for each in maps), "tabs compile nothing"
            assert not any(tiny_model.name in each for each in maps), "tabs open no model"
        running.process.send_signal(signal.SIGINT)
        await until(lambda: running.process.poll() is not None)
        assert running.process.returncode == 0
    with SessionStore(home / "chats.db") as store:
        asked = [store.messages(each.number)[0].text for each in store.sessions()]
    assert sorted(asked) == ["tell me", "tell me more"]


def begun(home: Path) -> bool:
    """Whether some of an answer is kept."""
    with SessionStore(home / "chats.db") as store:
        kept = [message for session in store.sessions() for message in store.messages(session.number)]
    return any(message.role == "assistant" and message.text for message in kept)


async def test_a_tab_that_is_closed_leaves_its_answer_and_no_process(home: Path, tiny_model: Path) -> None:
    async with program(home, "-m", str(tiny_model)) as running:
        tab = await running.open()
        await tab.ask("tell me")
        await tab.shows("▌ tell me")
        (app,) = running.apps
        await until(lambda: begun(home))
        await tab.socket.close()
        await until(lambda: not app.is_running() or app.status() == psutil.STATUS_ZOMBIE)
        with SessionStore(home / "chats.db") as store:
            (kept,) = store.sessions()
            question, answer = store.messages(kept.number)
        assert question.text == "tell me"
        assert answer.state in ("stopped", "cut", "whole")
        assert answer.text
        again = await running.open()
        await again.shows("tiny")


async def test_tabs_end_with_the_engine(home: Path, tiny_model: Path) -> None:
    async with program(home, "-m", str(tiny_model)) as running:
        tab = await running.open()
        await tab.shows("tiny")
        apps = running.apps
        assert apps
        running.process.kill()
        await until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in apps))


async def test_a_tab_ends_with_its_process_and_says_why(home: Path, tiny_model: Path) -> None:
    async with program(home, "-m", str(tiny_model)) as running:
        tab = await running.open()
        await tab.shows("tiny")
        for each in running.apps:
            each.kill()
        await until(tab.reader.done)
        assert tab.socket.closed
        assert "this tab's app has ended with exit code" in tab.drawn


async def test_a_tab_whose_process_cannot_begin_says_why(home: Path, tiny_model: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home / "chats.db")) as later:  # chats of a later version
        later.execute("PRAGMA user_version = 999")
    async with program(home, "-m", str(tiny_model)) as running:
        tab = await running.open()
        await until(tab.reader.done)
        assert "exit code 1" in tab.drawn
        assert "error: " in tab.drawn
        assert "chats.db" in tab.drawn


async def test_a_tab_runs_nothing_of_the_folder_it_is_started_in(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("secrets.py", "types.py"):
        (folder / name).write_text("open('executed', 'w').close()\nraise SystemExit(1)\n")
    async with program(home, "-m", str(tiny_model), folder=folder) as running:
        tab = await running.open()
        await tab.shows("tiny")
    assert sorted(path.name for path in folder.iterdir()) == ["secrets.py", "types.py"]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="closed terminals send no signal here")
async def test_a_terminal_that_is_closed_leaves_nothing(home: Path, tiny_model: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        async with program(home, "-m", str(tiny_model), TMPDIR=folder) as running:
            tab = await running.open()
            await tab.shows("tiny")
            assert os.listdir(folder)
            running.process.send_signal(signal.SIGHUP)
            await until(lambda: tab.socket.closed)
            running.process.send_signal(signal.SIGHUP)
            await until(lambda: running.process.poll() is not None)
            assert running.process.returncode == 0
            assert os.listdir(folder) == []


async def test_who_listens_everywhere_prints_a_link_that_leads_in(home: Path, tiny_model: Path) -> None:
    async with program(home, "-m", str(tiny_model), "--host", "0.0.0.0") as running:
        assert "0.0.0.0" not in running.url
        await (await running.open()).shows("tiny")


@pytest.mark.parametrize("option", ["--host=0.0.0.0", "--port=8000"])
def test_where_to_listen_is_for_a_page(option: str, capsys: pytest.CaptureFixture) -> None:
    from edgeinfer.app.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["chat", option])
    assert ended.value.code == 2
    assert "edgeinfer chat --web" in capsys.readouterr().err


def test_a_port_in_use_is_told(home: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "edgeinfer", "chat", "--web", "--port", port]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert f"127.0.0.1:{port} cannot be listened at" in found.stderr


def test_what_is_missing_is_told(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from edgeinfer.app.cli import main

    for name in [name for name in sys.modules if name.startswith(("aiohttp", "textual_serve", "edgeinfer.app.web."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.setattr(sys, "argv", ["edgeinfer", "chat", "--web"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "pip install 'edgeinfer[web]'" in capsys.readouterr().err
