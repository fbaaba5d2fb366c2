"""Runs real commands on a disk whose reads, writes or syncs fail: a clear word, nothing damaged used, nothing old lost.

Run:  python scripts/faults/io_errors.py --model FILE [TARGET…] [--steps 8] [--kinds rws]

A library that is loaded before the C library (`failing_io.c`, compiled here by gcc; Linux) counts the calls for files
of the command's home and of the model, by all its processes, and makes one of them fail with EIO: it alone, or it and
all later ones. Which one goes from the first to the last of an undisturbed run. Judged as `disk.py` does. What is
mapped into memory is not read by calls: a page of it that cannot be read is SIGBUS, as of a file that was cut.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from commands import Home, Target, offered, targets  # noqa: E402  # found by the path above
from judging import judged, judged_after, tallied  # noqa: E402

SOURCE = Path(__file__).with_name("failing_io.c")
KINDS = {"r": "read", "w": "write", "s": "sync"}
WORDS = re.compile(
    r"input/output error|cannot be (?:read|saved|written|opened)|not saved|damaged|disk i/o error|disk", re.IGNORECASE
)
"""Of these one is said where something is missing."""


@dataclass(frozen=True)
class Disk:
    """What all runs of a campaign share."""

    target: Target
    library: Path
    folder: Path
    model: Path
    port: int

    def home(self, kind: str, at: int, *, stays: bool) -> Home:
        """An empty home on a disk of which call number `at` of a kind fails; 0: none, they are counted."""
        folder = self.folder / "disk" / "home"
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        self._counter.write_bytes(bytes(8))
        variables = {
            "LD_PRELOAD": str(self.library),
            "FAULT_KIND": kind,
            "FAULT_AT": str(at),
            "FAULT_STAYS": str(int(stays)),
            "FAULT_COUNTER": str(self._counter),
            "FAULT_BELOW": f"{folder}:{self.model}",
        }
        return Home(folder, self.model, self.port, variables)

    @property
    def _counter(self) -> Path:
        return self.folder / "counter"

    def undisturbed(self, kind: str) -> tuple[object, int]:
        """The result, and how many calls of a kind were made."""
        home = self.home(kind, 0, stays=False)
        self.target.before(home)
        ended = self.target.run(home)
        result = self.target.result(home, ended)
        if ended.code or result is None:
            raise SystemExit(f"{self.target.name} fails on a disk that is well: {ended}")
        return result, int.from_bytes(self._counter.read_bytes(), sys.byteorder)

    def disturbed(self, kind: str, at: int, expected: object, *, stays: bool) -> tuple[str, list[str]]:
        """How a run ended, and what is wrong with that."""
        home = self.home(kind, at, stays=stays)
        before = self.target.before(home)
        told, problems = judged(self.target, home, self.target.run(home), expected, WORDS)
        return told, problems + judged_after(self.target, home.well, before, expected)


def campaign(disk: Disk, kind: str, n_steps: int) -> tuple[str, bool]:
    """All runs of a target and a kind of call as a line of a table, and whether anything was found."""
    began_s = time.monotonic()
    expected, n_calls = disk.undisturbed(kind)
    places = sorted({1 + (n_calls - 1) * step // max(1, n_steps - 1) for step in range(n_steps)}) if n_calls else []

    def run(number: int, at: int) -> tuple[str, str, list[str]]:
        stays = number % 2 == 1
        which = f"{KINDS[kind]} {at} of {n_calls}" + (" and all later ones" if stays else "")
        return which, *disk.disturbed(kind, at, expected, stays=stays)

    ends, n_bad = tallied(disk.target, itertools.starmap(run, enumerate(places)))
    counts = f"{n_calls} | {len(places)}"
    seconds = time.monotonic() - began_s
    line = f"| {disk.target.name} | {KINDS[kind]} | {counts} | {ends} | {n_bad or '–'} | {seconds:.0f} s |"
    print(line, flush=True)
    return line, bool(n_bad)


HEAD = "| command | what fails | calls | runs | how they ended | with findings | took |\n|---|---|---|---|---|---|---|"


def main() -> int:
    """Run the targets; 1 if anything was found."""
    known = targets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--model", type=Path, required=True, help="a small model (GGUF)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--kinds", default="rws", help="r: read, w: write, s: sync")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(known)}")
    if unknown := sorted(set(given.kinds) - set(KINDS)):
        parser.error(f"there is no kind {unknown[0]}; there are: {', '.join(KINDS)}")
    if sys.platform != "linux" or not shutil.which("gcc"):
        parser.error("calls are made to fail on Linux, by a library that gcc compiles")
    found, model = [], given.model.absolute()
    with tempfile.TemporaryDirectory() as name, offered(model.parent) as port:
        library = Path(name) / "failing_io.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        for target in given.targets or known:
            disk = Disk(known[target], library, Path(name), model, port)
            found += [campaign(disk, kind, given.steps) for kind in given.kinds]
    print(HEAD, *(line for line, _ in found), sep="\n", flush=True)
    return int(any(is_bad for _, is_bad in found))


if __name__ == "__main__":
    sys.exit(main())
