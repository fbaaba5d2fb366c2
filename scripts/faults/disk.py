"""Runs real commands on a disk that fills up under them: a clear word, nothing half-written used, nothing old lost.

Run:  python scripts/faults/disk.py --model FILE [TARGET…] [--steps 12]

Each run has a home on a disk of its own (a tmpfs, which needs root), filled so that so many bytes are free; the rest is
as on any computer. How many are free goes from none to more than the command writes. Judged: the end of
the command (no traceback, no signal, no hang, and a word about the disk where something is missing), and the same
command once there is room again (the whole result, and what was there before).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from commands import Home, Target, offered, targets  # noqa: E402  # found by the path above
from judging import judged, judged_after, tallied  # noqa: E402

DISK_BYTES = 64 << 20
STEP_BYTES = 4096
WORDS = re.compile(r"no space|disk|room|full|cannot be (?:saved|written)|not saved", re.IGNORECASE)
"""Of these one is said where something is missing for lack of space."""


class Filling:
    """A file that takes up what a disk has, but for some bytes."""

    def __init__(self, home: Home) -> None:
        self._folder, self._path = home.folder, home.folder.parent / "filling"

    def leave(self, free_bytes: int) -> None:
        """Leave so many bytes free."""
        status = os.statvfs(self._folder)
        n_bytes = max(0, status.f_bavail * status.f_frsize - free_bytes)
        with contextlib.suppress(OSError), self._path.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, n_bytes))

    def remove(self) -> None:
        """Give its bytes back."""
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own at `folder`."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class Watch(threading.Thread):
    """Notes the most bytes of a disk that were used at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._ended, self.most_bytes = folder, threading.Event(), 0

    def used_bytes(self) -> int:
        status = os.statvfs(self._folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def run(self) -> None:
        while not self._ended.wait(0.002):
            self.most_bytes = max(self.most_bytes, self.used_bytes())

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.most_bytes


def undisturbed(target: Target, folder: Path, model: Path, port: int) -> tuple[object, int]:
    """The result with room enough, and the most bytes that the command needs at a time."""
    with small_disk(folder):
        home = Home(folder / "home", model, port)
        target.before(home)
        watch = Watch(folder)
        used_bytes = watch.used_bytes()
        watch.start()
        ended = target.run(home)
        most_bytes = watch.end()
        result = target.result(home, ended)
        if ended.code or result is None:
            raise SystemExit(f"{target.name} fails with room enough: {ended}")
        return result, most_bytes - used_bytes


def disturbed(
    target: Target, folder: Path, model: Path, port: int, free_bytes: int, expected: object
) -> tuple[str, list[str]]:
    """How a run with so many bytes ended, and what is wrong with that."""
    with small_disk(folder):
        home = Home(folder / "home", model, port)
        before, filling = target.before(home), Filling(home)
        filling.leave(free_bytes)
        ended = target.run(home)
        filling.remove()
        told, problems = judged(target, home, ended, expected, WORDS)
        return told, problems + judged_after(target, home, before, expected)


def sizes(needed_bytes: int, n_steps: int) -> list[int]:
    """Numbers of free bytes from none to more than needed, closer together where they are few."""
    most = max(16 * STEP_BYTES, 1.15 * needed_bytes)
    found = {int(STEP_BYTES * (most / STEP_BYTES) ** (step / n_steps)) for step in range(n_steps + 1)}
    return sorted({0, *(size // STEP_BYTES * STEP_BYTES for size in found)})


def campaign(target: Target, model: Path, port: int, n_steps: int) -> tuple[str, bool]:
    """All runs of a target as a line of a table, and whether anything was found."""
    with tempfile.TemporaryDirectory() as name:
        folder, began_s = Path(name) / "disk", time.monotonic()
        expected, needed_bytes = undisturbed(target, folder, model, port)
        numbers = sizes(needed_bytes, n_steps)
        runs = (
            (f"{free_bytes} bytes free", *disturbed(target, folder, model, port, free_bytes, expected))
            for free_bytes in numbers
        )
        ends, n_bad = tallied(target, runs)
        seconds = time.monotonic() - began_s
        counts = f"{needed_bytes // 1024} KiB | {len(numbers)}"
        line = f"| {target.name} | {counts} | {ends} | {n_bad or '–'} | {seconds:.0f} s |"
        print(line, flush=True)
        return line, bool(n_bad)


HEAD = "| command | writes | runs | how they ended | with findings | took |\n|---|---|---|---|---|---|"


def main() -> int:
    """Run the targets; 1 if anything was found."""
    known = targets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--model", type=Path, required=True, help="a small model (GGUF)")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(known)}")
    if not shutil.which("mount") or os.geteuid():
        parser.error("small disks are mounted by root only")
    found = []
    with offered(given.model.absolute().parent) as port:
        found += [campaign(known[name], given.model.absolute(), port, given.steps) for name in given.targets or known]
    print(HEAD, *(line for line, _ in found), sep="\n", flush=True)
    return int(any(is_bad for _, is_bad in found))


if __name__ == "__main__":
    sys.exit(main())
