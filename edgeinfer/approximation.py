"""How answers may differ from those of the exact model: the setting `approx`, read.

In: "0.05", "kv=1024", or several with commas between them. Out: an `Approximation`. Does not know what any of it does.
"""

from __future__ import annotations

from dataclasses import dataclass

NEEDED = (
    "a threshold of activations such as 0.05, a budget of attention such as kv=1024 (192 tokens at least), or both "
    "with a comma between them"
)
LEAST_BUDGET = 192
"""The first chunk of 64 positions, a token's own, and the one before it."""


@dataclass(frozen=True, slots=True)
class Approximation:
    """What is left out. `threshold`: activations below it; `kv`: cached tokens beyond about so many. None: nothing."""

    threshold: float | None = None
    kv: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left out."""
        return self == EXACT

    def __str__(self) -> str:
        """As the setting spells it."""
        parts = (
            None if self.threshold is None else f"{self.threshold:g}",
            None if self.kv is None else f"kv={self.kv}",
        )
        return ",".join(part for part in parts if part is not None)

    @classmethod
    def parse(cls, value: object) -> Approximation:
        """Read the setting. Raises ValueError, saying what is needed."""
        if isinstance(value, Approximation):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(NEEDED)
        threshold: float | None = None
        budget: int | None = None
        for part in str(value).replace(" ", "").split(","):
            name, equals, said = part.partition("=")
            if equals and name == "kv" and budget is None and said.isdecimal() and int(said) >= LEAST_BUDGET:
                budget = int(said)
            elif not equals and threshold is None:
                threshold = _threshold(part)
            else:
                raise ValueError(NEEDED)
        return cls(threshold, budget)


def _threshold(text: str) -> float:
    """A threshold, which is compared as float32."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(NEEDED) from None
    if not 1e-30 <= value < float("inf"):
        raise ValueError(NEEDED)
    return value


EXACT = Approximation()
