"""The bench's end of a child process: started once, kept loaded, asked by lines.

In: a `BenchOpening` and jobs. Out: replies; what a child dies of becomes a reply with a problem ("crashed (signal
11)"), so that no engine can end the bench. Knows nothing of what the child measures.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading

from edgeinfer.app.bench.messages import BenchJob, BenchOpening, BenchReply, decode_reply, encode
from edgeinfer.children import command, environment

ANSWER_LIMIT_S = 600.0
CLOSE_LIMIT_S = 10.0
KEPT_MESSAGE = 200


class BenchChild:
    """One process with one engine. Raises nothing for what the engine does; close it."""

    def __init__(self, opening: BenchOpening, *, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command("edgeinfer.app.bench.child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env=environment(os.environ),
            encoding="utf-8",
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.opened = self._ask(encode(opening))

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None and self.opened.problem is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: BenchJob) -> BenchReply:
        """The answer to a job."""
        return self._ask(encode(job))

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # it has died with a line unread
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._messages.close()

    def _ask(self, line: str) -> BenchReply:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._lines.get(timeout=self._limit_s)
        except queue.Empty:
            self._process.kill()
            return BenchReply(problem=f"gave no answer within {self._limit_s:.0f} s")
        except OSError:
            answer = ""
        if not answer:
            self._process.wait()
            self._messages.seek(0)
            return BenchReply(problem=ended(self._process.returncode, self._messages.read().decode(errors="replace")))
        try:
            return decode_reply(answer)
        except ValueError as reason:
            return BenchReply(problem=str(reason))

    def _read(self) -> None:
        """Pass on lines; an empty one says that there will be no more."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def ended(code: int, messages: str) -> str:
    """What a process that ended by itself died of, for people."""
    said = [line.strip() for line in messages.splitlines() if line.strip()]
    last = f": {said[-1][:KEPT_MESSAGE]}" if said else ""
    if code < 0:
        try:
            name = f", {signal.Signals(-code).name}"
        except ValueError:
            name = ""
        return f"crashed (signal {-code}{name}){last}"
    return f"ended with exit code {code}{last}"
