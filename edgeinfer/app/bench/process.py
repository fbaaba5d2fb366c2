"""The benchmark's end of a child process: started once, loaded once, given one job after another.

In: a `BenchOpening` and jobs. Out: replies. A crash of the child becomes a reply with a problem ("crashed (signal
11)"), so that no engine can end the benchmark. Does not know what the child measures.
"""

from __future__ import annotations

from edgeinfer.app.bench.messages import BenchJob, BenchOpening, BenchReply
from edgeinfer.ipc.child import ChildDied, ChildProcess

MODULE = "edgeinfer.app.bench.child"
ANSWER_LIMIT_S = 600.0
CLOSE_LIMIT_S = 10.0


class BenchChild:
    """One process with one engine. The engine's failures never raise here; call `close` at the end."""

    def __init__(self, opening: BenchOpening, *, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._is_busy = False
        self._process: ChildProcess | None = None
        try:
            self._process = ChildProcess(MODULE)
        except ChildDied as reason:
            self.opened = BenchReply(problem=str(reason))
        else:
            self.opened = self._ask(opening)

    @property
    def alive(self) -> bool:
        """Whether the process can take jobs."""
        return self._process is not None and self._process.is_alive and self.opened.problem is None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job and return the reply."""
        return self._ask(job)

    def close(self) -> None:
        """End the process, cleanly unless it was interrupted at work; may be called twice."""
        if self._process is not None:
            self._process.close(patience_s=0.0 if self._is_busy else CLOSE_LIMIT_S)

    def _ask(self, message: BenchOpening | BenchJob) -> BenchReply:
        assert self._process is not None
        self._is_busy = True
        try:
            self._process.send(message)
            reply = self._process.receive(BenchReply, self._limit_s)
        except ChildDied as reason:
            reply = BenchReply(problem=str(reason))
        self._is_busy = False
        return reply
