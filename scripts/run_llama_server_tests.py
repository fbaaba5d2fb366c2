"""Runs llama.cpp's own server tests against `edgeinfer serve`, and prints what they say, file by file.

Run as `PYTHONPATH=. python scripts/run_llama_server_tests.py LLAMA_CPP [FILE …]`. LLAMA_CPP is the folder of
llama.cpp's sources, with `tools/server/tests` and `models/templates`, as in the source distribution of
llama-cpp-python; the tests run in a copy of these. Their interpreter (`--tester`) needs what `NEEDED` names, the
server's (`--python`) needs edgeinfer's packages. FILE names some of the tests' files, such as `test_completion`.

Models that the tests download are replaced, see `scripts/llama_server.py`. So tests that look for the words or token
counts of these models cannot pass: `scripts/llama_server_tests.toml` lists them and others that fail, with reasons. A
test that fails and is not listed there, or passes and is, is printed by name, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.stand_in_encoders import read_further

SCRIPTS = Path(__file__).resolve().parent
REASONS = SCRIPTS / "llama_server_tests.toml"
GOLDENS = SCRIPTS.parent / "tests" / "golden" / "data" / "embedding"
SEEING = GOLDENS.parent / "vision" / "gemma3.gguf"
COPIED = ("tools/server/tests", "models/templates")
NEEDED = "pytest", "openai", "requests", "wget", "filelock"
"""What the tests import."""
COLUMNS = ("passed", "failed", "words", "download", "apart", "slow", "skipped")
"""Outcomes; those between failed and slow are the kinds of reasons: see the file of reasons."""
BY_WHOM = "words", "download"
"""Kinds of tests that no server can pass without the models that the tests download."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test; `name` is FILE::TEST[PARAMETERS]."""

    name: str
    outcome: str
    said: str = ""

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.name.partition("::")[0]


def outcomes_of(report: Path) -> list[Outcome]:
    """The outcomes in a report of pytest's."""
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        found = {child.tag: child.get("message") or "" for child in case}
        if "skipped" in found:
            said = found["skipped"]
            outcomes.append(Outcome(name, "slow" if "slow" in said else "skipped", said))
        elif "failure" in found or "error" in found:
            outcomes.append(Outcome(name, "failed", found.get("failure", found.get("error", ""))))
        else:
            outcomes.append(Outcome(name, "passed"))
    return outcomes


def kinds_of(reasons: Path) -> dict[str, str]:
    """Kinds of reasons by pattern of a test's name."""
    groups = tomllib.loads(reasons.read_text())["reason"]
    return {pattern: group["kind"] for group in groups for pattern in group["tests"]}


