"""Devices take turns running a model, and each turn checks whether other programs used the machine.

In: contestants, opened one by one. Out: a `Finish` for each that completed a turn. How contestants run is their own
matter. A turn under load counts only for a device that had no turn without load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.racing.finish import Finish
from edgeinfer.steps import Progress

ROUNDS, MOST_ROUNDS = 2, 4
"""Turns per device, and the maximum while a device has had no turn without load."""


Waiting = Callable[[tuple[str, int, int] | None], None]
"""Called at least every second while waiting for a device, with the progress it reports, if any.

Raises whatever ends the comparison.
"""


class ContestantFailed(Exception):
    """A device cannot run the model, or has crashed or stalled; it takes no further part."""


@dataclass(frozen=True, slots=True)
class TurnSpeeds:
    """Tokens per second in a turn, and whether other programs left the device its cores."""

    prefill_tok_s: float
    decode_tok_s: float
    is_quiet: bool


class Contestant(Protocol):
    """One device with the model, to be opened once."""

    @property
    def device(self) -> str: ...

    def open(self, waiting: Waiting) -> Sequence[Contestant]:
        """Open the model; returns contestants for further devices found. Raises ContestantFailed."""
        ...

    def turn(self, waiting: Waiting) -> TurnSpeeds:
        """Read a prompt and decode. Raises ContestantFailed."""
        ...

    def close(self) -> None: ...


def compare(contestants: Sequence[Contestant], progress: Progress, *, together: bool = True) -> tuple[Finish, ...]:
    """Time every device that can run the model. `together`: all keep it open at the same time and take turns.

    Raises whatever `progress` raises, after closing everything.
    """
    steps, finishes = _Steps(progress, len(contestants)), list[Finish]()
    groups = [list(contestants)] if together else [[each] for each in contestants]
    for group in groups:
        finishes += _compared(group, steps)
    return tuple(finishes)


class _Steps:
    """Reports the progress of the comparison."""

    def __init__(self, progress: Progress, n_devices: int) -> None:
        self._progress = progress
        self._n_devices, self._n_done = n_devices, 0

    def add_devices(self, n_more: int) -> None:
        self._n_devices += n_more

    def begin(self, device: str) -> Waiting:
        """Begin a step of a device; returns the function to call while it lasts."""
        total = self._n_devices * (1 + ROUNDS)
        done = min(self._n_done, total - 1)
        self._n_done += 1

        def tell(reported: tuple[str, int, int] | None = None) -> None:
            self._progress(*(reported or (f"comparing devices, once: {device}", done, total)))

        tell()
        return tell


def _compared(contestants: list[Contestant], steps: _Steps) -> list[Finish]:
    opened, waiting = list[Contestant](), list(contestants)
    turns: dict[str, list[TurnSpeeds]] = {}
    try:
        while waiting:
            each = waiting.pop(0)
            opened.append(each)
            try:
                found = each.open(steps.begin(each.device))
            except ContestantFailed:
                continue
            waiting += found
            steps.add_devices(len(found))
            turns[each.device] = []
        for turn in range(MOST_ROUNDS):
            if turn >= ROUNDS and all(any(one.is_quiet for one in done) for done in turns.values()):
                break
            for each in opened:
                if each.device in turns:
                    try:
                        turns[each.device].append(each.turn(steps.begin(each.device)))
                    except ContestantFailed:
                        del turns[each.device]
    finally:
        for each in opened:
            each.close()
    return [_finish(device, done) for device, done in turns.items() if done]


def _finish(device: str, turns: Sequence[TurnSpeeds]) -> Finish:
    """The best of the turns without load, or of all turns if there were none."""
    quiet = [turn for turn in turns if turn.is_quiet]
    counted = quiet or turns
    return Finish(
        device, max(turn.prefill_tok_s for turn in counted), max(turn.decode_tok_s for turn in counted), bool(quiet)
    )
