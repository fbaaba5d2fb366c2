"""The result of a comparison: each device's speed, the device chosen, and a line that says so.

In: measurements. Out: a device's name, text. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.engine.run.executor import AUTO_DEVICE

ANSWER = 200, 200
"""Tokens of the prompt and of the answer that devices are compared on."""
WORTH = 1.1
"""How many times faster than the CPU another device must be: CPU output is bit-exact with and without drafts."""


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
