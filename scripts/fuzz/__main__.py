"""Fuzzes readers of files and texts that others made: no crash, no error but ours, no second, no 200 MB.

Run:  python scripts/fuzz TARGET… [--inputs 100000] [--seed 1] [--out DIR]
      python scripts/fuzz --list

Inputs are mutations of valid ones, made of the seed and a number, so every one can be made again. The target runs in a
child process: one that crashes or hangs is noted, and the next one goes on after that input. Findings of one kind are
told once, and their first input is saved in DIR as TARGET-NUMBER.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from mutation import MOST_BYTES, mutated  # noqa: E402  # found by the path above

HANG_S = 10.0
LOOK_S = 0.2


class Campaign:
    """All inputs of one target."""

    def __init__(self, target: str, seed: int, count: int, out: Path | None) -> None:
        self._target, self._seed, self._count, self._out = target, seed, count, out
        self.kinds: Counter[str] = Counter()
        self.n_read = 0

    def run(self) -> None:
        """Run them, in as many child processes as crash."""
        with tempfile.NamedTemporaryFile() as shared:
            shared.truncate(MOST_BYTES + 16)
            first = 0
            while first < self._count:
                first = self._child(first, Path(shared.name))

    def _child(self, first: int, shared: Path) -> int:
        """Run a child from an input on; returns the number of the one to go on with."""
        numbers = map(str, (self._seed, first, self._count - first))
        command = [sys.executable, str(HERE / "worker.py"), self._target, *numbers, str(shared)]
        paths = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})
        assert child.stdout is not None
        reader = threading.Thread(target=self._read, args=(child.stdout,))
        reader.start()
        seen, since = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(LOOK_S)
            number = int.from_bytes(shared.read_bytes()[:8], "little")
            if number != seen:
                seen, since = number, time.monotonic()
            elif time.monotonic() - since > HANG_S + (20 if number == first else 0):
                child.send_signal(signal.SIGKILL)
                child.wait()
                self._note(number, f"hung for {HANG_S:.0f} s")
        reader.join()
        if child.returncode == 0:
            return self._count
        number = int.from_bytes(shared.read_bytes()[:8], "little")
        if child.returncode == 1:
            raise SystemExit(f"{self._target} cannot run; its error is above")
        if child.returncode != -signal.SIGKILL:
            self._note(number, f"the process ended with {child.returncode}")
        return max(first, number) + 1

    def _read(self, lines: object) -> None:
        for line in lines:  # type: ignore[attr-defined]
            found = json.loads(line)
            if "read" in found:
                self.n_read += found["read"]
                continue
            self._note(found["number"], found["problem"])

    def _note(self, number: int, problem: str) -> None:
        kind = re.sub(r"\d+\.\d s|\d+ MiB|: .*", "", problem)
        self.kinds[kind] += 1
        if self.kinds[kind] > 1:
            return
        print(f"{self._target} {number}: {problem}", flush=True)
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            data = mutated(import_module(f"targets.{self._target}").seeds(), random.Random(f"{self._seed} {number}"))
            (self._out / f"{self._target}-{number}").write_bytes(data)


def main() -> int:
    """Run the targets; 1 if anything was found."""
    known = sorted(path.stem for path in (HERE / "targets").glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list:
        print(*known, sep="\n")
        return 0
    if unknown := [name for name in given.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(known)}")
    found = 0
    for name in given.targets or known:
        began, campaign = time.monotonic(), Campaign(name, given.seed, given.inputs, given.out)
        campaign.run()
        found += len(campaign.kinds)
        took_s = time.monotonic() - began
        told = f"{name}: {given.inputs} inputs in {took_s:.0f} s, {campaign.n_read} read whole"
        print(f"{told}, {len(campaign.kinds)} kinds of findings", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
