"""Ways to answer with less than all of a long context, as these scripts name them.

A mode is what `edgeinfer run` has as options, joined by commas: `q8`, `q8q4` or `q4` (`--kv`), a number such as 0.05
(`--approx`), `kv=1024` or `prefill=1024` (`--approx` too); and for comparison `window=1024`: the first 64 positions and
the latest ones, as many as that budget has. Budgets may be shares of the text: `kv=20%`. In: text. Out: a `Mode`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from edgeinfer.approximation import LEAST_BUDGET, LEAST_PREFILL, Approximation
from edgeinfer.settings import KVKind

EXACT = "exact"
WINDOW, BUDGET, PREFILL = "window=", "kv=", "prefill="
COMPARED = ("50%", "20%", "10%")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a model is opened with. `prefill`: the size of the budget for prompts; None: they are read in full."""

    kv: KVKind = "f16"
    threshold: float | None = None
    prefill: str | None = None

    def block_budget(self, n_tokens: int) -> int | None:
        """The budget for prompts in a text of so many tokens."""
        return None if self.prefill is None else max(LEAST_PREFILL, n_positions(self.prefill, n_tokens))


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
                size = checked_size(part.partition("=")[2])
                mode = replace(mode, size=size, is_window=part.startswith(WINDOW))
            elif part.startswith(PREFILL):
                mode = replace(mode, opening=replace(mode.opening, prefill=checked_size(part.removeprefix(PREFILL))))
            else:
                mode = replace(mode, opening=replace(mode.opening, threshold=Approximation.parse(part).threshold))
        return mode

    def budget(self, n_tokens: int) -> int:
        """The budget in a text of so many tokens, 0: all of it."""
        return 0 if self.size is None else max(LEAST_BUDGET, n_positions(self.size, n_tokens))


def checked_size(size: str) -> str:
    """A number of tokens, or a share of a text. Raises ValueError."""
    if not size.removesuffix("%").isdecimal():
        raise ValueError(f"{size!r} is no size: give a number of tokens such as kv=1024, or a share such as kv=20%")
    return size


def n_positions(size: str, n_tokens: int) -> int:
    """The positions that a size stands for in a text of so many tokens."""
    number = int(size.removesuffix("%"))
    return number * n_tokens // 100 if size.endswith("%") else number


USUAL = (
    *(f"{kind}{size}" for size in COMPARED for kind in (BUDGET, WINDOW)),
    *(f"{PREFILL}{size}" for size in COMPARED),
    *("q8", "q8q4", "q4", "0.03", "0.1"),
)
"""The modes that are measured unless others are named."""
