"""The child process of an isolated evaluator, seen from its parent: opening it, calling it, noticing its death.

In: a `RemoteOpening`, calls. Out: replies, and `ChildDied`. Arrays pass through memory that both processes map.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeinfer.backends.base import PATIENCE_S
from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteFacts, RemoteOpening, RemoteReply, Shared
from edgeinfer.engine.kv.saved_state import ReadText
from edgeinfer.errors import DeviceFailed
from edgeinfer.ipc.child import ChildDied, ChildProcess
from edgeinfer.ipc.records import read_as
from edgeinfer.steps import Progress, no_progress
from edgeinfer.temporary import temporary_folder

MODULE = "edgeinfer.engine.isolation.child"
STOP_S = 5.0
"""Time allowed for a child to interrupt a pass."""
OPEN_S, ANSWER_S = 3600.0, 2 * PATIENCE_S
"""Longest time between two messages while a model is opened, and for a reply: the device's own limit expires first."""


class Child:
    """One child process with a model open. Close it."""

    def __init__(self, opening: RemoteOpening, progress: Progress = no_progress) -> None:
        """Raises what opening the model raises there, and DeviceFailed if the process dies of it."""
        self._process: ChildProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._n_calls = 0
        self._is_left = False
        try:
            self._process = ChildProcess(MODULE, stuck_s=ANSWER_S)
            self._process.send(opening)
            self.facts = self._opened(self._process, progress)
            self._folder = temporary_folder("edgeinfer", _memory_folder())
            self._share(Path(self._folder.name) / "shared")
            self._folder.cleanup()  # both have mapped it; nothing is left if this process is killed
        except ChildDied as reason:
            self.close()
            raise DeviceFailed(f"{opening.load.device} cannot run {opening.path}: its process {reason}") from None
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return 0 if self._process is None else self._process.pid

    def call(self, call: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        """Send a call and wait for its reply; a stop requested meanwhile is passed on.

        Raises ChildDied, and what the call raises there.
        """
        if self._process is None:
            raise ChildDied("was closed")
        self._n_calls += 1
        self._process.send(replace(call, number=self._n_calls))
        if not call.answered:
            return RemoteReply()

        def look() -> float:
            if not (self._is_left or (stopped is not None and stopped.is_set())):
                return math.inf
            self.shared.flag[0] = 1
            return STOP_S

        while True:
            reply = self._process.receive(RemoteReply, ANSWER_S, look)
            if reply.number >= self._n_calls:
                reply.raise_error()
                return reply

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Use around code that decodes a reply: an invalid reply ends the child. Raises ChildDied."""
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as reason:
            if self._process is not None:
                self._process.end(reason)
            raise ChildDied(f"gave an answer that makes no sense ({reason}) and was ended") from None

    def leave(self) -> None:
        """Limit waits to the time of a stop, because the child is about to be closed. Safe from any thread."""
        self._is_left = True

    def close(self) -> None:
        """End the process and free the shared memory. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _share(self, path: Path) -> None:
        """Map a new file here and there."""
        facts = self.facts
        path.touch(0o600)
        self.shared = Shared(
            path, facts.max_tokens, facts.max_outputs, facts.n_vocab, facts.row_width, len(facts.scales)
        )
        self.call(RemoteCall("share", {"path": str(path)}))

    def _opened(self, process: ChildProcess, progress: Progress) -> RemoteFacts:
        """Wait until the model is open."""
        while True:
            reply = process.receive(RemoteReply, OPEN_S)
            reply.raise_error()
            if reply.progress is None:
                with self.understood():
                    facts: RemoteFacts = read_as(RemoteFacts, reply.value)
                return facts
            progress(*reply.progress)


def _memory_folder() -> str | None:
    """A folder whose files never reach a disk, if there is one."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


@dataclass(slots=True)
class KnownSequence:
    """The contents of a sequence: the saved state it began with, if any, and the text read after it.

    Enough to read it again in another process. `there`: its number in the process, None if the process lacks it.
    """

    there: int | None = None
    state: bytes = b""
    n_state: int = 0
    text: ReadText = field(default_factory=ReadText)

    @property
    def n_cached(self) -> int:
        return self.n_state + len(self.text)

    def whole_before(self, n_cached: int) -> int:
        """The most of the first `n_cached` tokens that can be read again without those after them."""
        return min(n_cached, self.n_state + self.text.whole_before(max(0, n_cached - self.n_state)))

    def truncate(self, n_cached: int) -> int:
        """Drop everything after `n_cached` tokens, and return that; the rest of the saved state is used unchanged."""
        self.text.cut(max(0, n_cached - self.n_state))
        if not n_cached:
            self.state = b""
        self.n_state = min(self.n_state, n_cached)
        return n_cached
