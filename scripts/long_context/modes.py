"""Ways to answer with less than all of a long context, as these scripts name them.

A mode is what `edgeinfer run` has as options, joined by commas: `q8`, `q8q4` or `q4` (`--kv`), a number such as 0.05
(`--approx`), `kv=1024` (`--approx kv=1024`); and for comparison `window=1024`: the first 64 positions and the latest
ones, as many as that budget has. Budgets may be shares of the text: `kv=20%`. In: text. Out: a `Mode`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from edgeinfer.approximation import LEAST_BUDGET, Approximation
from edgeinfer.settings import KVKind

EXACT = "exact"
WINDOW, BUDGET = "window=", "kv="
COMPARED = ("50%", "20%", "10%")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a model is opened with."""

    kv: KVKind = "f16"
    threshold: float | None = None

    @property
    def approximation(self) -> Approximation:
        return Approximation(self.threshold)


@dataclass(frozen=True, slots=True)
class Mode:
    """`size`: of the budget or the window, a number of tokens or a share of the text; None: all of the text."""

    name: str
    opening: Opening = Opening()
    size: str | None = None
    is_window: bool = False

    @classmethod
    def parse(cls, name: str) -> Mode:
        """Read a mode. Raises ValueError, saying what is needed."""
        mode, parts = cls(name), [] if name == EXACT else name.split(",")
        for part in parts:
            if part in get_args(KVKind):
                mode = replace(mode, opening=replace(mode.opening, kv=part))
            elif part.startswith((BUDGET, WINDOW)) and mode.size is None:
                size = part.partition("=")[2]
                mode = replace(mode, size=checked_size(size), is_window=part.startswith(WINDOW))
            else:
                mode = replace(mode, opening=replace(mode.opening, threshold=Approximation.parse(part).threshold))
        return mode

    def budget(self, n_tokens: int) -> int:
        """The budget in a text of so many tokens, 0: all of it."""
        if self.size is None:
            return 0
        number = int(self.size.removesuffix("%"))
        n_seen = number * n_tokens // 100 if self.size.endswith("%") else number
        return max(LEAST_BUDGET, n_seen)


def checked_size(size: str) -> str:
    """A number of tokens, or a share of a text. Raises ValueError."""
    if not size.removesuffix("%").isdecimal():
        raise ValueError(f"{size!r} is no size: give a number of tokens such as kv=1024, or a share such as kv=20%")
    return size


USUAL = (
    *(f"{kind}{size}" for size in COMPARED for kind in (BUDGET, WINDOW)),
    *("q8", "q8q4", "q4", "0.03", "0.1"),
)
"""The modes that are measured unless others are named."""
