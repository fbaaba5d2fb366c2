"""Gives jobs to each kind of executor: a child process, a user's script, or the start of a process.

In: a `BenchExecutor` and the conditions of the benchmark. Out: `Runner`s that answer jobs with replies. Problems are
replies too, even a crash of the child ("crashed (signal 11)"), so that no engine can end the benchmark. Does not know
how a child or a script measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from edgeinfer.app.bench.child import FIRST_TOKEN
from edgeinfer.app.bench.request import BenchExecutor
from edgeinfer.app.bench.subject import BenchJob, BenchOpening, BenchReply, Conditions, Purpose
from edgeinfer.ipc.child import ChildDied, ChildProcess, ending
from edgeinfer.ipc.records import to_json
from edgeinfer.process import command, environment
from edgeinfer.temporary import temporary_folder

FIRST_QUESTION = "Hi"
PURPOSES: Mapping[str, Purpose] = MappingProxyType({"chat": "answers", "ops": "ops", "drafting": "drafting"})


class Runner(Protocol):
    """Answers jobs; a problem of the executor is also a reply."""

    def run(self, job: BenchJob) -> BenchReply: ...

    def close(self) -> None: ...


def runner_for(executor: BenchExecutor, conditions: Conditions) -> Runner:
    """The runner of an executor; starts nothing yet."""
    if executor.kind == "script":
        assert executor.path is not None
        return ScriptRunner(executor.path, conditions)
    return ChildRunner(executor, conditions)


class ChildRunner:
    """A child process with the engine loaded, started at the first job and again after a crash."""

    def __init__(self, executor: BenchExecutor, conditions: Conditions) -> None:
        self._executor, self._conditions = executor, conditions
        self._child: BenchChild | None = None
        self._opening = BenchOpening(executor.key, conditions, executor.path)
        self._refused: BenchReply | None = None

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job in the child, or time the start of a process."""
        if job.test == "start":
            return self._start(job)
        if self._refused is not None:
            return self._refused
        purpose = PURPOSES.get(job.test, "passes") if self._executor.kind == "ours" else "passes"
        opening = replace(self._opening, purpose=purpose)
        if self._child is None or not self._child.alive or opening != self._opening:
            self.close()
            self._opening, self._child = opening, BenchChild(opening)
            if self._child.opened.problem is not None:
                self._refused = self._child.opened
                return self._refused
        return self._child.run(job)

    def close(self) -> None:
        """End the child, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _start(self, job: BenchJob) -> BenchReply:
        if self._executor.kind == "peer":
            if job.cold:
                return BenchReply(problem="has no kernels to compile at its first start")
            first = command(MODULE, FIRST_TOKEN, to_json(self._opening))
            return seconds_to_output(first, environment(os.environ))
        if job.cold and sys.platform != "linux":
            return BenchReply(problem="a start with nothing compiled is measured on Linux only")
        with temporary_folder("edgeinfer-bench") as folder:
            own = {"EDGEINFER_HOME": folder} | ({"XDG_CACHE_HOME": folder} if job.cold else {})
            return seconds_to_output(self._first_answer(), environment(os.environ) | own)

    def _first_answer(self) -> list[str]:
        """The command line of a process that gives one first answer."""
        wanted = self._conditions
        cores = [] if wanted.cores is None else ["--cores", ",".join(str(core) for core in wanted.cores)]
        return [
            *command("edgeinfer", "run", "-m", str(wanted.model), FIRST_QUESTION),
            *("--max-tokens", "1", "--temp", "0", "--device", self._executor.key, "--schedule", wanted.schedule),
            *("--threads", str(wanted.threads), "--kv", wanted.kv, *cores),
        ]


def seconds_to_output(command: list[str], environment: dict[str, str]) -> BenchReply:
    """Seconds from the start of a process to the first byte it prints."""
    with tempfile.TemporaryFile() as messages:
        started = time.perf_counter()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, env=environment
        ) as process:
            assert process.stdout is not None
            first = os.read(process.stdout.fileno(), 1)
            seconds = time.perf_counter() - started
            process.stdout.read()
        if process.returncode or not first:
            messages.seek(0)
            return BenchReply(problem=ending(process.returncode, messages.read().decode(errors="replace")))
    return BenchReply({1: seconds})


MODULE = "edgeinfer.app.bench.child"
ANSWER_LIMIT_S = 600.0
CLOSE_LIMIT_S = 10.0


class BenchChild:
    """One process with one engine. The engine's failures never raise here; call `close` at the end."""

    def __init__(self, opening: BenchOpening, *, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._is_busy = False
        self._process = ChildProcess(MODULE)
        self.opened = self._ask(opening)

    @property
    def alive(self) -> bool:
        """Whether the process can take jobs."""
        return self._process.is_alive and self.opened.problem is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job and return the reply."""
        return self._ask(job)

    def close(self) -> None:
        """End the process, cleanly unless it was interrupted at work; may be called twice."""
        self._process.close(patience_s=0.0 if self._is_busy else CLOSE_LIMIT_S)

    def _ask(self, message: BenchOpening | BenchJob) -> BenchReply:
        self._is_busy = True
        try:
            self._process.send(message)
            reply = self._process.receive(BenchReply, self._limit_s)
        except ChildDied as reason:
            reply = BenchReply(problem=str(reason))
        self._is_busy = False
        return reply


NOT_ASKED = ("chat", "start", "ops")


class ScriptRunner:
    """Runs a script for every figure."""

    def __init__(self, script: Path, conditions: Conditions) -> None:
        self._script, self._conditions = script, conditions

    def run(self, job: BenchJob) -> BenchReply:
        """Run the script; for a verification, once per number of tokens."""
        if job.test in NOT_ASKED:
            return BenchReply(problem=f"a script is not asked for {job.test}, only for prefill, decode and verify")
        seconds: dict[int, float] = {}
        for count in job.counts or (job.n,):
            rate = self._rate(job, count)
            if isinstance(rate, str):
                return BenchReply(problem=rate)
            seconds[count] = count / rate
        return BenchReply(seconds)

    def close(self) -> None:
        """Does nothing: nothing stays open between jobs."""

    def _rate(self, job: BenchJob, count: int) -> float | str:
        """Tokens per second, or the problem."""
        wanted = self._conditions
        arguments = [str(wanted.model), job.test, str(count), str(job.depth), str(wanted.threads)]
        try:
            done = subprocess.run(
                [sys.executable, str(self._script), *arguments],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=ANSWER_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return f"gave no answer within {ANSWER_LIMIT_S:.0f} s"
        if done.returncode:
            return ending(done.returncode, done.stderr.decode(errors="replace"))
        lines = done.stdout.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        try:
            rate = float(last)
        except ValueError:
            rate = 0.0
        return rate if 0 < rate < float("inf") else f"printed {last[:80]!r} where tokens per second were expected"
