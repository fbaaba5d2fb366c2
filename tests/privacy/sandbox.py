"""A fresh home for one program, and a trace of what it asked of the system.

In: commands. Out: processes under `tracing.traced` whose environment names nothing of the user's; `check` fails with
what they contacted or wrote elsewhere. Compiled kernels alone are shared, or every case would compile them anew.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.privacy.tracing import findings, traced

ROOT = Path(__file__).parents[2]
EDGEINFER = (sys.executable, "-P", "-m", "edgeinfer")
PATIENCE_S = 240.0
OWN_FOLDERS = (".cache/edgeinfer", ".config/edgeinfer", ".local/share/edgeinfer", ".local/state/edgeinfer")


class Sandbox:
    """A folder with a home, a temporary folder and a working folder of their own."""

    def __init__(self, folder: Path, kernels: Path, temporary: Path | None = None) -> None:
        """`temporary`: a folder of a short path, in which sockets find room."""
        self.home, self.temporary, self.work = folder / "home", temporary or folder / "t", folder / "work"
        for made in (self.home / ".cache/edgeinfer", self.temporary, self.work, kernels):
            made.mkdir(parents=True, exist_ok=True)
        (self.home / ".cache/edgeinfer/kernels").symlink_to(kernels)
        self.own = (*(self.home / name for name in OWN_FOLDERS), kernels, self.temporary)
        self._folder = folder
        self._traces: list[Path] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a program finds set: nothing that would keep a dependency from reporting."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONPATH": str(ROOT),
            "QT_QPA_PLATFORM": "offscreen",
        }

    def run(self, *arguments: str, stdin: str = "", command: Sequence[str] = EDGEINFER) -> str:
        """Run a program to its end and give its output. Fails where it fails."""
        done = subprocess.run(
            self._traced([*command, *arguments]),
            input=stdin,
            env=self.environment,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on until it is interrupted, which happens at the end."""
        process = subprocess.Popen(
            self._traced([*EDGEINFER, *arguments]),
            env=self.environment,
            cwd=self.work,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
            for child in psutil.Process(process.pid).children():
                child.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def on_terminal(self, *arguments: str) -> Iterator[Terminal]:
        """A command on a terminal of its own."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 100))
        process = subprocess.Popen(
            self._traced([*EDGEINFER, *arguments]),
            env=self.environment,
            cwd=self.work,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def check(self) -> None:
        """Fail with everything that was contacted, looked up or written elsewhere, or was left behind."""
        found = [finding for trace in self._traces for finding in findings(trace, self.own, self.work)]
        assert not found, "\n".join(found)
        ancestors = {parent for folder in self.own for parent in folder.parents}
        left = [
            path
            for path in self.home.rglob("*")
            if path not in ancestors and not any(path.is_relative_to(folder) for folder in self.own)
        ]
        left += self.temporary.iterdir()
        assert not left, f"left behind: {left}"

    def _traced(self, command: Sequence[str]) -> list[str]:
        trace = self._folder / f"trace-{len(self._traces)}"
        self._traces.append(trace)
        return traced(command, trace)


class Terminal:
    """The screen and the keys of a program."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self._process = process
        self._drawn = b""
        threading.Thread(target=self._read, daemon=True).start()

    def shows(self, text: str) -> None:
        """Wait until a text was drawn since the last keys."""
        until = time.monotonic() + PATIENCE_S
        while text.encode() not in self._drawn:
            assert self._process.poll() is None, self._drawn[-2000:]
            assert time.monotonic() < until, self._drawn[-2000:]
            time.sleep(0.05)

    def press(self, keys: str) -> None:
        """Press keys."""
        self._drawn = b""
        os.write(self._descriptor, keys.encode())

    def ends(self) -> int:
        """Wait for the program's exit code."""
        return self._process.wait(PATIENCE_S)

    def _read(self) -> None:
        while True:
            try:
                self._drawn += os.read(self._descriptor, 65536)
            except OSError:  # the program has ended
                return
