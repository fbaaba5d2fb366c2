"""Rotary position embedding: settings from GGUF metadata, frequencies, and tables of cosines and sines.

In: Hyperparameters with `<architecture>.rope.*` and the factor tensors. Out: a RopeTable, and what it stands for:
frequencies, rotations of positions. Shared by all devices, so that they rotate by the same float32 numbers; angles are
computed in float64. Raises UnsupportedModel for an unsupported scaling. Sources: RoFormer (arXiv 2104.09864), YaRN
(arXiv 2309.00071, section 3.2), Llama 3 and LongRoPE factors from the file.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.hyperparameters import Hyperparameters

BASE_LEAST = 1.0


def rope_table(hp: Hyperparameters, rotary_width: int, default_base: float = 10000.0) -> RopeTable:
    """The rotary table of a model, with the scaling in its metadata.

    A file with a factor but no scaling type means linear scaling.
    """
    base = _base(hp, "rope.freq_base", default_base)
    if "rope_factors_long.weight" in hp.tensors or hp.text("rope.scaling.type", "") == "longrope":
        return _long_rope(hp, rotary_width, base)
    factors = "rope_freqs.weight" if "rope_freqs.weight" in hp.tensors else None
    if factors is not None:
        hp.vector(factors, rotary_width // 2)
    kind = hp.text("rope.scaling.type", "linear")
    factor = hp.positive("rope.scaling.factor", hp.positive("rope.scale_linear", 1.0))
    match kind:
        case "none" | "":
            return RopeTable(base, rotary_width, factors=factors)
        case "linear":
            return RopeTable(base, rotary_width, "linear" if factor != 1.0 else "none", factor, factors=factors)
        case "yarn":
            return _yarn(hp, rotary_width, base, factor, factors)
        case _:
            raise UnsupportedModel(f"rope.scaling.type is {kind!r}; edgeinfer has none, linear, yarn and longrope")


def growing_table(hp: Hyperparameters, table: RopeTable, head_width: int) -> RopeTable:
    """The rotary table of queries that grow with their position (`attention.temperature_scale`), else `table` itself.

    They grow where the original context ends, so shorter contexts need no table of their own. Raises UnsupportedModel
    if only a part of each head is rotated.
    """
    growth, key = hp.number("attention.temperature_scale", 0.0), "rope.scaling.original_context_length"
    if not growth or hp.n_context <= (period := hp.integer(key, hp.integer("context_length"))):
        return table
    if table.rotary_width != head_width:
        raise UnsupportedModel(
            f"{hp.architecture}.attention.temperature_scale is {growth}: edgeinfer has it where whole heads are rotated"
        )
    return replace(table, growth=growth, growth_period=period)


def still_table(width: int, growth: float, period: int, start: int = 0) -> RopeTable:
    """The table of queries that grow with their position, without rotation; `start` is added to positions.

    Raises UnsupportedModel for an odd width.
    """
    if width % 2:
        raise UnsupportedModel(f"queries that grow are {width} wide; edgeinfer has those of an even width")
    return RopeTable(math.e, width, "still", growth=growth, growth_period=period, growth_start=start)


def local_rope_table(hp: Hyperparameters, rotary_width: int, default_base: float = 10000.0) -> RopeTable:
    """The rotary table of layers with a window (Gemma 3): a separate base, never scaled."""
    return RopeTable(_base(hp, "rope.freq_base_swa", default_base), rotary_width)


def _base(hp: Hyperparameters, key: str, default: float) -> float:
    base = hp.number(key, default)
    if base <= BASE_LEAST:
        raise BadGGUF(f"{hp.architecture}.{key} is {base}; it must be above {BASE_LEAST}")
    return base


def _yarn(hp: Hyperparameters, rotary_width: int, base: float, factor: float, factors: str | None) -> RopeTable:
    """YaRN (arXiv 2309.00071, sections 3.2 and 3.4)."""
    original = hp.integer("rope.scaling.original_context_length", hp.integer("context_length"))
    fast = hp.positive("rope.scaling.yarn_beta_fast", 32.0)
    slow = hp.positive("rope.scaling.yarn_beta_slow", 1.0)
    magnitude = _yarn_magnitude(hp, factor)
    return RopeTable(base, rotary_width, "yarn", factor, original, fast, slow, magnitude, factors)


def _yarn_magnitude(hp: Hyperparameters, factor: float) -> float:
    """0.1 ln(factor) + 1, unless the file says otherwise.

    Converters write a model's own `attention_factor`, which is the whole magnitude, as `yarn_attn_factor`, and its
    `mscale_all_dim`, which divides, as `yarn_log_multiplier`; `attn_factor` multiplies the result.
    """

    def growth(multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(factor) if factor > 1.0 else 1.0

    computed = growth(1.0)
    if (multiplier := hp.number("rope.scaling.yarn_log_multiplier", 0.0)) > 0.0:
        computed /= growth(multiplier)
    return hp.positive("rope.scaling.yarn_attn_factor", computed) * hp.positive("rope.scaling.attn_factor", 1.0)


def _long_rope(hp: Hyperparameters, rotary_width: int, base: float) -> RopeTable:
    """LongRoPE (arXiv 2402.13753): long factors when the context exceeds the original one, else short ones.

    The models' own code goes by the length of the text. Here the context decides, once for all texts, so that cached
    keys stay valid and tokens do not depend on what comes after them. The file's `attn_factor` is the magnitude of
    both.
    """
    original = hp.integer("rope.scaling.original_context_length", hp.integer("context_length"))
    for which in ("long", "short"):
        hp.vector(f"rope_factors_{which}.weight", rotary_width // 2)
    which = "long" if hp.n_context > original else "short"
    magnitude = hp.positive("rope.scaling.attn_factor", 1.0)
    factors = f"rope_factors_{which}.weight"
    return RopeTable(base, rotary_width, "longrope", original_context=original, magnitude=magnitude, factors=factors)


def told_of_factors(spec: ModelSpec, n_context: int, *, also_short: bool = False) -> tuple[str, ...]:
    """For people: that a model uses its factors for long texts in this context, or, if `also_short`, the others."""
    border = spec.rope_border
    if border is not None and n_context > border:
        return (
            f"{spec.name} uses its factors for long texts (LongRoPE), as the context of {n_context} tokens exceeds "
            f"{border}; --ctx {border} uses those that it was made for with shorter texts",
        )
    if border is None or border >= spec.n_context_trained or not also_short:
        return ()
    return (f"{spec.name} uses its factors for texts up to {border} tokens (LongRoPE); a larger --ctx uses the others",)


def frequencies(table: RopeTable, factors: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
    """Angle per position of each rotary pair: float64[rotary_width / 2].

    `factors`, float32[rotary_width / 2], is the tensor that the table names, or None. Raises BadGGUF if it has another
    length or a value that is not a finite number above zero; ValueError if the table has another number of frequencies
    than pairs.
    """
    pairs = np.arange(0, table.rotary_width, 2, dtype=np.float64) / table.rotary_width
    plain = np.array(table.given, np.float64) if table.given else table.base**-pairs
    if plain.shape != pairs.shape:
        raise ValueError(f"{len(plain)} frequencies for {len(pairs)} rotary pairs")
    if table.scaling == "still":
        return np.zeros_like(plain)
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
    positions = np.arange(first, n_positions) + table.ahead
    angles = positions.astype(np.float64)[:, None] * frequencies(table, factors)[None, :]
    magnitude = magnitudes(table, positions)
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def magnitudes(table: RopeTable, positions: NDArray[np.integer[Any]]) -> NDArray[np.float64] | float:
    """What cosines and sines of positions int[T] are multiplied by: float64[T, 1], or one number for all."""
    if not table.growth:
        return table.magnitude
    steps = np.floor((positions.astype(np.float64) + table.growth_start) / table.growth_period)[:, None]
    grown: NDArray[np.float64] = table.magnitude * (1.0 + table.growth * np.log1p(steps))
    return grown


def turns(
    table: RopeTable, distance: int, factors: NDArray[np.float32] | None = None, scale: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines by which keys turn whose tokens move by `distance` positions: float32[rotary_width / 2] each.

    The keys have the table's magnitude already; they are multiplied by `scale`.
    """
    angles = distance * frequencies(table, factors)
    return (scale * np.cos(angles)).astype(np.float32), (scale * np.sin(angles)).astype(np.float32)
