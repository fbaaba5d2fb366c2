"""How answers may differ from those of the exact model: the setting `approx`, read.

In: "0.05", "kv=1024", "prefill=2048", or several with commas between them. Out: an `Approximation`. Does not know what
any of it does.
"""

from __future__ import annotations

from dataclasses import dataclass

NEEDED = (
    "a threshold of activations such as 0.05, a budget of attention such as kv=1024 (192 tokens at least), one for "
    "reading prompts such as prefill=2048 (256 tokens at least), or several of them with commas between them"
)
LEAST_BUDGET = 192
"""The first chunk of 64 positions, a token's own, and the one before it."""
LEAST_PREFILL = 256
"""The same, and a chunk that is chosen."""
LEAST = {"kv": LEAST_BUDGET, "prefill": LEAST_PREFILL}
"""The smallest budgets, in positions."""


@dataclass(frozen=True, slots=True)
class Approximation:
    """What is left out. `threshold`: activations below it; `kv`: cached tokens beyond about so many. None: nothing.

    `prefill`: of what tokens of prompts attend to, positions beyond about so many.
    """

    threshold: float | None = None
    kv: int | None = None
    prefill: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left out."""
        return self == EXACT

    def __str__(self) -> str:
        """As the setting spells it."""
        parts = [] if self.threshold is None else [f"{self.threshold:g}"]
        parts += [f"{name}={getattr(self, name)}" for name in LEAST if getattr(self, name) is not None]
        return ",".join(parts)

    @classmethod
    def parse(cls, value: object) -> Approximation:
        """Read the setting. Raises ValueError, saying what is needed."""
        if isinstance(value, Approximation):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(NEEDED)
        threshold: float | None = None
        budgets: dict[str, int] = {}
        for part in str(value).replace(" ", "").split(","):
            name, equals, said = part.partition("=")
            if equals and name in LEAST.keys() - budgets and said.isdecimal() and int(said) >= LEAST[name]:
                budgets[name] = int(said)
            elif not equals and threshold is None:
                threshold = _threshold(part)
            else:
                raise ValueError(NEEDED)
        return cls(threshold, **budgets)


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
