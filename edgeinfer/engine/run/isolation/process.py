"""The process of an isolated evaluator, as its parent has it: started, spoken to, found dead.

In: a `RemoteOpening`. Out: replies, and `ChildDied` with what it died of. The child ends when its parent closes it or
dies: it listens at its standard input for that. Works wherever Python can start itself; nothing is forked.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import IO

from edgeinfer.backends.base import PATIENCE_S
from edgeinfer.backends.stopping import StopFlag
from edgeinfer.children import command, environment
from edgeinfer.engine.run.isolation.messages import (
    Plain,
    RemoteCall,
    RemoteOpening,
    RemoteReply,
    Shared,
    receive_reply,
    send_call,
)
from edgeinfer.errors import DeviceFailed
from edgeinfer.local_socket import LocalListener
from edgeinfer.steps import Progress, no_progress
from edgeinfer.temporary import temporary_folder

MODULE = "edgeinfer.engine.run.isolation.child"
LOOK_S = 0.02
"""Time between two looks whether a stop was asked for while the child computes."""
START_S, END_S = 60.0, 5.0
"""What a child may take to connect, and to end or to break off a pass."""
OPEN_S, ANSWER_S = 3600.0, 2 * PATIENCE_S
"""What it may take from one word on opening a model to the next, and for an answer: its device may fail first."""
KEPT_CHARACTERS = 300


class ChildDied(Exception):
    """The child is gone; the message says of what."""


class Child:
    """One child process with a model open. Close it."""

    def __init__(self, opening: RemoteOpening, progress: Progress = no_progress) -> None:
        """Raises what opening the model raises there, and DeviceFailed where the process dies of it."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._folder = temporary_folder("edgeinfer", _memory_folder())
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._n_calls = 0
        self._is_left = False
        try:
            self._connect()
            assert self._connection is not None
            self._connection.send(opening)
            self.facts: Mapping[str, Plain] = self._opened(progress)
            shared = Path(self._folder.name) / "shared"
            shared.touch(0o600)
            sizes = (int(str(self.facts[key])) for key in ("max_tokens", "max_outputs", "n_vocab", "row_width"))
            self.shared: Shared = Shared(shared, *sizes)
            self.call(RemoteCall("share", {"path": str(shared)}))
            self._folder.cleanup()  # both have mapped it; nothing is left wherever this process is killed
        except ChildDied as reason:
            self.close()
            raise DeviceFailed(f"{opening.load.device} cannot run {opening.path}: its process {reason}") from None
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid if self._process is not None else 0

    def call(self, call: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        """Send a call and wait for its reply; a stop that is asked for meanwhile is passed on.

        Raises ChildDied, and what the call raises there.
        """
        connection = self._alive()
        self._n_calls += 1
        try:
            send_call(connection, replace(call, number=self._n_calls))
            if not call.answered:
                return RemoteReply()
            reply = self._reply(connection, ANSWER_S, stopped)
            while reply.number < self._n_calls:
                reply = self._reply(connection, ANSWER_S, stopped)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as reason:
            raise ChildDied(self._end(reason)) from None
        reply.raise_error()
        return reply

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Around reading what a reply says: a child that says what cannot be is ended. Raises ChildDied."""
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as reason:
            self._end(reason)
            raise ChildDied(f"gave an answer that makes no sense ({reason}) and was ended") from None

    def leave(self) -> None:
        """Wait no longer than for a stop, from any thread: it will be closed."""
        self._is_left = True

    def close(self) -> None:
        """End the process and give back what it shared; may be called twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._wait()
        self._errors.close()
        self._folder.cleanup()

    def _connect(self) -> None:
        key = secrets.token_bytes(32)
        with LocalListener(key) as listener:
            self._process = subprocess.Popen(
                command(MODULE),
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                env=environment(os.environ),
            )
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # it died already
                self._process.stdin.write(f"{listener.address}\n{key.hex()}\n".encode())
                self._process.stdin.flush()
            self._connection = self._accepted(listener)
        if sys.platform != "win32":  # a message that is stuck halfway is an OSError
            with socket.socket(fileno=os.dup(self._connection.fileno())) as same:
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(ANSWER_S), 0))

    def _accepted(self, listener: LocalListener) -> Connection:
        """The child's connection; a child that dies before it connects must not be waited for."""
        found: list[Connection] = []

        def accept() -> None:
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                found.append(listener.accept())

        waiting = threading.Thread(target=accept, name="isolated child", daemon=True)
        waiting.start()
        assert self._process is not None
        left_s = START_S
        while waiting.is_alive() and left_s > 0 and self._process.poll() is None:
            waiting.join(LOOK_S)
            left_s -= LOOK_S
        if found:
            return found[0]
        died_of = self._end(None)
        if waiting.is_alive():  # it listens to nobody: call it, without the key
            with contextlib.suppress(OSError):
                Client(listener.address).close()
            waiting.join(END_S)
        raise ChildDied(died_of)

    def _opened(self, progress: Progress) -> Mapping[str, Plain]:
        """What the child tells of the open model."""
        connection = self._alive()
        while True:
            try:
                reply = self._reply(connection, OPEN_S)
            except (OSError, EOFError, ValueError, KeyError, TypeError) as reason:
                raise ChildDied(self._end(reason)) from None
            reply.raise_error()
            if reply.progress is None:
                if not isinstance(reply.value, dict):
                    raise ChildDied(self._end(ValueError("no facts")))
                return reply.value
            progress(*reply.progress)

    def _reply(self, connection: Connection, patience_s: float, stopped: StopFlag | None = None) -> RemoteReply:
        """The next reply. Raises TimeoutError where it takes longer, or a stop goes unheeded."""
        began = time.monotonic()
        until = began + patience_s
        is_stopping = False
        while True:
            if not is_stopping and (self._is_left or (stopped is not None and stopped.is_set())):
                is_stopping = True
                self.shared.flag[0] = 1
                until = min(until, time.monotonic() + END_S)
            if connection.poll(LOOK_S):
                return receive_reply(connection)
            if time.monotonic() > until:
                raise TimeoutError(f"no answer within {time.monotonic() - began:.0f} s")

    def _alive(self) -> Connection:
        if self._connection is None:
            raise ChildDied("was closed")
        return self._connection

    def _end(self, reason: Exception | None) -> str:
        """What the process died of, for people; it is ended if it was not."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if isinstance(reason, (TimeoutError, BlockingIOError)) and self._process is not None:
            self._process.kill()
        code = self._wait()
        if isinstance(reason, (TimeoutError, BlockingIOError)):
            return f"stalled and was ended ({reason})"
        self._errors.seek(0)
        said = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        last = f": {said[-1][:KEPT_CHARACTERS]}" if said else ""
        if code < 0:
            name = {number.value: number.name for number in signal.Signals}.get(-code, "unknown")
            return f"crashed (signal {-code}, {name}){last}"
        if code:
            return f"ended with exit code {code}{last}"
        return f"stopped talking ({reason or 'no answer'}){last}"

    def _wait(self) -> int:
        """The process's exit code; what does not end by itself is killed."""
        assert self._process is not None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _memory_folder() -> str | None:
    """Where files never reach a disk, if there is such a place."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
