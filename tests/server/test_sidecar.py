"""`edgeinfer serve` as another program starts it: one line when it is ready, an end with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import httpx
import psutil
import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.server.running import OBJECTS_PER_COLLECTION
from tests.file_server import Served, serving
from tests.waiting import PATIENCE_S, is_over, until

START = [sys.executable, "-m", "edgeinfer", "serve", "--port", "0", "--spec", "off", "--ready-json"]
OPEN = [*START, "--no-key"]
MESSAGES = [{"role": "user", "content": "the hen"}]


@contextmanager
def started(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def sidecar(
    model: Path, *options: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, object]]]:
    """A server in a process of its own, and what its line says."""
    start = START if {"--token-env", "--token-file"} & set(options) else OPEN
    with started([*start, "-m", str(model), *options], **variables) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr is not None else ""
        yield process, json.loads(line)


def ends(process: subprocess.Popen[str], within_s: float = PATIENCE_S) -> int:
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
        process.terminate()
        assert os.name != "posix" or ends(process) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""  # nothing but the line


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is for POSIX")
def test_it_closes_all_when_it_is_told_to_end(tiny_model: Path, home: Path) -> None:
    """Also amid an answer."""
    with sidecar(tiny_model, EDGEINFER_HOME=str(home)) as (process, ready):
        notes = home / "running"
        assert [path.name.partition("-")[0] for path in notes.iterdir()] == [str(process.pid)] * 2
        body = {"messages": MESSAGES, "max_tokens": 400, "stream": True}
        with httpx.stream("POST", f"{ready['url']}/v1/chat/completions", json=body, timeout=60) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            assert ends(process) == 0
        assert list(notes.iterdir()) == []


def n_active(url: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("edgeinfer_answers_active"))


HASTY = """
from edgeinfer.app.cli import main
from edgeinfer.app.server.running import OBJECTS_PER_COLLECTION
from edgeinfer.app.server import running, streaming

running.FINISH_S, running.LOOK_S, streaming.LOOK_S = 0.0, 0.02, 0.02
main()
"""
"""A server that lets no answer finish when it ends."""


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is for POSIX")
def test_clients_of_answers_that_are_not_finished_are_told(tiny_model: Path) -> None:
    body = {"messages": MESSAGES, "max_tokens": 400, "temperature": 0}
    whole: list[httpx.Response] = []
    command = [sys.executable, "-c", HASTY, *OPEN[3:], "-m", str(tiny_model), "--device", "reference"]
    with started(command) as process:
        assert process.stdout is not None
        server = json.loads(process.stdout.readline())["url"]
        url = f"{server}/v1/chat/completions"
        waiting = threading.Thread(target=lambda: whole.append(httpx.post(url, json={**body, "n": 4}, timeout=60)))
        waiting.start()
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            until(lambda: n_active(server) >= 2)
            process.send_signal(signal.SIGTERM)
            *_, last = [line for line in lines if line]
        waiting.join(PATIENCE_S)
        assert ends(process) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    told = json.loads(last.removeprefix("data: "))["error"]
    assert (told["code"], told["type"]) == ("server_ends", "unavailable_error")
    assert whole[0].status_code == 503
    assert whole[0].json()["error"] == told
    assert "Traceback" not in said
    assert "Cancel" not in said


TELLS = """
import gc, json, sys, threading

def tell():
    for _ in sys.stdin:
        print(json.dumps([gc.get_threshold()[0], gc.get_freeze_count()]), flush=True)

threading.Thread(target=tell, daemon=True).start()
from edgeinfer.__main__ import main
main()
"""
"""A command line that tells, for each line it is sent, how Python looks for garbage."""


def test_garbage_is_looked_for_often_and_not_among_what_the_start_made(tiny_model: Path) -> None:
    command = [sys.executable, "-c", TELLS, *OPEN[3:], "-m", str(tiny_model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            assert ask(url).status_code == 200
            process.stdin.write("\n")
            process.stdin.flush()
            n_objects, n_frozen = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert n_objects == OBJECTS_PER_COLLECTION
    assert n_frozen > 5 * n_objects


def test_its_key_comes_from_the_environment(tiny_model: Path) -> None:
    with sidecar(tiny_model, "--token-env", "MY_TOKEN", MY_TOKEN="s3cret") as (process, ready):
        assert ask(ready["url"]).status_code == 401
        assert ask(ready["url"], Authorization="Bearer s3cret").status_code == 200
        command = " ".join(psutil.Process(process.pid).cmdline())
        assert "s3cret" not in command


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX")
def test_it_ends_with_a_parent_that_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    """The parent is killed, so that it can tell nobody, and reads no more of what its child says."""
    script = tmp_path / "parent.py"
    command = [*OPEN, "-m", str(tiny_model)]
    script.write_text(
        "import os, subprocess, sys, time\n"
        f"command = {command!r} + ['--parent-pid', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)\n"
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
        until(lambda: is_over(child.pid))
    finally:
        parent.kill()
        if child.is_running():
            child.kill()


IN_TROUBLE = """
import sys, time
from edgeinfer.app import cli
from edgeinfer.app.opening import loading
from edgeinfer.app.server import running

def wait(*_, **__):
    print("opening", flush=True)
    time.sleep(600)

