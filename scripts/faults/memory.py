"""Runs real commands in control groups with more and less memory than the plan says: the same answers, or a refusal.

Run:  python scripts/faults/memory.py --model FILE [COMMAND…] [--shares 0.6,0.8,0.95,1,1.1,1.3]

The plan's bytes are those of `edgeinfer plan --json` for the same context; a share of them is the group's limit, which
the kernel enforces (`scripts/memory_cap.py`). `pack` and `pull` open no model: theirs are the program's part of it. A
model in a process of its own (`switch`) takes the program twice. Found is: a command that the kernel kills, that ends
without a word of memory, or whose result differs from that with all memory. Above a share of 1 only the result is
right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import commands  # noqa: E402  # found by the path above

from scripts.memory_cap import MemoryCap  # noqa: E402

LIMIT_S = 240.0
CONTEXT = "2048"
SHARED = ("--device", "cpu", "--ctx", CONTEXT, "--temp", "0", "--no-prefix-cache")
WORDS = re.compile(r"memory|does not fit|GB|MB", re.IGNORECASE)
NEED = re.compile(r"needs ([\d.]+) MB of memory")
QUESTION = "Name three rivers and say where each begins."


def environment() -> dict[str, str]:
    """Variables of a command; homes of users are not written to but for what commands always note."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEINFER_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def command(*arguments: str) -> list[str]:
    """A command line of edgeinfer."""
    return [sys.executable, "-m", "edgeinfer", *arguments]


