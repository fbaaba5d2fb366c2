"""A user's script as an executor: it runs the test it is given and prints tokens per second.

In: jobs. Out: replies. The script is run once per figure, as MODEL TEST N DEPTH THREADS; the last line it prints is its
tok/s. The script decides how it measures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgeinfer.app.bench.executors import Conditions
from edgeinfer.app.bench.messages import BenchJob, BenchReply
from edgeinfer.app.bench.process import ANSWER_LIMIT_S
from edgeinfer.ipc.child import ending

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
