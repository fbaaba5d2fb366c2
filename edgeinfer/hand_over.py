"""When a small model that writes hands over to the large one: the setting `hand_over`, read.

In: "bild", "bild=0.6,3", "entropy=1.5", "steps=7". Out: a `HandOver`. Does not know what any of it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import Literal, cast, get_args

HandOverKind = Literal["bild", "entropy", "steps"]
NEEDED = (
    "bild, or bild=PROBABILITY,NATS such as bild=0.6,3 (hand over below the probability, roll back above the nats), "
    "entropy, or entropy=NATS such as entropy=1.5, steps, or steps=SCORE from 0 to 9 such as steps=7"
)
USUAL: dict[HandOverKind, tuple[float, ...]] = {"bild": (0.6, 3.0), "entropy": (1.5,), "steps": (7.0,)}
"""The numbers of each kind where none are given."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """When the large model writes in place of the small one.

    kind      bild: where the small model's likeliest token is less probable than `limit`; entropy: where the entropy of
              its next token is above `limit`, in nats; steps: in place of steps that the large model rates below
              `limit`, of 9
    limit     see kind
    rollback  tokens of the small model whose negative log probability by the large one is above this, in nats, are
              written anew with all that follows them
    """

    kind: HandOverKind
    limit: float
    rollback: float = inf

    def __str__(self) -> str:
        """As the setting spells it."""
        numbers = (self.limit, self.rollback) if self.kind == "bild" else (self.limit,)
        return f"{self.kind}={','.join(f'{number:g}' for number in numbers)}"

    @classmethod
    def parse(cls, value: object) -> HandOver:
        """Read the setting. Raises ValueError, saying what is needed."""
        if isinstance(value, HandOver):
            return value
        if not isinstance(value, str):
            raise ValueError(NEEDED)
        name, equals, said = value.replace(" ", "").partition("=")
        if name not in get_args(HandOverKind):
            raise ValueError(NEEDED)
        kind = cast("HandOverKind", name)
        most = {"bild": 1.0, "entropy": inf, "steps": 9.0}[kind]
        numbers = tuple(map(_number, said.split(","))) if equals else USUAL[kind]
        if len(numbers) != len(USUAL[kind]) or numbers[0] > most:
            raise ValueError(NEEDED)
        return cls(kind, *numbers)


def _number(text: str) -> float:
    """A number that is not negative; "inf" is one."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(NEEDED) from None
    if isnan(value) or value < 0:
        raise ValueError(NEEDED)
    return value


def hand_over_text(value: object) -> str:
    """The setting with all its numbers. Raises ValueError, saying what is needed."""
    return str(HandOver.parse(value))


USUAL_HAND_OVER = hand_over_text("bild")
