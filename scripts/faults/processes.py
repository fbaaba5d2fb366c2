"""A command as a user starts it, with all processes that it starts, which can be killed and stopped.

In: arguments and an environment with a mark. Out: a `Running` command: its output with times, its processes (found by
the mark, whatever session or parent they have), and those that live on.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from homes import MARK

ROWS, COLUMNS = 40, 120
ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|P[^\x1b]*\x1b\\|[@-Z\\-_=>])")
QUIT = b"\x11"
"""The key that leaves the app."""
END_S = 5.0
"""Seconds after which no process of a killed command may live."""

OPENING_S = 300.0
"""Time for a command to open its model, on a busy machine."""


def marked(mark: bytes) -> list[int]:
    """Living processes with this in their environment, as NAME=VALUE."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal() and _has(Path(entry.path), mark)]


def _has(process: Path, mark: bytes) -> bool:
    try:
        if mark not in (process / "environ").read_bytes().split(b"\0"):
            return False
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_all(mark: bytes) -> None:
    """Kill the processes with this in their environment."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Running:
    """A running command. `output`: what it wrote, each part with the time."""

    def __init__(
        self, command: list[str], environment: dict[str, str], folder: Path, *, terminal: bool = False
    ) -> None:
        self.began_s = self.killed_s = time.monotonic()
        self.output: list[tuple[float, bytes]] = []
        self.pids: set[int] = set()
        self._mark = f"{MARK}={environment[MARK]}".encode()
        if terminal:
            self.input, theirs = os.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
            take = self.input
        else:
            take, theirs = os.pipe()
            self.input = -1
            ends = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, start_new_session=True, close_fds=True, **ends
        )  # type: ignore[call-overload]
        atexit.register(self.kill)
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(take,), daemon=True)
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # a terminal whose other end is closed
            while data := os.read(descriptor, 1 << 16):
                self.output.append((time.monotonic(), data))
        os.close(descriptor)

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self.process.pid

    @property
    def text(self) -> str:
        """All output so far."""
        return b"".join(data for _, data in self.output).decode(errors="replace")

    @property
    def has_ended(self) -> bool:
        """Whether the command itself has ended."""
        return self.process.poll() is not None

    def passed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s

    def send(self, keys: bytes) -> None:
        """Type on its terminal."""
        with contextlib.suppress(OSError):
            os.write(self.input, keys)

    def wait(self, limit_s: float = 900.0) -> int:
        """The exit code; kills a command that does not end, whose code is -9."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
        atexit.unregister(self.kill)
        self._reader.join(2)
        return code

    def until(self, happened: Callable[[], object], limit_s: float = 60.0) -> bool:
        """Wait until something has happened; False if the command ended or the time is over before."""
        ends = time.monotonic() + limit_s
        while not happened():
            if self.has_ended or time.monotonic() > ends:
                return bool(happened())
            time.sleep(0.002)
        return True

    def processes(self) -> list[int]:
        """All living processes of the command."""
        found = marked(self._mark)
        self.pids.update(found)
        return found

    def signal(self, number: int, *, only_parent: bool = False) -> None:
        """Send a signal to all its processes, the command itself first, or to it alone."""
        for pid in [self.process.pid] if only_parent else sorted(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, *, only_parent: bool = False) -> None:
        """Kill it, at once, and wait for its end."""
        self.pids.add(self.process.pid)
        if not only_parent:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL, only_parent=only_parent)
        self.killed_s = time.monotonic()
        atexit.unregister(self.kill)
        self.process.wait()
        self._reader.join(2)

    def survivors(self, patience_s: float = END_S) -> list[str]:
        """Command lines of what still lives after `patience_s`, which is killed."""
        ends = time.monotonic() + patience_s
        while (alive := self.processes()) and time.monotonic() < ends:
            time.sleep(0.05)
        names = []
        for pid in alive:
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                os.kill(pid, signal.SIGKILL)
        return names
