"""Measures the terminal app's cost and reaction times in a real pseudo-terminal.

Run: `python scripts/measure_chat.py [WHAT ...] [--model NAME] [--runs N]`: paint stream gap stop session machine speed.
Each figure comes from an app in its own process behind a pseudo-terminal of 100 x 40 cells, whose output is read as
fast as it comes; the idle share of the machine is printed around each. paint: from the start of the process to the
first cells, warm, through the command line; stream: the share of one core that the app's main thread uses while 50
tokens a second stream into an answer of long code fences; gap: the longest time in which the event loop does not run,
while kernels are compiled for the first time, a prompt is read and tokens arrive; stop: from Escape to the end of the
last step; session: until chats of 4,000 and 400 messages are shown; machine: the share of a core that the app uses
while the machine screen is visible; speed: tokens per second in the app and in `edgeinfer run`, alternating. Nothing is
judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import psutil

COLUMNS, ROWS = 100, 40
TOKENS_PER_S = 50
STREAM_S = 20.0
PRESS_ESCAPE = "[escape, please]"
"""What an app under measurement prints when it waits for the key."""
PROMPT = "Write a very long story about a lighthouse keeper and the sea, with many chapters."
CODE = "".join(f"def step_{i}(value: int) -> int:\n    return value * {i} + 1  # step {i}\n\n" for i in range(150))
FENCED = f"Here is the program.\n\n```python\n{CODE}```\n\nAnd once more:\n\n```python\n{CODE}```\n"


class Terminal:
    """A program behind a pseudo-terminal; a thread reads its output."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.began = time.perf_counter()
        self.first_s: float | None = None
        self.output = b""
        master, slave = pty.openpty()
        ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._master = master
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                select.select([self._master], [], [])
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.output += data
            if PRESS_ESCAPE.encode() in data:
                self.type("\x1b")
            if self.first_s is None and PLACEHOLDER in self.output:
                self.first_s = time.perf_counter() - self.began

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, happened: Callable[[], object], patience_s: float = 120) -> None:
        ends = time.monotonic() + patience_s
        while not happened():
            if time.monotonic() > ends:
                raise SystemExit("the app did not do what was expected; its last output:\n" + repr(self.output[-2000:]))
            time.sleep(0.005)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._master)


PLACEHOLDER = b"new chat"


def idle_share(seconds: float = 0.5) -> float:
    """The idle share of the cores."""
    return 1 - psutil.cpu_percent(seconds) / 100


@contextmanager
def noted(name: str) -> Iterator[None]:
    """Print how idle the machine was before and after."""
    before = idle_share()
    yield
    print(f"{name}: idle {before:.2f} before, {idle_share():.2f} after", flush=True)


def environment(home: Path) -> dict[str, str]:
    """That of a user, in which the package is compiled once, not at each start."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEINFER_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**kept, "EDGEINFER_HOME": str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def measure_paint(home: Path, model: str, runs: int) -> None:
    """Start the command line and time it until the first cells."""
    found = []
    for _ in range(runs + 1):
        terminal = Terminal([sys.executable, "-m", "edgeinfer", "chat", "-m", model], environment(home))
        terminal.wait_for(lambda terminal=terminal: terminal.first_s is not None)
        time.sleep(1.0)
        terminal.close()
        found.append(terminal.first_s or 0.0)
    show("first paint, ms", [1e3 * seconds for seconds in found[1:]])


def measure_child(mode: str, home: Path, model: str, runs: int, unit: str) -> None:
    """Run a mode of this script in a terminal; it writes its figures to a file."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, __file__, "--child", mode, "--model", model, "--result", str(result)]
            kernels = {"XDG_CACHE_HOME": folder} if mode == "gap" else {}  # where none are compiled yet
            terminal = Terminal(command, environment(home) | kernels)
            terminal.wait_for(lambda terminal=terminal: terminal.process.poll() is not None, 300)
            if not result.exists():
                raise SystemExit(terminal.output[-3000:].decode(errors="replace"))
            found.append(json.loads(result.read_text()))
    for key in found[0]:
        show(f"{mode}, {key}{unit}", [one[key] for one in found])


def measure_speed(home: Path, model: str, runs: int) -> None:
    """The app and `edgeinfer run` alternating: the same prompt, the same tokens."""
    apps, commands = [], []
    options = ["-m", model, "--temp", "0", "--max-tokens", "300", "--spec", "off"]
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, __file__, "--child", "speed", "--model", model, "--result", str(result)]
            terminal = Terminal(command, environment(home))
            terminal.wait_for(lambda terminal=terminal: terminal.process.poll() is not None, 300)
            apps.append(json.loads(result.read_text())["tok_s"])
        ran = subprocess.run(
            [sys.executable, "-m", "edgeinfer", "run", PROMPT, *options, "--json"],
            env=environment(home),
            capture_output=True,
            check=True,
        )
        commands.append(json.loads(ran.stdout)["decode_tok_s"])
    show("speed in the app, tok/s", apps)
    show("speed of run, tok/s", commands)
    show("ratio of neighbours", [app / run for app, run in zip(apps, commands, strict=True)])


def show(name: str, values: Sequence[float]) -> None:
    print(f"  {name}: median {statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g}, {len(values)} runs)")


class Watch:
    """The longest time between two turns of the event loop, minus the time it sleeps."""

    NAP_S = 0.005

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._goes = True

    async def run(self) -> None:
        while self._goes:
            before = time.perf_counter()
            await asyncio.sleep(self.NAP_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - before - self.NAP_S)

    def take(self) -> float:
        longest, self.longest_s = self.longest_s, 0.0
        return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["paint", "stream", "gap", "stop", "session", "machine", "speed"])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child")
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    if given.child:
        from measure_chat_child import run_child

        run_child(given.child, given.model, given.result)
        return
    from edgeinfer.models.store import ModelStore

    model = str(ModelStore().find(given.model).path)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for what in given.what:
            with noted(what):
                if what == "paint":
                    measure_paint(home, model, given.runs)
                elif what == "speed":
                    measure_speed(home, model, given.runs)
                else:
                    measure_child(what, home, model, given.runs, "")


if __name__ == "__main__":
    main()