def fail(*_, **__):
    raise OSError(28, "No space left on device")

running.PARENT_GRACE_S = 0.1
trouble = sys.argv.pop(1)
if trouble != "none":
    loading.load_model = {"wait": wait, "fail": fail}[trouble]
cli.main()
"""
"""A server whose model takes ten minutes to open, or cannot be opened for a reason that nobody thought of."""


def in_trouble(trouble: str, *options: str) -> list[str]:
    return [sys.executable, "-c", IN_TROUBLE, trouble, *OPEN[3:], *options]


@contextmanager
def parent_of() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def test_it_ends_with_its_parent_while_it_opens_a_model(tiny_model: Path) -> None:
    with parent_of() as parent:
        command = in_trouble("wait", "-m", str(tiny_model), "--parent-pid", str(parent.pid))
        with started(command) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "opening\n"
            parent.kill()
            parent.wait()
            ends(process)


def test_it_ends_with_its_parent_while_it_pulls_a_model(tiny_model: Path, tmp_path: Path) -> None:
    with serving() as server, parent_of() as parent:
        server.files["/new.gguf"] = Served(tiny_model.read_bytes(), stall=threading.Event())
        command = in_trouble("none", "-m", server.url("/new.gguf"), "--parent-pid", str(parent.pid))
        with started(command, EDGEINFER_HOME=str(tmp_path)) as process:
            until(server.body_bytes)
            parent.kill()
            parent.wait()
            assert ends(process) == 1  # the other half does not come
            assert not server.files["/new.gguf"].stall.is_set()


def test_a_model_that_cannot_be_opened_for_whatever_reason_ends_it(tiny_model: Path) -> None:
    found = subprocess.run(
        in_trouble("fail", "-m", str(tiny_model)), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.splitlines()[-1] == "error: [Errno 28] No space left on device"
    assert "Traceback" not in found.stderr


def test_it_ends_where_nobody_reads_that_it_is_ready(tiny_model: Path) -> None:
    with started([*OPEN, "-m", str(tiny_model)]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdout = None
        assert ends(process) == 1
        assert "Traceback" not in process.stderr.read()


def test_it_ends_when_nobody_asks(tiny_model: Path) -> None:
    with sidecar(tiny_model, "--idle-timeout", "1") as (process, _):
        assert ends(process) == 0


def test_the_key_is_in_a_file(tiny_model: Path, tmp_path: Path) -> None:
    key = tmp_path / "a key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    with sidecar(tiny_model, "--token-file", str(key)) as (_, ready):
        for sent, status in (("s3cret", 200), ("other", 401)):
            headers = {"Authorization": f"Bearer {sent}"}
            assert httpx.get(f"{ready['url']}/v1/models", headers=headers).status_code == status


def refused(*options: str, start: Sequence[str] = OPEN) -> tuple[int, str]:
    """Exit code and standard error of a command that ends by itself; it is run in this process."""
    said, wrote = StringIO(), StringIO()
    with redirect_stderr(said), redirect_stdout(wrote), pytest.raises(SystemExit) as left:
        main([*start[3:], *options])
    assert wrote.getvalue() == ""
    assert isinstance(left.value.code, int)
    return left.value.code, said.getvalue()


def test_what_cannot_be_is_said_before_anything_is_opened(
    tiny_model: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", "k")
    model = ("-m", str(tiny_model))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = refused(*model, "--port", port)
        assert (code, f"127.0.0.1:{port} cannot be listened at" in text, "--port 0" in text) == (1, True, True)
    for options, reason in (
        (("--host", "0.0.0.0"), "a key is needed"),
        (("--token-env", "K"), "leave one of them out"),
        (("--parent-pid", "999999999"), "no such process"),
    ):
        code, text = refused(*model, *options)
        assert (code, reason in text, "Traceback" in text) == (1, True, False), text
    for options, reason in (
        ((), "a server beside a program needs a key"),
        (("--host", "no.such.host.invalid", "--token-env", "K"), "no address"),
        (("--token-env", "NOT_THERE"), "no such environment variable"),
    ):
        code, text = refused(*model, *options, start=START)
        assert (code, reason in text, "Traceback" in text) == (1, True, False), text
    shared = tmp_path / "shared key"
    shared.write_text("k")
    shared.chmod(0o644)
    long = tmp_path / "long key"
    long.write_text("k" * 5000)
    long.chmod(0o600)
    for options, reason in (
        (("--token-file", str(shared)), "can be used by others; chmod 600"),
        (("--token-file", str(tmp_path / "none")), "cannot be read: No such file"),
        (("--token-file", str(shared), "--token-env", "K"), "leave one of them out"),
        (("--token-file", str(long)), "more than the 4096 characters"),
    ):
        code, text = refused(*model, *options, start=START)
        assert (code, reason in text, "Traceback" in text) == (1, True, False), text
    code, text = refused(*model, "--max-body", "much")
    assert (code, "much" in text, "Traceback" in text) == (2, True, False), text
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    found = subprocess.run([*OPEN, "-m", str(broken)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert ("error: " in found.stderr, "Traceback" in found.stderr) == (True, False), found.stderr
    code, text = refused("-m", "no-such-model")
    assert (code, "no model is called" in text) == (1, True)
