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
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import platformdirs

ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES = 64 << 20
LIMIT_S = 180.0
STEP_BYTES = 4096
WORDS = re.compile(r"no space|disk|room|full|cannot be (?:saved|written)|not saved", re.IGNORECASE)
"""Of these one is said where something is missing for lack of space."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and all it wrote."""

    code: int
    output: str


@dataclass(frozen=True)
class Target:
    """A command. `arguments`: of a home with its model. `result`: what it made, None if it is not there or not whole.

    `before`: what the home has before, and what must be there after. `quiet`: what is missing need not be told, for it
    only saves time. `typed`: its input.
    """

    name: str
    arguments: Callable[[Home], Sequence[str]]
    result: Callable[[Home, Ended], object]
    before: Callable[[Home], object] = lambda home: None
    typed: str = ""
    quiet: bool = False


@dataclass
class Home:
    """A home of a user on a small disk; `model` lies elsewhere."""

    folder: Path
    model: Path
    port: int
    filling: Path = field(init=False)

    def __post_init__(self) -> None:
        self.filling = self.folder.parent / "filling"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self) -> None:
        """Make its folders; compiled kernels are those of the user who runs this."""
        cache = self.folder / ".cache" / "edgeinfer"
        for path in (self.data, self.folder / "tmp", cache):
            path.mkdir(parents=True, exist_ok=True)
        kernels = Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels"
        if not (cache / "kernels").is_symlink():
            (cache / "kernels").symlink_to(kernels.resolve())

    def fill(self, free_bytes: int) -> None:
        """Leave so many bytes free."""
        status = os.statvfs(self.folder)
        n_bytes = max(0, status.f_bavail * status.f_frsize - free_bytes)
        with contextlib.suppress(OSError), self.filling.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, n_bytes))

    def empty(self) -> None:
        """Give the filling's bytes back."""
        self.filling.unlink(missing_ok=True)

    def run(self, arguments: Sequence[str], typed: str = "") -> Ended:
        """Run a command of edgeinfer."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEINFER_", "XDG_"))}
        own = {"HOME": str(self.folder), "EDGEINFER_HOME": str(self.data), "TMPDIR": str(self.folder / "tmp")}
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "edgeinfer", *arguments]
        try:
            done = subprocess.run(
                command,
                input=typed.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**kept, **own, "PYTHONPATH": paths},
                cwd=self.folder.parent.parent,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return Ended(-9, f"no end in {LIMIT_S:.0f} s: {(late.output or b'').decode(errors='replace')}")
        return Ended(done.returncode, done.stdout.decode(errors="replace"))

    @property
    def used_bytes(self) -> int:
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def litter(self) -> list[str]:
        """Temporary files that were left."""
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*.tmp-*")]


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
    """Notes the most bytes that were used at a time."""

    def __init__(self, home: Home) -> None:
        super().__init__(daemon=True)
        self._home, self._ended, self.most_bytes = home, threading.Event(), 0

    def run(self) -> None:
        while not self._ended.wait(0.002):
            self.most_bytes = max(self.most_bytes, self._home.used_bytes)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.most_bytes


def undisturbed(target: Target, folder: Path, model: Path, port: int) -> tuple[object, int]:
    """The result with room enough, and the most bytes that the command needs at a time."""
    with small_disk(folder):
        home = Home(folder / "home", model, port)
        home.prepare()
        target.before(home)
        used_bytes, watch = home.used_bytes, Watch(home)
        watch.start()
        ended = home.run(target.arguments(home), target.typed)
        most_bytes = watch.end()
        result = target.result(home, ended)
        if ended.code or result is None:
            raise SystemExit(f"{target.name} fails with room enough: {ended}")
        return result, most_bytes - used_bytes


def disturbed(
    target: Target, folder: Path, model: Path, port: int, free_bytes: int, expected: object
) -> tuple[str, list[str]]:
    """How a run with so many bytes ended, and what is wrong with that."""
    problems = list[str]()
    with small_disk(folder):
        home = Home(folder / "home", model, port)
        home.prepare()
        before = target.before(home)
        home.fill(free_bytes)
        ended = home.run(target.arguments(home), target.typed)
        home.empty()
        result = target.result(home, ended)
        is_whole = ended.code == 0 and result == expected
        if "Traceback" in ended.output or ended.code < 0:
            problems.append(f"ended with {ended.code}: {ended.output[-600:]}")
        elif result is not None and result != expected:
            problems.append(f"left {str(result)[:200]} in place of {str(expected)[:200]}")
        elif not is_whole and not (target.quiet and ended.code == 0) and not WORDS.search(ended.output):
            problems.append(f"ended with {ended.code} and no word of the disk: {ended.output[-300:]!r}")
        again = home.run(target.arguments(home), target.typed)
        if again.code or target.result(home, again) != expected:
            problems.append(
                f"with room again: {again.code} {again.output[-300:]!r} {target.result(home, again)!r:.200}"
            )
        if before is not None and target.before(home) != before:
            problems.append(f"what was there before is not any more: {before!r:.200}")
        problems += [f"left behind: {name}" for name in home.litter()]
    line = ended.output.strip().rpartition("\n")[2].replace(str(home.folder), "~")
    told = "whole" if is_whole else "goes on" if ended.code == 0 else re.sub(r"\d[\d.]*", "N", line)[:200]
    return told, problems


def answered(home: Home, ended: Ended) -> object:
    """Answers of a batch by line; None if the file has none or not all. Raises ValueError for half a line."""
    path = home.folder / "answers.jsonl"
    if not path.exists():
        return None
    whole = path.read_text().rpartition("\n")[0]
    rows = [json.loads(line) for line in whole.splitlines()]
    numbers = [row["index"] for row in rows]
    if len(set(numbers)) != len(numbers):
        raise RuntimeError("a line is answered twice")
    return {row["index"]: row["text"] for row in rows} if len(rows) == 6 else None


def asked(home: Home) -> None:
    """Write a batch of six prompts."""
    lines = [
        json.dumps({"prompt": f"the {name}", "max_tokens": 40}) for name in ("cat", "dog", "sea", "sky", "sun", "fog")
    ]
    (home.folder.parents[1] / "asked.jsonl").write_text("\n".join(lines))


def configured(home: Home) -> object:
    """Write a configuration where there is none; what it says of a name."""
    path = home.data / "config.toml"
    if not path.exists():
        path.write_text("# mine\ntop_k = 7\n")
    return [line for line in path.read_text().splitlines() if line != "temp = 0.5"]


def config_set(home: Home, ended: Ended) -> object:
    path = home.data / "config.toml"
    return True if path.exists() and "temp = 0.5" in path.read_text() else None


def pulled(home: Home, ended: Ended) -> object:
    """Whether the model in the store is the one that was pulled."""
    found = [path for path in (home.data / "models").rglob("*.gguf") if not path.name.startswith(".")]
    if not found:
        return None
    if any(path.read_bytes() != home.model.read_bytes() for path in found):
        raise RuntimeError("a model in the store is not what was pulled")
    return len(found)


def text_of(home: Home, ended: Ended) -> object:
    """The answer of `run --json`."""
    start = ended.output.find("{")
    try:
        return json.loads(ended.output[start : ended.output.rindex("}") + 1])["text"]
    except (ValueError, KeyError):
        return None


def packed(home: Home, ended: Ended) -> object:
    """Whether the bundle file passes its own check."""
    path = home.folder / "bundle"
    if not path.exists():
        return None
    done = home.run(["pack", str(home.model), "--out", str(path), "--verify"])
    return True if done.code == 0 else None


QUESTION = "the cat sat on the mat and looked at a bird. " * 5
OPTIONS = ("--temp", "0", "--device", "cpu", "--max-tokens", "12")


def targets() -> dict[str, Target]:
    """All commands, by name."""

    def out(home: Home) -> str:
        return str(home.folder / "answers.jsonl")

    def lines(home: Home) -> str:
        asked(home)
        return str(home.folder.parents[1] / "asked.jsonl")

    found = [
        Target(
            "batch",
            lambda home: [
                *("batch", lines(home), "-m", str(home.model), "--out", out(home), "--temp", "0", "--device", "cpu")
            ],
            answered,
        ),
        Target("config", lambda home: ["config", "set", "temp", "0.5"], config_set, configured),
        Target("pull", lambda home: ["pull", f"http://127.0.0.1:{home.port}/{home.model.name}"], pulled),
        Target("pack", lambda home: ["pack", str(home.model), "--out", str(home.folder / "bundle")], packed),
        Target("run", lambda home: ["run", "-m", str(home.model), *OPTIONS, "--json", QUESTION], text_of, quiet=True),
    ]
    return {target.name: target for target in found}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """A web server with the files of a folder; gives its port."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def copyfile(self, source: object, outputfile: object) -> None:
            with contextlib.suppress(OSError):  # whoever pulls has no room
                super().copyfile(source, outputfile)  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


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
        told: dict[str, int] = {}
        n_bad = 0
        for free_bytes in sizes(needed_bytes, n_steps):
            how, problems = disturbed(target, folder, model, port, free_bytes, expected)
            told[how] = told.get(how, 0) + 1
            n_bad += bool(problems)
            for problem in problems:
                print(f"{target.name} with {free_bytes} bytes free: {problem}", flush=True)
        ends = "; ".join(f"{count} × {how}" for how, count in told.items())
        seconds = time.monotonic() - began_s
        counts = f"{needed_bytes // 1024} KiB | {sum(told.values())}"
        line = f"| {target.name} | {counts} | {ends} | {n_bad or '–'} | {seconds:.0f} s |"
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
    with served(given.model.absolute().parent) as port:
        found += [campaign(known[name], given.model.absolute(), port, given.steps) for name in given.targets or known]
    print(HEAD, *(line for line, _ in found), sep="\n", flush=True)
    return int(any(is_bad for _, is_bad in found))


if __name__ == "__main__":
    sys.exit(main())
