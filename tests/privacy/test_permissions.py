"""Other users of the machine can change nothing that commands leave behind, and read nothing of it that is private.

Real commands in a fresh home with a umask of 0, which gives everybody everything that a program does not take away.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from edgeinfer.app.chat.personas import Personas
from edgeinfer.backends.cpu.catalogue import kernel_folder
from tests.file_server import Served, serving
from tests.privacy.sandbox import EDGEINFER, PATIENCE_S, Sandbox

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of POSIX")

READABLE = (".local/share/edgeinfer/models", ".cache/edgeinfer/bundles")
"""Folders whose files others may read: models and what was made of them."""
QUESTION = "the hen and the men are there in the inn " * 12


class OpenSandbox(Sandbox):
    """Runs commands with a umask of 0, and without a trace."""

    def _traced(self, command: Sequence[str]) -> list[str]:
        return ["sh", "-c", 'umask 0; exec "$@"', "sh", *command]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[OpenSandbox]:
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        yield OpenSandbox(tmp_path, kernel_folder().parent, Path(temporary))


def too_open(sandbox: Sandbox) -> list[str]:
    """What others could do more than they should, of all files and folders of the home."""
    found = []
    for path in sandbox.home.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or path in (sandbox.home / ".cache", sandbox.home / ".cache/edgeinfer"):
            continue  # made by the sandbox
        inside = path.relative_to(sandbox.home)
        is_readable = stat.S_ISDIR(mode) or any(inside.is_relative_to(folder) for folder in READABLE)
        if mode & (0o022 if is_readable else 0o077):
            found.append(f"{stat.filemode(mode)} {inside}")
    return found


def test_commands_leave_nothing_to_others(sandbox: OpenSandbox, tiny_model: Path) -> None:
    with serving() as server:
        server.files["/other.gguf"] = Served(tiny_model.read_bytes())
        sandbox.run("pull", server.url("/other.gguf"))
    few = ("-m", "other", "--max-tokens", "8")
    sandbox.run("run", *few, QUESTION)
    sandbox.run("chat", *few, "--continue", stdin=f"{QUESTION}\n/exit\n")
    sandbox.run("config", "set", "temp", "0.3")
    sandbox.run("pack", "other")
    process = subprocess.Popen(
        sandbox._traced([*EDGEINFER, "serve", "--port", "0", "--ready-json", "--no-key", "-m", "other"]),
        env=sandbox.environment,
        cwd=sandbox.work,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code == 200
        assert too_open(sandbox) == []  # while it runs
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    names = {path.name for path in sandbox.home.rglob("*")}
    assert {"other.gguf", "chats.db", "config.toml", "prefixes"} <= names
    assert any((sandbox.home / ".cache/edgeinfer/bundles").iterdir())
    assert too_open(sandbox) == []
    folders = list((sandbox.home / ".cache/edgeinfer/prefixes").iterdir())
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_texts_of_the_user_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Personas(tmp_path / "home" / "personas").save("pirate", "arr")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").rglob("*")}
    assert sorted(modes.values()) == [0o600, 0o700]
