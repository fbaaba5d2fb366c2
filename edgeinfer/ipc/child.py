"""A child process: a module running in a separate process, with a channel to it; and the child's own side.

In: a module that calls `connect`. Out: a channel; `ChildDied` says why the child ended. The child is started without
forking, and it proves by a key that it is the process that was started. When its standard input closes, because its
parent was killed or no longer needs it, it exits at once, even in the middle of a computation.
"""

from __future__ import annotations

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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import IO, Any, TypeVar

from edgeinfer.ipc.channel import Channel, LocalListener
from edgeinfer.process import command, environment

LOOK_S = 0.02
"""Interval between two checks while waiting."""
START_S, END_S = 60.0, 5.0
"""Time limits for a child to connect, and to end."""
MESSAGE_CHARACTERS = 300
BROKEN = (OSError, EOFError, ValueError, KeyError, TypeError)
"""Raised by sending and receiving if the other side is dead or sends invalid data."""
T = TypeVar("T")


class ChildDied(Exception):
    """The child process is gone; the message says why."""


class ChildProcess:
    """A running child process. Must be closed."""

    def __init__(self, module: str, *, stuck_s: float | None = None) -> None:
        """`stuck_s`: a message that remains half sent for this long is an error. Raises ChildDied."""
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._connect(module)
        except BaseException:
            self.close()
            raise
        if stuck_s is not None and sys.platform != "win32":
            assert self._channel is not None
            with socket.socket(fileno=os.dup(self._channel.fileno())) as same:
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(stuck_s), 0))

    @property
    def pid(self) -> int:
        """The process id."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and is connected."""
        return self._channel is not None and self._process is not None and self._process.poll() is None

    def send(self, record: Any) -> None:
        """Send a record. Raises ChildDied."""
        channel = self._open_channel()
        try:
            channel.send(record)
        except BROKEN as reason:
            raise ChildDied(self.end(reason)) from None

    def receive(self, kind: type[T], limit_s: float, look: Callable[[], float] | None = None) -> T:
        """Receive the next record. Raises ChildDied, also if it takes longer than `limit_s`.

        `look` is called while waiting and returns how many more seconds may pass.
        """
        channel = self._open_channel()
        try:
            self._wait_for_message(channel, limit_s, look)
            return channel.receive(kind)
        except BROKEN as reason:
            raise ChildDied(self.end(reason)) from None

    def end(self, reason: Exception | None) -> str:
        """End the process if it is still running; return why it ended."""
        self._close_channel()
        is_stalled = isinstance(reason, (TimeoutError, BlockingIOError))
        if is_stalled and self._process is not None:
            self._process.kill()
        code = self._wait()
        if is_stalled:
            return f"stalled and was ended ({reason})"
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        return ending(code, output) if code else f"stopped talking ({reason or 'no answer'}){_last_line(output)}"

    def close(self, *, patience_s: float = 0.0) -> None:
        """End the process; may be called twice. `patience_s`: time for it to exit on its own once disconnected."""
        self._close_channel()
        if self._process is not None:
            if patience_s:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)
            self._wait()
        self._output.close()

    def _connect(self, module: str) -> None:
        key = secrets.token_bytes(32)
        with LocalListener(key) as listener:
            self._process = subprocess.Popen(
                command(module),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env=environment(os.environ),
            )
            assert self._process.stdin is not None
            with suppress(OSError):  # the child has already died
                self._process.stdin.write(f"{listener.address}\n{key.hex()}\n".encode())
                self._process.stdin.flush()
            self._channel = Channel(self._accepted(listener))

    def _accepted(self, listener: LocalListener) -> Connection:
        """Accept the child's connection. Stops waiting if the child has died."""
        connections: list[Connection] = []

        def accept() -> None:
            with suppress(OSError, EOFError, AuthenticationError):
                connections.append(listener.accept())

        waiting = threading.Thread(target=accept, name="child connects", daemon=True)
        waiting.start()
        assert self._process is not None
        left_s = START_S
        while waiting.is_alive() and left_s > 0 and self._process.poll() is None:
            waiting.join(LOOK_S)
            left_s -= LOOK_S
        if connections:
            return connections[0]
        died_of = self.end(None)
        if waiting.is_alive():  # end the wait by connecting without the key
            with suppress(OSError):
                Client(listener.address).close()
            waiting.join(END_S)
        raise ChildDied(died_of)

    def _wait_for_message(self, channel: Channel, limit_s: float, look: Callable[[], float] | None) -> None:
        """Raises TimeoutError."""
        began = time.monotonic()
        until = began + limit_s
        while True:
            if look is not None:
                until = min(until, time.monotonic() + look())
            if channel.poll(limit_s if look is None else LOOK_S):
                return
            if time.monotonic() >= until:
                raise TimeoutError(f"no answer within {time.monotonic() - began:.0f} s")

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise ChildDied("was closed")
        return self._channel

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _wait(self) -> int:
        """Wait for the exit code, and kill a process that does not end when its standard input closes."""
        assert self._process is not None
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def ending(code: int, output: str) -> str:
    """Describe why a process ended, from its exit code and the last line of its output."""
    if code < 0:
        name = {number.value: number.name for number in signal.Signals}.get(-code)
        return f"crashed (signal {-code}{f', {name}' if name else ''}){_last_line(output)}"
    return f"ended with exit code {code}{_last_line(output)}"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f": {lines[-1][:MESSAGE_CHARACTERS]}" if lines else ""


def connect() -> Channel:
    """Connect to the parent. From now on Ctrl-C is left to the parent, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, key = (sys.stdin.buffer.readline().decode().strip() for _ in range(2))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return Channel(Client(address, authkey=bytes.fromhex(key)))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # bypasses the lock of `sys.stdin`, which Python takes when it exits
        pass
    os._exit(0)
