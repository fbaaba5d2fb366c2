"""A piece of a campaign: inputs of one target, tried in as many child processes as crash.

In: a target, a seed, numbers of inputs. Out: what was found, told once a kind; inputs and lines of a summary in a
folder.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from mutation import ROOM_BYTES, input_of
from summary import Piece, add
from worker import seeds_of, waited_s

HERE = Path(__file__).resolve().parent
HANG_S = 10.0
START_S = 60.0
"""How much longer the first input of a process may take, which imports modules and opens a model."""
LOOK_S = 0.2


def kind_of(problem: str) -> str:
    """What findings of one kind have in common."""
    return re.sub(r"\d+\.\d s|\d+ MiB|: .*", "", problem)


class Campaign:
    """Inputs of one target, from number `first` on."""

    def __init__(self, target: str, seed: int, first: int, count: int, out: Path | None) -> None:
        self._target, self._seed, self._out = target, seed, out
        self._module = import_module(f"targets.{target}")  # here, as tests' modules set signals, which a thread may not
        self._seeds = seeds_of(target, self._module)
        self._next, self._end = first, first + count
        self.kinds: Counter[str] = Counter()
        self.n_read = self.n_done = 0
        self._is_out_of_time = False
        self._told_at = time.monotonic()
        self._piece = Piece(target, seed, first)

    def run(self, seconds: int = 0) -> None:
        """Run them; those that are left when the seconds are over are left."""
        ends = time.monotonic() + seconds if seconds else None
        try:
            with tempfile.NamedTemporaryFile() as shared:
                shared.truncate(ROOM_BYTES + 16)
                while self._next < self._end and not self._is_out_of_time:
                    self._child(Path(shared.name), ends)
        finally:
            self._add_piece()

    def _child(self, shared: Path, ends: float | None) -> None:
        """Run a child from the next input on."""
        first = self._next
        shared.open("r+b").write(first.to_bytes(8, "little"))
        left_s = 0 if ends is None else max(1, round(ends - time.monotonic()))
        numbers = map(str, (self._seed, first, self._end - first, left_s))
        command = [sys.executable, str(HERE / "worker.py"), self._target, *numbers, str(shared)]
        paths = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})
        assert child.stdout is not None
        reader = threading.Thread(target=self._read, args=(child.stdout,))
        reader.start()
        seen, since_s, waited_before_s, is_hung = -1, time.monotonic(), 0.0, False
        while child.poll() is None:
            time.sleep(LOOK_S)
            number = int.from_bytes(shared.read_bytes()[:8], "little")
            most_s = HANG_S + (START_S if number == first else 0)
            if number != seen:
                seen, since_s, waited_before_s = number, time.monotonic(), waited_s(child.pid)
                continue
            without_core_s = waited_s(child.pid) - waited_before_s  # the machine may be busy
            if time.monotonic() - since_s - without_core_s > most_s:
                child.send_signal(signal.SIGKILL)
                child.wait()
                is_hung = True
                self._note(number, f"hung for {HANG_S:.0f} s")
        reader.join()
        if child.returncode == 0:
            self._is_out_of_time = self._next < self._end
            return
        if child.returncode == 1:
            raise SystemExit(f"{self._target} cannot run; its error is above")
        number = int.from_bytes(shared.read_bytes()[:8], "little")
        if not is_hung:
            self._note(number, f"the process ended with {child.returncode}")
        self._count(max(first, number) + 1 - self._next, 0)

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            found = json.loads(line)
            if "done" in found:
                self._count(found["done"], found["read"])
            else:
                self._note(found["number"], found["problem"])

    def _count(self, n_done: int, n_read: int) -> None:
        self._next += n_done
        self.n_done, self.n_read = self.n_done + n_done, self.n_read + n_read
        self._piece.inputs, self._piece.read = self._piece.inputs + n_done, self._piece.read + n_read
        self._add_piece()

    def _add_piece(self) -> None:
        """Note what was done since the last time, so that nothing is lost if this process ends."""
        now = time.monotonic()
        if self._out is not None and self._piece.inputs:
            self._piece.seconds = now - self._told_at
            add(self._out, self._piece)
            self._told_at, self._piece = now, Piece(self._target, self._seed, self._next)

    def _note(self, number: int, problem: str) -> None:
        kind = kind_of(problem)
        self.kinds[kind] += 1
        if self.kinds[kind] > 1:
            return
        print(f"{self._target} {number}: {problem}", flush=True)
        self._piece.found[kind] = number, problem
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            (self._out / f"{self._target}-{number}").write_bytes(self._input(number))

    def _input(self, number: int) -> bytes:
        return input_of(self._module, self._seeds, self._seed, number)
