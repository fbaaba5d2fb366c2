"""`edgeinfer serve` as another program starts it: one line when it is ready, an end with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

START = [sys.executable, "-m", "edgeinfer", "serve", "--port", "0", "--spec", "off", "--ready-json"]
MESSAGES = [{"role": "user", "content": "the hen"}]


@contextmanager
def sidecar(
    model: Path, *options: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, object]]]:
    """A server in a process of its own, and what its line says."""
    process = subprocess.Popen(
        [*START, "-m", str(model), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr is not None else ""
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def ends(process: subprocess.Popen[str], within_s: float = 20) -> int:
    return process.wait(within_s)


def ask(url: object, **headers: str) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 4}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def test_it_says_where_it_is_and_ends_when_it_is_told_to(tiny_model: Path) -> None:
    with sidecar(tiny_model) as (process, ready):
        assert ready["ready"] is True
        assert ready["pid"] == process.pid
        assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
        assert ask(ready["url"]).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert ends(process) in (0, -signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.read() == ""  # nothing but the line


def test_its_key_comes_from_the_environment(tiny_model: Path) -> None:
    with sidecar(tiny_model, "--token-env", "MY_TOKEN", MY_TOKEN="s3cret") as (process, ready):
        assert ask(ready["url"]).status_code == 401
        assert ask(ready["url"], Authorization="Bearer s3cret").status_code == 200
        command = " ".join(psutil.Process(process.pid).cmdline())
        assert "s3cret" not in command


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX")
def test_it_ends_with_a_parent_that_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    """The parent is killed, so that it can tell nobody; an answer is in the making."""
    script = tmp_path / "parent.py"
    command = [*START, "-m", str(tiny_model)]
    script.write_text(
        "import os, subprocess, sys, time\n"
        f"command = {command!r} + ['--parent-pid', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline(), end='', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    ready = json.loads(parent.stdout.readline())
    child = psutil.Process(ready["pid"])
    try:
        assert ask(ready["url"]).status_code == 200
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 20
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        if child.is_running():
            child.kill()


def test_it_ends_when_nobody_asks(tiny_model: Path) -> None:
    with sidecar(tiny_model, "--idle-timeout", "1") as (process, _):
        assert ends(process) == 0


def refused(*options: str, **variables: str) -> tuple[int, str]:
    found = subprocess.run(
        [*START, *options], capture_output=True, text=True, timeout=60, env={**os.environ, **variables}, check=False
    )
    assert found.stdout == ""
    return found.returncode, found.stderr


def test_what_cannot_be_is_said_before_anything_is_opened(tiny_model: Path, tmp_path: Path) -> None:
    model = ("-m", str(tiny_model))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = refused(*model, "--port", port)
        assert (code, f"127.0.0.1:{port} cannot be listened at" in text, "--port 0" in text) == (1, True, True)
    for options, reason in (
        (("--host", "0.0.0.0"), "a key is needed"),
        (("--host", "no.such.host.invalid", "--token-env", "K"), "no address"),
        (("--token-env", "NOT_THERE"), "no such environment variable"),
        (("--parent-pid", "999999999"), "no such process"),
        (("--max-body", "much"), "much"),
    ):
        code, text = refused(*model, *options, K="k")
        assert (code, reason in text, "Traceback" in text) == (1, True, False), text
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    code, text = refused("-m", str(broken))
    assert (code, "error: " in text, "Traceback" in text) == (1, True, False), text
    code, text = refused("-m", "no-such-model")
    assert (code, "no model is called" in text) == (1, True)
