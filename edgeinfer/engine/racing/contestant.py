"""A device in a comparison, seen from the parent: a child process that runs turns, is monitored, and is ended.

In: a device and what to open. Out: speeds, and `ContestantFailed` if the device cannot run, crashes or stops answering.
The child ends when its standard input closes, so also when this process is killed. `compared` is the entrance to this
room: it runs all devices of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.measure.idle import IdleBeside, is_busy
from edgeinfer.engine.opening.device_choice import DeviceChoice, entrant_kinds
from edgeinfer.engine.racing.child import RaceOpening, RaceReply, RaceTurn
from edgeinfer.engine.racing.contest import (
    Contestant,
    ContestantFailed,
    Finish,
    TurnSpeeds,
    Waiting,
    compare,
    is_certain,
    notice_of,
    runner_up_of,
    winner_of,
)
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.workers import shared_cores
from edgeinfer.ipc.child import ChildDied, ChildProcess
from edgeinfer.scheduling.machine.topology import Topology, available_bytes
from edgeinfer.setting_values import KVKind
from edgeinfer.steps import Progress

MODULE = "edgeinfer.engine.racing.child"
LOOK_S = 0.25
"""Interval of checks while waiting; `Waiting` is called at each."""
OPEN_S, TURN_LIMIT_S = 180.0, 60.0
"""Time limits for opening (compiling and a first turn) and for a turn."""
SETTLE_S = 0.1
"""Settling time: threads of the previous device spin for some milliseconds after their work."""
OPENED_BYTES = 1 << 30
"""Memory of a device in a comparison: its runtime, and the layers in the file's form and in the device's own."""


def compared(
    subject: Subject, topology: Topology, options: DeviceOptions, kv: KVKind, progress: Progress
) -> tuple[DeviceChoice, str | None]:
    """Time every device that can run the model, each in a separate process.

    Returns the choice, and a line that says so; None if only one device could run the model.
    """
    names = entrant_kinds(kv)
    model = RacedModel(subject.file.path, options, kv, len(shared_cores(options, topology)))
    contestants: list[Contestant] = [ChildContestant(name, model, is_kind=True) for name in names]
    finishes = compare(contestants, progress, together=available_bytes() >= len(names) * OPENED_BYTES)
    return choice_of(finishes), notice_of(finishes) if len(finishes) > 1 else None


def choice_of(finishes: Sequence[Finish]) -> DeviceChoice:
    """The winner, and how certain it is."""
    runner_up = runner_up_of(finishes)
    runner_up_tok_s = None if runner_up is None else round(runner_up.decode_tok_s, 1)
    return DeviceChoice(winner_of(finishes), not is_certain(finishes), runner_up_tok_s=runner_up_tok_s)


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
    others.
    """

    def __init__(self, device: str, model: RacedModel, *, is_kind: bool = False) -> None:
        self._device, self._model, self._is_kind = device, model, is_kind
        self._process: ChildProcess | None = None
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
        model = self._model
        try:
            self._process = ChildProcess(MODULE)
        except OSError as reason:
            raise ContestantFailed(f"{self._device} cannot be tried: {reason}") from None
        self._send(RaceOpening(model.path, self._device, self._is_kind, model.options, model.kv))
        others: list[Contestant] = []
        until = time.monotonic() + self.open_s
        while not (reply := self._next(until, waiting)).is_open:
            if reply.devices:
                self._device, *names = reply.devices
                others += [ChildContestant(name, model) for name in names]
            is_under_way = reply.progress is not None and reply.progress[1] != reply.progress[2]
            self._reported = reply.progress if is_under_way else None
        self._reported = None
        return others

    def turn(self, waiting: Waiting) -> TurnSpeeds:
        """A prompt and some decoding, and whether other programs kept the machine busy meanwhile."""
        time.sleep(SETTLE_S)
        idle = IdleBeside(self.pid)
        self._send(RaceTurn())
        speeds = self._next(time.monotonic() + self.turn_s, waiting).speeds
        is_quiet = not is_busy(idle.share(), self._model.n_threads)
        if speeds is None or not all(0 < speed < 1e9 for speed in speeds):
            raise ContestantFailed(f"{self._device} gave no speeds")
        return TurnSpeeds(*speeds, is_quiet)

    def close(self) -> None:
        """End the process at once. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.close()

    def _send(self, record: RaceOpening | RaceTurn) -> None:
        assert self._process is not None
        try:
            self._process.send(record)
        except ChildDied as reason:
            raise ContestantFailed(f"{self._device} {reason}") from None

    def _next(self, until: float, waiting: Waiting) -> RaceReply:
        """The next reply. Raises ContestantFailed, and whatever `waiting` raises."""
        assert self._process is not None
        try:
            waiting(self._reported)
            while not self._process.poll(LOOK_S):
                waiting(self._reported)
                if time.monotonic() >= until:
                    raise ContestantFailed(f"{self._device} did not answer in time")
            reply = self._process.receive(RaceReply, LOOK_S)
        except ChildDied as reason:
            raise ContestantFailed(f"{self._device} {reason}") from None
        if reply.error:
            raise ContestantFailed(f"{self._device}: {reply.error}")
        return reply
