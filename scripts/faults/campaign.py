"""Runs of one target, each with a fault at a moment that a seed and its number decide; rows are kept in a file.

A target is a file of `targets/` with a class `Target` (see `Target` here). Moments: one in two is spread evenly over
the command's whole life; one in two is near the first bytes that it writes. Every fourth kill hits the parent alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol

from homes import Home
from processes import Running, kill_all

LATE = 1.02
"""Share of a life up to which moments are spread: some are after the end."""
YEAR_S = 365 * 86400
NEAR_S = 0.15
"""Mean distance of a moment from the first bytes."""


class Target(Protocol):
    """A command, what it writes, and what must be true of that. `life_s`: of an undisturbed run."""

    life_s: float

    def prepare(self) -> None:
        """Run it once undisturbed, for what is compared with."""

    def start(self) -> Running:
        """Begin anew, with a home in which it has not run."""

    def has_written(self) -> bool:
        """Whether the first bytes of its work are on disk."""

    def judge(self, running: Running) -> list[str]:
        """What is wrong with what a kill left, and with what is made of it."""

    def finish(self, running: Running) -> list[str]:
        """Wait for the end of a run that was stopped for a time; what is wrong with it."""


@dataclass
class Row:
    """One run. `phase`: before, during or after its writes."""

    number: int
    fault: str
    moment_s: float
    phase: str
    took_s: float
    problems: list[str] = field(default_factory=list)


class Campaign:
    """All runs of one target with one kind of fault."""

    def __init__(
        self, name: str, fault: str, seed: int, out: Path, model: Path | None, device: str, stopped_s: float
    ) -> None:
        self.name, self._fault, self._seed, self._stopped_s = name, fault, seed, stopped_s
        self._file = out / f"{fault}-{name}-{seed}.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        self._home = Home(out / f"home-{fault}-{name}", device)
        if fault == "clock":
            self._home.use_clock()
        self.target: Target = import_module(f"targets.{name}").Target(self._home, model)
        self.rows = [Row(**json.loads(line)) for line in self._lines()]

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def run(self, times: int) -> None:
        """Make the runs that are missing."""
        missing = sorted(set(range(times)) - {row.number for row in self.rows})
        if not missing:
            return
        kill_all(self._home.mark)  # of a campaign that was itself killed
        self.target.prepare()
        for number in missing:
            row = self._killed(number) if self._fault == "kill" else self._undergone(number)
            self.rows.append(row)
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            for problem in row.problems:
                print(f"{self.name} {number} ({row.fault} at {row.moment_s:.2f} s, {row.phase}): {problem}", flush=True)

    def _killed(self, number: int) -> Row:
        draw = random.Random(f"{self._seed} {self.name} {number}")
        only_parent, is_near = number % 4 == 3, number % 2 == 1
        began_s, running = time.monotonic(), self.target.start()
        until_s = draw.uniform(0, LATE * self.target.life_s)
        if is_near:
            running.until(self.target.has_written, 2 * self.target.life_s + 20)
            until_s = running.passed_s() + draw.expovariate(1 / NEAR_S)
        while running.passed_s() < until_s and not running.has_ended:
            time.sleep(0.001)
        phase = "after" if running.has_ended else "during" if self.target.has_written() else "before"
        running.processes()
        moment_s = running.passed_s()
        running.kill(only_parent=only_parent)
        problems = [f"lives on: {name}" for name in running.survivors()]
        problems += [f"shared memory is left: {name}" for name in self._home.shared_memory(running.pids)]
        problems += self._judged(lambda: self.target.judge(running))
        problems += [f"left behind: {name}" for name in self._home.litter(running.pids)]
        fault = "parent killed" if only_parent else "all killed"
        return Row(number, fault, round(moment_s, 3), phase, round(time.monotonic() - began_s, 1), problems)

    def _undergone(self, number: int) -> Row:
        """Something that passes befalls a command amid its work, which must go on to its end as if nothing had been."""
        draw = random.Random(f"{self._seed} {self.name} {number} {self._fault}")
        self._home.set_clock(0)
        began_s, running = time.monotonic(), self.target.start()
        until_s = draw.uniform(0.1, 0.95) * self.target.life_s
        running.until(lambda: running.passed_s() >= until_s, until_s + 1)
        phase = "after" if running.has_ended else "during" if self.target.has_written() else "before"
        moment_s = running.passed_s()
        fault = self._stop(running, number) if self._fault == "stop" else self._jump(number)
        problems = self._judged(lambda: self.target.finish(running))
        problems += [f"lives on: {name}" for name in running.survivors()]
        problems += [f"left behind: {name}" for name in self._home.litter(running.pids)]
        return Row(number, fault, round(moment_s, 3), phase, round(time.monotonic() - began_s, 1), problems)

    def _stop(self, running: Running, number: int) -> str:
        """Stop all of a command (SIGSTOP) for a time; every second one that has helpers, these alone."""
        helpers = [pid for pid in running.processes() if pid != running.process.pid]
        stopped = helpers if helpers and number % 2 else [*helpers, running.process.pid]
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, sent)
            time.sleep(self._stopped_s if sent == signal.SIGSTOP else 0)
        return "helpers stopped" if stopped is helpers else "stopped"

    def _jump(self, number: int) -> str:
        """Set the clock by a year; every second one back."""
        self._home.set_clock(-YEAR_S if number % 2 else YEAR_S)
        return "clock set back" if number % 2 else "clock set ahead"

    def _judged(self, judge: Callable[[], list[str]]) -> list[str]:
        try:
            return judge()
        except Exception as reason:
            kill_all(self._home.mark)
            return [f"could not be judged: {type(reason).__name__}: {reason}"[:500]]

    def line(self) -> str:
        """The campaign as a line of a table."""
        count = {name: sum(row.phase == name for row in self.rows) for name in ("before", "during", "after")}
        bad = [row for row in self.rows if row.problems]
        seconds = sum(row.took_s for row in self.rows) / max(1, len(self.rows))
        phases = " | ".join(str(count[name]) for name in ("before", "during", "after"))
        return f"| {self._fault} {self.name} | {len(self.rows)} | {phases} | {seconds:.1f} | {len(bad) or '–'} |"


HEAD = """| target | runs | before first write | during | after | s each | runs with findings |
|---|---|---|---|---|---|---|"""


def python(*arguments: str) -> list[str]:
    """A command line of edgeinfer."""
    return [sys.executable, "-m", "edgeinfer", *arguments]


def starter() -> Path:
    """The starter model of the user's store. Raises SystemExit."""
    from edgeinfer.errors import EdgeInferError
    from edgeinfer.models.store import STARTER_SOURCE, ModelStore

    if path := os.environ.get("EDGEINFER_FAULT_MODEL"):
        return Path(path)
    try:
        return ModelStore().find(STARTER_SOURCE).path
    except EdgeInferError:
        raise SystemExit("the starter model is not in the store: give a model with --model FILE") from None
