"""Rotary position embedding as records: the frequencies of a table, and which of three positions rotates each pair.

`models.rope` computes the tables; the op `rope` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding frequencies; `models.rope` computes the numbers.

    `factors` names a float32[rotary_width / 2] tensor that divides the frequencies (Llama 3, LongRoPE), or is None.
    `scaling` linear divides all frequencies by `factor`; yarn blends by wavelength (Peng et al., arXiv 2309.00071);
    longrope has other factors for contexts above `original_context` (arXiv 2402.13753); still turns nothing.
    `magnitude` multiplies cos and sin. So does, with a `growth`, 1 + growth * ln(1 + floor((position + growth_start) /
    growth_period)): queries that grow by steps (Llama 4, Ministral 3). `ahead`: tokens turn as if they stood so many
    positions later. `given`: the frequency of each pair, instead of base^(-2i / rotary_width): image encoders begin
    them again for each axis.
    """

    base: float
    rotary_width: int
    scaling: Literal["none", "linear", "yarn", "longrope", "still"] = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    factors: str | None = None
    growth: float = 0.0
    growth_period: int = 0
    growth_start: int = 0
    ahead: int = 0
    given: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RopeSections:
    """Which of a token's three positions rotates each pair: counts of pairs for temporal, height and width.

    The pairs come in that order, or, if `interleaved`, height takes pairs 1, 4, 7 … and width 2, 5, 8 … (Qwen3-VL).
    """

    temporal: int
    height: int
    width: int
    interleaved: bool = False

    def axes(self) -> NDArray[np.int64]:
        """The axis of each pair: int64[rotary_width / 2], 0 temporal, 1 height, 2 width."""
        if not self.interleaved:
            return np.repeat(np.arange(3), (self.temporal, self.height, self.width))
        found = np.zeros(self.temporal + self.height + self.width, np.int64)
        found[1 : 3 * self.height : 3] = 1
        found[2 : 3 * self.width : 3] = 2
        return found
