"""A device in a comparison, seen from the parent: a child process that runs turns, is monitored, and is ended.

In: a device and what to open. Out: speeds, and `ContestantFailed` if the device cannot run, crashes or stops answering.
The child ends when its standard input closes, so also when this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.measure.idle import IdleBeside, is_busy
from edgeinfer.engine.racing.contest import Contestant, ContestantFailed, TurnSpeeds, Waiting
from edgeinfer.process import command, environment
from edgeinfer.settings import KVKind

MODULE = "edgeinfer.engine.racing.child"
LOOK_S = 0.25
"""Interval of checks while waiting; `Waiting` is called at each."""
OPEN_S, TURN_LIMIT_S = 180.0, 60.0
"""Time limits for opening (compiling and a first turn) and for a turn."""
SETTLE_S = 0.1
"""Settling time: threads of the previous device spin for some milliseconds after their work."""


@dataclass(frozen=True, slots=True)
class RacedModel:
    """What every device opens. `n_threads`: about how many threads it computes with."""

    path: Path
    options: DeviceOptions
    kv: KVKind
    n_threads: int


class ChildContestant:
    """A device in a separate process.

    `is_kind`: the name is that of a kind of devices; this contestant runs the first of them, and `open` returns the
    others. `start`: the command of the process.
    """

    def __init__(
        self, device: str, model: RacedModel, *, is_kind: bool = False, start: Sequence[str] | None = None
    ) -> None:
        self._device, self._model, self._is_kind = device, model, is_kind
        self._start = command(MODULE) if start is None else list(start)
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self._reported: tuple[str, int, int] | None = None
        self.open_s, self.turn_s = OPEN_S, TURN_LIMIT_S

    @property
    def device(self) -> str:
        """The device's name."""
        return self._device

    @property
    def pid(self) -> int:
        """The process id."""
        return 0 if self._process is None else self._process.pid

    def open(self, waiting: Waiting) -> Sequence[Contestant]:
        """Start the process and open the model there; returns contestants for other devices of its kind."""
        try:
            self._process = subprocess.Popen(
                self._start,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(os.environ),
            )
        except OSError as reason:
            raise ContestantFailed(f"{self._device} cannot be tried: {reason}") from None
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        model = self._model
        asked = {"path": str(model.path), "options": asdict(model.options), "kv": model.kv}
        self._say(json.dumps({**asked, "device": self._device, "is_kind": self._is_kind}))
        others: list[Contestant] = []
        until = time.monotonic() + self.open_s
        while "opened" not in (message := self._next(until, waiting)):
            self._device = str(message.get("device", self._device))
            self._reported = _reported(message.get("progress"))
            names = message.get("others", [])
            others += [ChildContestant(str(name), model) for name in (names if isinstance(names, list) else [])]
        self._reported = None
        return others

    def turn(self, waiting: Waiting) -> TurnSpeeds:
        """A prompt and some decoding, and whether other programs kept the machine busy meanwhile."""
        time.sleep(SETTLE_S)
        idle = IdleBeside(self.pid)
        self._say("")
        message = self._next(time.monotonic() + self.turn_s, waiting)
        is_quiet = not is_busy(idle.share(), self._model.n_threads)
        speeds = message.get("speeds")
        if not isinstance(speeds, list) or len(speeds) != 2 or not all(map(_is_speed, speeds)):
            raise ContestantFailed(f"{self._device} gave no speeds")
        return TurnSpeeds(speeds[0], speeds[1], is_quiet)

    def close(self) -> None:
        """End the process at once. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead; the end of its output reports that
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Forward the messages of the process, and None at its end."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:
                    break
                self._messages.put(message if isinstance(message, dict) else {})
        self._messages.put(None)

    def _next(self, until: float, waiting: Waiting) -> dict[str, object]:
        """The next message. Raises ContestantFailed, and whatever `waiting` raises."""
        while True:
            waiting(self._reported)
            try:
                message = self._messages.get(timeout=LOOK_S)
            except queue.Empty:
                if time.monotonic() < until:
                    continue
                raise ContestantFailed(f"{self._device} did not answer in time") from None
            if message is None:
                raise ContestantFailed(f"{self._device} ended by itself")
            if "error" in message:
                raise ContestantFailed(f"{self._device}: {message['error']}")
            return message


def _reported(found: object) -> tuple[str, int, int] | None:
    """The progress the process reported, while there is more to do."""
    if not isinstance(found, list) or len(found) != 3 or found[1] == found[2]:
        return None
    return str(found[0]), int(found[1]), int(found[2])


def _is_speed(found: object) -> bool:
    return isinstance(found, (int, float)) and 0 < found < 1e9
