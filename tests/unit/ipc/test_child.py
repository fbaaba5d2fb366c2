"""Channels and child processes: records arrive, and what a child dies of is said."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.ipc import child
from edgeinfer.ipc.channel import Channel, error_of
from edgeinfer.ipc.child import ChildDied, ChildProcess, ending


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    n_bytes: int


PROGRAM = """
import os, time
from contextlib import suppress
from dataclasses import dataclass
from edgeinfer.ipc.child import connect

@dataclass
class Question:
    text: str
    body: bytes = b""

@dataclass
class Reply:
    n_bytes: int

with connect() as channel, suppress(EOFError):
    while True:
        question = channel.receive(Question)
        if question.text == "crash":
            print("out of luck", flush=True)
            os._exit(3)
        if question.text == "inherits":
            channel.send(Reply(int(os.get_inheritable(channel.fileno()))))
            continue
        if question.text == "slow":
            time.sleep(0.3)
        if question.text == "sleep":
            time.sleep(600)
        channel.send(Question("?") if question.text == "nonsense" else Reply(len(question.body)))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ipc_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "ipc_program"


def test_a_channel_carries_records_and_raw_bodies() -> None:
    ours, theirs = map(Channel, Pipe())
    with ours, theirs:
        ours.send(Question("a\nb", b"\x00\n\xff"))
        assert theirs.poll(1.0)
        assert theirs.receive(Reply, Question) == Question("a\nb", b"\x00\n\xff")
        ours.send(Question("a"))
        with pytest.raises(ValueError, match="'Question' where Reply was expected"):
            theirs.receive(Reply)
        ours.close()
        with pytest.raises(EOFError):
            theirs.receive(Reply)


@pytest.mark.parametrize("message", [b"", b"{}", b"[1]", b'["Reply", 1]', b'["Reply", {"n_bytes": "1"}]', b"\xff"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    ours, theirs = Pipe()
    with ours, Channel(theirs) as channel:
        ours.send_bytes(message)
        with pytest.raises(ValueError):
            channel.receive(Reply)


def test_errors_of_ours_come_back_as_what_they_are() -> None:
    error = error_of("BadSetting", "no")
    assert isinstance(error, BadSetting)
    assert str(error) == "no"
    assert error_of("SystemExit", "no") is None
    assert error_of("Path", "no") is None


def test_a_child_answers_until_it_is_closed(module: str) -> None:
    with closing(ChildProcess(module)) as process:
        for n_bytes in (0, 1 << 20):
            process.send(Question("count", bytes(n_bytes)))
            assert process.receive(Reply, 60) == Reply(n_bytes)
        pid = process.pid
        assert process.is_alive
        process.send(Question("inherits"))
        assert process.receive(Reply, 60) == Reply(0)  # programs that the child starts do not have the channel
    process.close()
    assert not psutil.pid_exists(pid)
    assert not process.is_alive


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("crash", r"ended with exit code 3: out of luck"),
        ("nonsense", r"stopped talking \(.Question. where Reply was expected\)"),
    ],
)
def test_what_a_child_dies_of_is_said(module: str, text: str, reason: str) -> None:
    with closing(ChildProcess(module)) as process:
        process.send(Question(text))
        with pytest.raises(ChildDied, match=reason):
            process.receive(Reply, 60)
        with pytest.raises(ChildDied, match="was closed"):
            process.send(Question(text))


def test_a_child_that_does_not_answer_is_ended(module: str) -> None:
    with closing(ChildProcess(module)) as process:
        process.send(Question("sleep"))
        with pytest.raises(ChildDied, match="no answer within"):
            process.receive(Reply, 0.1)
    with closing(ChildProcess(module)) as process:
        process.send(Question("sleep"))
        with pytest.raises(ChildDied, match="no answer within"):
            process.receive(Reply, 60, lambda: 0.1)


def test_time_in_which_the_parent_was_stopped_is_no_silence_of_the_child(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s, looked = [0.0], [0]

    def look() -> float:
        looked[0] += 1
        passed_s[0] += 50.0 * (looked[0] == 3)  # SIGSTOP and SIGCONT, to both
        return 20.0

    with closing(ChildProcess(module)) as process:
        process.send(Question("slow"))
        monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0]))
        assert process.receive(Reply, 20.0, look) == Reply(0)
    assert looked[0] > 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_child_that_is_killed_is_noticed(module: str) -> None:
    with closing(ChildProcess(module)) as process:
        threading.Timer(0.2, os.kill, (process.pid, signal.SIGKILL)).start()
        with pytest.raises(ChildDied, match=r"crashed \(signal 9, SIGKILL\)"):
            process.receive(Reply, 60)


def test_a_module_that_cannot_start_says_so() -> None:
    before = threading.enumerate()
    with closing(ChildProcess("edgeinfer.ipc.nothing")) as process:
        with pytest.raises(ChildDied, match="No module named"):
            process.receive(Reply, 60)
        assert not process.is_alive
    with closing(ChildProcess("edgeinfer.ipc.nothing")) as process, pytest.raises(ChildDied, match="No module named"):
        process.send(Question("more than fits before the other side reads", bytes(1 << 24)))
    assert set(threading.enumerate()) <= set(before)


def test_nothing_waits_for_a_child_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs before it connects can be sent to, waited for, and killed."""
    (tmp_path / "ipc_hangs.py").write_text("while True: pass")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with closing(ChildProcess("ipc_hangs")) as process:
        process.send(Question("count"))
        assert not process.poll(0.1)
        process.kill()
        assert process.poll(60)
        with pytest.raises(ChildDied, match=r"SIGKILL|exit code"):
            process.receive(Reply, 0)


def test_endings_in_words() -> None:
    assert ending(-11, "a\nGGML_ASSERT(x) failed\n") == "crashed (signal 11, SIGSEGV): GGML_ASSERT(x) failed"
    assert ending(3, "") == "ended with exit code 3"
    assert ending(3, "a\nb\n\n") == "ended with exit code 3: b"
    assert ending(-1000, "") == "crashed (signal 1000)"