def ended(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    done = subprocess.run(
        arguments, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False, env=environment()
    )
    return done.returncode, done.stdout, done.stderr


def planned_bytes(model: Path) -> tuple[int, int]:
    """What the plan says that the model takes, with the program, and the program alone."""
    code, out, errors = ended(command("plan", "-m", str(model), "--device", "cpu", "--ctx", CONTEXT, "--json"))
    if code:
        raise SystemExit(f"there is no plan: {errors}")
    memory = json.loads(out)["memory"]
    return int(memory["total_bytes"]), int(memory["program_bytes"])


Ended = tuple[int, object, str]
"""Exit code, the answers (None: none), and what was said."""


def run(model: Path, cap: MemoryCap | None) -> Ended:
    """One question."""
    line = command("run", "-m", str(model), *SHARED, "--max-tokens", "40", "--json", QUESTION)
    code, out, errors = ended(line if cap is None else cap.command(line))
    return code, json.loads(out)["text"] if out.startswith("{") and not code else None, errors


def batch(model: Path, cap: MemoryCap | None) -> Ended:
    """Eight prompts, four at a time."""
    with tempfile.TemporaryDirectory() as name:
        asked, answers = Path(name) / "asked.jsonl", Path(name) / "answers.jsonl"
        subjects = ("tea", "rain", "a fox", "iron", "snow", "a bee", "a clock", "bread")
        asked.write_text("\n".join(json.dumps({"prompt": f"What is {each}?", "max_tokens": 24}) for each in subjects))
        line = command("batch", str(asked), "-m", str(model), *SHARED, "--parallel", "4", "--out", str(answers))
        code, out, errors = ended(line if cap is None else cap.command(line))
        rows = [json.loads(row) for row in answers.read_text().splitlines()] if answers.exists() else []
        texts = {row["index"]: row.get("text") for row in rows}
        return code, texts if len(texts) == len(subjects) else None, out + errors


def serve(model: Path, cap: MemoryCap | None) -> Ended:
    """Four requests at a time to a server."""
    line = command("serve", "-m", str(model), *SHARED[:4], "--port", "0", "--ready-json", "--no-key")
    server = subprocess.Popen(
        line if cap is None else cap.command(line),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(),
    )
    said = list[str]()
    assert server.stdout is not None
    assert server.stderr is not None
    stderr = server.stderr
    reader = threading.Thread(target=lambda: said.extend(stderr), daemon=True)
    reader.start()
    try:
        ready = server.stdout.readline()
        if not ready.startswith("{"):
            code = server.wait(LIMIT_S)
            reader.join(5)
            return code, None, "".join(said)
        found = requested(json.loads(ready)["url"])
        return server.poll() or 0, None if any(isinstance(each, int) for each in found) else found, "".join(said)
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def requested(address: str) -> list[object]:
    """The answers of four chats at a time; a status or 0 in place of one that failed."""
    found: list[object] = [0] * 4

    def ask(number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"{QUESTION} ({number})"}], "max_tokens": 30, "temperature": 0}
        request = urllib.request.Request(
            f"{address.rstrip('/').removesuffix('/v1')}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
                found[number] = json.load(response)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as reason:
            found[number] = reason.code
        except (OSError, ValueError):
            found[number] = 0

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def of_home(name: str) -> Callable[[Path, MemoryCap | None], Ended]:
    """A command of `commands.py`, in a home of its own."""
    target = commands.targets()[name]

    def ended_in_home(model: Path, cap: MemoryCap | None) -> Ended:
        within = list if cap is None else cap.command
        with tempfile.TemporaryDirectory() as folder, commands.offered(model.absolute().parent) as port:
            home = commands.Home(Path(folder) / "disk" / "home", model.absolute(), port, within=within)
            done = target.run(home)
            result = target.result(home.well, done)
            return done.code, result, "no memory" if done.code == -signal.SIGKILL else done.output

    return ended_in_home


@dataclass(frozen=True)
class Command:
    """A command, and what it takes: the plan's bytes (`models` of them), and the program's, `programs` times more.

    `goes_on`: it tells what does not fit, and ends when it is left.
    """

    run: Callable[[Path, MemoryCap | None], Ended]
    models: int = 1
    programs: int = 0
    goes_on: bool = False


COMMANDS = {
    "run": Command(run),
    "batch": Command(batch),
    "serve": Command(serve),
    "chat": Command(of_home("chat"), goes_on=True),
    "prefixes": Command(of_home("prefixes")),
    "switch": Command(of_home("switch"), programs=1, goes_on=True),
    "pack": Command(of_home("pack"), 0, 1),
    "pull": Command(of_home("pull"), 0, 1),
}


def limited(name: str, model: Path, limit_bytes: int, share: float, expected: object) -> tuple[str, bool]:
    """How a command ends within a limit, and whether that is wrong."""
    with MemoryCap(limit_bytes) as cap:
        try:
            code, answers, said = COMMANDS[name].run(model, cap)
        finally:
            time.sleep(0.2)  # the group is empty before it is removed
        peak = f"peak {cap.peak_bytes >> 20} MiB"
    if code in (-9, 137):
        return f"killed, {peak}", True
    if answers is not None:
        return ("answers" if answers == expected else "OTHER answers") + f", {peak}", answers != expected
    line = said.strip().rpartition("\n")[2][:140]
    is_told = (code in (1, 3) or COMMANDS[name].goes_on) and WORDS.search(said) is not None and "Traceback" not in said
    need = NEED.search(said)  # a server's answers side by side need more than the plan of one
    is_short = share <= 1 or (need is not None and float(need[1]) * 1e6 > limit_bytes)
    return f"refused ({code}): {line}", not (is_told and is_short)


def main() -> int:
    """Run the commands; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--model", type=Path, required=True, help="a model of 100 MB or more (GGUF)")
    parser.add_argument("--shares", default="0.6,0.8,0.95,1,1.1,1.3")
    given = parser.parse_args()
    if unknown := [name for name in given.commands if name not in COMMANDS]:
        parser.error(f"there is no command {unknown[0]}; there are: {', '.join(COMMANDS)}")
    try:
        MemoryCap(1 << 30).__exit__(None, None, None)
    except OSError as reason:
        print(f"skipped: no control group with a limit of memory can be made here: {reason}")
        return 0
    (planned, program), rows, is_bad = planned_bytes(given.model), list[str](), False
    for name in given.commands or COMMANDS:
        n_bytes = planned * COMMANDS[name].models + program * COMMANDS[name].programs
        code, expected, said = COMMANDS[name].run(given.model, None)
        if code or expected is None:
            raise SystemExit(f"{name} fails with all memory: {said}")
        for share in map(float, given.shares.split(",")):
            how, is_wrong = limited(name, given.model, int(share * n_bytes), share, expected)
            is_bad |= is_wrong
            rows.append(f"| {name} | {share:g} × {n_bytes >> 20} MiB | {how} | {'found' if is_wrong else '–'} |")
            print(rows[-1], flush=True)
    print("| command | limit | how it ended | |\n|---|---|---|---|", *rows, sep="\n")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
