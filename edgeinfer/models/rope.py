"""Rotary position embedding: from a RopeTable to frequencies and tables of cosines and sines.

Shared by all devices, so that they rotate by the same float32 numbers. Angles are computed in float64. Sources:
RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071, section 3.2), Llama 3 and LongRoPE factors from the file.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.rotary import RopeTable


def frequencies(table: RopeTable, factors: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
    """Angle per position of each rotary pair: float64[rotary_width / 2].

    `factors`, float32[rotary_width / 2], is the tensor that the table names, or None. Raises BadGGUF if it has another
    length or a value that is not a finite number above zero.
    """
    pairs = np.arange(0, table.rotary_width, 2, dtype=np.float64) / table.rotary_width
    plain = table.base**-pairs
    if factors is not None:
        if factors.shape != plain.shape or not np.all(np.isfinite(factors) & (factors > 0)):
            raise BadGGUF(f"{table.factors} must hold {len(plain)} finite numbers above zero")
        plain = plain / factors.astype(np.float64)
    if table.scaling == "linear":
        return plain / table.factor
    if table.scaling == "yarn":
        stretched = _stretched_share(table)
        return plain / table.factor * stretched + plain * (1.0 - stretched)
    return plain


def _stretched_share(table: RopeTable) -> NDArray[np.float64]:
    """YaRN's ramp over the pairs: 0 for short wavelengths (unchanged), 1 for long ones (divided by factor).

    float64[rotary_width / 2]. A pair is short if it turns at least `beta_fast` times within the original context, long
    if it turns fewer than `beta_slow` times.
    """

    def pair_with_turns(turns: float) -> float:
        wavelength = table.original_context / (turns * 2.0 * math.pi)
        return table.rotary_width * math.log(wavelength) / (2.0 * math.log(table.base))

    low = max(math.floor(pair_with_turns(table.beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(table.beta_slow)), table.rotary_width - 1)
    pairs = np.arange(table.rotary_width // 2, dtype=np.float64)
    return np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)


def rotations(
    table: RopeTable, n_positions: int, factors: NDArray[np.float32] | None = None, first: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, times the table's magnitude, of positions from `first` up to but excluding `n_positions`.

    Each is float32[n_positions - first, rotary_width / 2].
    """
    angles = np.arange(first, n_positions, dtype=np.float64)[:, None] * frequencies(table, factors)[None, :]
    cosines = (np.cos(angles) * table.magnitude).astype(np.float32)
    sines = (np.sin(angles) * table.magnitude).astype(np.float32)
    return cosines, sines
