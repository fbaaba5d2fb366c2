"""A child process: a module running in a separate process, with a channel to it; and the child's own side.

In: a module that calls `connect`. Out: a channel; `ChildDied` says why the child ended. The child is a new program that
inherits its end of the channel, so nothing has to wait for it to start. When its standard input closes, because its
parent was killed or no longer needs it, it exits at once, even in the middle of a computation.
"""

from __future__ import annotations

import os
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
from multiprocessing import connection
from typing import IO, Any, TypeVar

from edgeinfer.ipc.channel import Channel
from edgeinfer.process import command, environment

LOOK_S = 0.02
"""Interval between two checks while waiting."""
SLICE_S = 1.0
"""Longest wait of which the time is taken."""
END_S = 5.0
"""Time limit for a child to end."""
MESSAGE_CHARACTERS = 300
BROKEN = (OSError, EOFError, ValueError, KeyError, TypeError)
"""Raised by sending and receiving if the other side is dead or sends invalid data."""
T = TypeVar("T")


class ChildDied(Exception):
    """The child process is gone; the message says why."""


class ChildProcess:
    """A running child process. Must be closed."""

    def __init__(self, module: str, *, stuck_s: float | None = None) -> None:
        """Start the module; does not wait for it.

        `stuck_s`: a message that remains half sent for this long is an error. Raises OSError if no process can start.
        """
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        ours, theirs = connection.Pipe()
        self._channel: Channel | None = Channel(ours)
        if stuck_s is not None and sys.platform != "win32":
            with socket.socket(fileno=os.dup(ours.fileno())) as same:
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(stuck_s), 0))
        try:
            with theirs:
                self._process = _started(command(module), theirs.fileno(), self._output)
        except BaseException:
            ours.close()
            self._output.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and is connected."""
        return self._channel is not None and self._process.poll() is None

    def send(self, record: Any) -> None:
        """Send a record. Raises ChildDied."""
        channel = self._open_channel()
        try:
            channel.send(record)
        except BROKEN as reason:
            raise ChildDied(self.end(reason)) from None

    def poll(self, seconds: float) -> bool:
        """Wait for a record; True if there is one to receive, or if the child has ended. Raises ChildDied."""
        try:
            return self._open_channel().poll(seconds)
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
        if is_stalled:
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
        if patience_s:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._wait()
        self._output.close()

    def kill(self) -> None:
        """End the process at once, whatever it is doing; `close` it too."""
        self._process.kill()

    def _wait_for_message(self, channel: Channel, limit_s: float, look: Callable[[], float] | None) -> None:
        """Raises TimeoutError. Time in which this process was stopped, or the computer slept, counts for little."""
        began = time.monotonic()
        slice_s = SLICE_S if look is None else LOOK_S
        left_s = limit_s
        while True:
            if look is not None:
                left_s = min(left_s, look())
            before = time.monotonic()
            if channel.poll(max(0.0, min(slice_s, left_s))):
                return
            left_s -= min(time.monotonic() - before, 2 * slice_s)
            if left_s <= 0:
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
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _started(start: list[str], handle: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program that inherits a connection, and write its number to the program's standard input."""
    shared: dict[str, Any] = {"pass_fds": (handle,)}
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        shared = {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    own = environment(os.environ)
    process = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=output, stderr=output, env=own, **shared)
    assert process.stdin is not None
    with suppress(OSError):  # the child has already died
        process.stdin.write(f"{handle}\n".encode())
        process.stdin.flush()
    return process


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
    handle = int(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, False)
        return Channel(connection.PipeConnection(handle))
    os.set_inheritable(handle, False)
    return Channel(connection.Connection(handle))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # bypasses the lock of `sys.stdin`, which Python takes when it exits
        pass
    os._exit(0)
