"""A comparison of devices: they take turns running a model, and the result names the fastest.

In: contestants, opened one by one. Out: a `Finish` for each that completed a turn, the device chosen, and a line that
says so. Each turn checks whether other programs used the machine; a turn under load counts only for a device that had
no turn without load. How contestants run is their own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.steps import Progress

ROUNDS, MOST_ROUNDS = 2, 4
"""Turns per device, and the maximum while a device has had no turn without load."""


Waiting = Callable[[tuple[str, int, int] | None], None]
"""Called at least every second while waiting for a device, with the progress it reports, if any.

Raises whatever ends the comparison.
"""
ANSWER = 200, 200
"""Tokens of the prompt and of the answer that devices are compared on."""
WORTH = 1.1
"""How many times faster than the CPU another device must be: CPU output is bit-exact with and without drafts."""


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


@dataclass(frozen=True, slots=True)
class Finish:
    """A device's speed, in tokens per second of the whole model.

    `is_quiet`: other programs left it the cores that it used.
    """

    device: str
    prefill_tok_s: float
    decode_tok_s: float
    is_quiet: bool = True

    @property
    def answer_s(self) -> float:
        """Seconds of a typical answer."""
        return ANSWER[0] / self.prefill_tok_s + ANSWER[1] / self.decode_tok_s


def winner_of(finishes: Sequence[Finish]) -> str:
    """The device with the fastest answer; the CPU unless another one is clearly faster."""
    cpu = [each for each in finishes if each.device == AUTO_DEVICE]
    best = min(finishes, key=lambda each: each.answer_s, default=None)
    if best is None or (cpu and cpu[0].answer_s <= best.answer_s * WORTH):
        return AUTO_DEVICE
    return best.device


def runner_up_of(finishes: Sequence[Finish]) -> Finish | None:
    """The fastest device after the winner."""
    winner = winner_of(finishes)
    return min((each for each in finishes if each.device != winner), key=lambda each: each.answer_s, default=None)


def is_certain(finishes: Sequence[Finish]) -> bool:
    """Whether load from other programs cannot have decided the winner."""
    return all(each.is_quiet for each in finishes)


def notice_of(finishes: Sequence[Finish]) -> str:
    """One line for people. Prefill speeds are shown if decoding speeds alone do not explain the winner."""
    order = sorted(finishes, key=lambda each: (each.device != winner_of(finishes), each.answer_s))
    winner, others = order[0], order[1:]
    explained = all(each.decode_tok_s <= winner.decode_tok_s for each in others)

    def speed(each: Finish, unit: str = "") -> str:
        if explained:
            return f"{each.decode_tok_s:.0f}{unit}"
        return f"{each.prefill_tok_s:.0f}{unit} for prompts and {each.decode_tok_s:.0f} for answers"

    is_best = all(winner.answer_s <= each.answer_s for each in others)
    what = "is the fastest device here" if is_best else "is about as fast as any device here"
    compared = "; ".join(f"{each.device} {speed(each)}" for each in others)
    if explained:
        compared = compared.replace("; ", ", ")
    again = "" if is_certain(finishes) else "; other programs were busy, so a later start compares again"
    return f"{winner.device} {what}: {speed(winner, ' tok/s')} ({compared}); --device chooses another{again}"