def explained(outcome: Outcome, kinds: Mapping[str, str]) -> Outcome:
    """A failure by its reason, if one is known."""
    if outcome.outcome != "failed":
        return outcome
    kind = next((kind for pattern, kind in kinds.items() if matches(outcome.name, pattern)), "failed")
    return Outcome(outcome.name, kind, outcome.said)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, in which only * is special, is of a name, or of a name without its parameters."""
    plain = pattern.replace("[", "[[]")
    return fnmatchcase(name, plain) or fnmatchcase(name.partition("[")[0], plain)


def table(outcomes: Iterable[Outcome]) -> str:
    """Counts of outcomes by file, and of all."""
    counts: dict[str, Counter[str]] = {}
    for each in outcomes:
        for row in (each.file, "all"):
            counts.setdefault(row, Counter())[each.outcome] += 1
    rows = [*sorted(set(counts) - {"all"}), "all"]
    lines = [("file", *COLUMNS, "of")]
    lines += [(row, *(str(counts[row][name]) for name in COLUMNS), str(counts[row].total())) for row in rows]
    return "\n".join(f"{line[0]:28}" + "".join(f"{cell:>10}" for cell in line[1:]) for line in lines)


def share(outcomes: Sequence[Outcome]) -> str:
    """How many tests pass of those that need no downloaded model."""
    counts = Counter(each.outcome for each in outcomes)
    n_able = counts["passed"] + counts["failed"] + counts["apart"]
    return f"{counts['passed']} of {n_able} tests that need no downloaded model pass"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(given: argparse.Namespace, report: Path, place: Path) -> list[Outcome]:
    """Run the tests in a copy of their sources; returns those that are slow, as they need large models."""
    for folder in COPIED:
        shutil.copytree(given.sources / folder, place / folder)
    (place / COPIED[0] / "tmp").mkdir(exist_ok=True)  # tests write there what others would have downloaded to
    program = place / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{given.python}" "{SCRIPTS / "llama_server.py"}" "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "EDGEINFER_HOME": str(place / "home"),  # without the models of whoever runs this
        "LLAMA_SERVER_BIN_PATH": str(program),
        "STAND_IN_TEXT": str(given.text.resolve()),
        "STAND_IN_SEEING": str(given.seeing.resolve()),
        "STAND_IN_EMBEDDING": str(given.embedding or read_further(GOLDENS / "bert-f32.gguf", place / "bert.gguf")),
        "STAND_IN_RERANKER": str(given.reranker or read_further(GOLDENS / "reranker-f32.gguf", place / "ranker.gguf")),
        "STAND_IN_INFILL": str(given.infill.resolve()),
        "NO_PROXY": "127.0.0.1,localhost",
        "PORT": str(free_port()),
    }
    files = [f"unit/{name}.py" for name in given.files] or ["unit"]
    pytest = [given.tester, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *files]
    options = ["-o", "junit_family=xunit1", f"--junitxml={report}", "-m", "not slow"]
    started: dict[str, Any] = {"cwd": place / COPIED[0], "env": environment, "check": False}
    subprocess.run([*pytest, *options], stdout=sys.stderr, **started)
    slow = subprocess.run([*pytest, "--collect-only", "-m", "slow"], stdout=subprocess.PIPE, text=True, **started)
    return slow_outcomes(slow.stdout)


def slow_outcomes(listing: str) -> list[Outcome]:
    """Outcomes of the tests in a listing of pytest's, FILE::TEST[PARAMETERS] on lines of their own."""
    lines = [line.partition("::") for line in listing.splitlines() if ".py::" in line]
    return [Outcome(f"{Path(file).stem}::{test}", "slow") for file, _, test in lines]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("sources", type=Path, help="the folder of llama.cpp's sources")
    parser.add_argument("files", nargs="*", help="files of tests, such as test_completion; default: all")
    parser.add_argument("--text", type=Path, help="a model whose answers do not end by themselves; default: a tiny one")
    parser.add_argument("--seeing", type=Path, default=SEEING, help="a model that reads images; default: a tiny one")
    parser.add_argument("--infill", type=Path, help="a small model with fill-in-the-middle tokens")
    parser.add_argument("--embedding", type=Path, help="an embedding model; default: a tiny one")
    parser.add_argument("--reranker", type=Path, help="a reranker; default: a tiny one")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that the server runs in")
    parser.add_argument("--tester", default=sys.executable, help="the interpreter that the tests run in")
    parser.add_argument("--said", action="store_true", help="also print what failed tests said")
    return parser.parse_args(arguments)


def written(given: Path | None, path: Path, gap: Sequence[int] = ()) -> Path:
    """The given model, or a tiny one with random weights, whose answers go on until a limit, as the tests expect."""
    from tests.conftest import write_tiny_llama

    return given or write_tiny_llama(path, seed=3, context=4096, gap=gap)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print the table; 1 if the file of reasons does not agree with it."""
    given = parsed(arguments)
    kinds = kinds_of(REASONS)
    with tempfile.TemporaryDirectory() as folder:
        given.infill = written(given.infill or given.text, Path(folder) / "infill.gguf", gap=(3, 4, 5))
        given.text = written(given.text, Path(folder) / "text.gguf")
        report = Path(folder) / "report.xml"
        slow = run(given, report, Path(folder) / "llama.cpp")
        if not report.exists():
            sys.exit(f"the tests did not start: see above; {given.tester} needs {', '.join(NEEDED)}")
        outcomes = [*(explained(each, kinds) for each in outcomes_of(report)), *slow]
    print(table(outcomes))
    print(share(outcomes))
    unlisted = [each for each in outcomes if each.outcome == "failed"]
    stale = [
        each for each in outcomes if each.outcome == "passed" and any(matches(each.name, pattern) for pattern in kinds)
    ]
    for each in unlisted:
        print(f"fails without a reason: {each.name}" + (f": {each.said[:200]}" if given.said else ""))
    for each in stale:
        print(f"passes though listed: {each.name}")
    return 1 if unlisted or stale else 0


if __name__ == "__main__":
    sys.exit(main())
