"""Splits the time of whole passes into parts: seconds per pass, token, op, weight, element, and of attention.

In: passes of models whose work is known, with their seconds. Out: the `Parts` that explain them best, none below 0, by
least squares of relative errors. The parts can be told apart because the models have different shapes. Mirrors
`scheduling.cost.seconds`; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork

PASS, TOKEN, OP, ELEMENT, CACHED, ROW = "pass", "token", "op", "element", "cached", "row"
NARROW, WIDE = "narrow weight", "wide weight"
"""Weights of matrices of at most NARROW_COLUMNS, and of at least WIDE_COLUMNS; others count partly as both."""
NARROW_COLUMNS, WIDE_COLUMNS = 512, 2048
PER_PASS = 0
"""Used in place of the tokens of a pass for parts that do not depend on them."""
MOST_STEPS = 200
"""Iterations of the solver; each adds a part or removes some."""

Part = tuple[str, int]
"""A kind of part, and the tokens of the passes it is measured for."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimedPass:
    """Seconds of a pass of a model. `is_quiet`: no other program is seen to have used the machine meanwhile."""

    work: ModelWork
    step: Pass
    seconds: float
    is_quiet: bool = True


def amounts(work: ModelWork, step: Pass) -> dict[Part, float]:
    """The amount of each part in a pass of one sequence on one device."""
    n = step.n_tokens
    found: dict[Part, float] = {(PASS, PER_PASS): 1.0, (TOKEN, PER_PASS): n, (OP, PER_PASS): 0.0}

    def add(kind: str, n_tokens: int, amount: float) -> None:
        found[kind, n_tokens] = found.get((kind, n_tokens), 0.0) + amount

    for stage in work.stages:
        shape = stage.shape
        n_rows = min(step.n_outputs, n) if shape.for_outputs else n
        add(OP, PER_PASS, shape.n_ops)
        for product in shape.products if n_rows else ():
            wide = (product.columns - NARROW_COLUMNS) / (WIDE_COLUMNS - NARROW_COLUMNS)
            add(NARROW, n_rows, product.n_weights * (1 - min(1.0, max(0.0, wide))))
            add(WIDE, n_rows, product.n_weights * min(1.0, max(0.0, wide)))
        if n_rows > 1:
            add(ELEMENT, n_rows, shape.n_elements)
        heads = shape.attention
        if heads is not None and step.n_cached:
            add(CACHED, n, heads.multiply_adds(n, step.n_cached) - heads.multiply_adds(n, 0))
            if n > 1:
                add(ROW, n, n * heads.heads)
    return found


def separated(passes: Sequence[TimedPass], known: Mapping[Part, float] | None = None) -> Mapping[Part, float]:
    """Seconds of one unit of each part that is not `known`."""
    known = known or {}
    found = [amounts(each.work, each.step) for each in passes]
    parts = sorted({part for each in found for part, amount in each.items() if amount and part not in known})
    matrix = np.array([[each.get(part, 0.0) for part in parts] for each in found])
    seconds = np.array([each.seconds for each in passes])
    left = seconds - [sum(amount * known.get(part, 0.0) for part, amount in each.items()) for each in found]
    scales = np.maximum(np.linalg.norm(matrix / seconds[:, None], axis=0), 1e-300)
    values = nonnegative(matrix / seconds[:, None] / scales, left / seconds) / scales
    return dict(zip(parts, values.tolist(), strict=True))


def nonnegative(matrix: Numbers, wanted: Numbers) -> Numbers:
    """The x >= 0 that minimizes |matrix @ x - wanted|.

    matrix float64[m, n], wanted float64[m]. Source: Lawson and Hanson, Solving Least Squares Problems (1974), 23.3.
    """
    n = matrix.shape[1]
    taken = np.zeros(n, np.bool_)
    found = np.zeros(n)
    for _ in range(MOST_STEPS):
        slopes = matrix.T @ (wanted - matrix @ found)
        slopes[taken] = -np.inf
        if taken.all() or slopes.max() <= 1e-10:
            break
        taken[int(np.argmax(slopes))] = True
        while True:
            tried = np.zeros(n)
            tried[taken] = np.linalg.lstsq(matrix[:, taken], wanted, rcond=None)[0]
            below = taken & (tried <= 0)
            if not below.any():
                break
            share = np.min(found[below] / np.maximum(found[below] - tried[below], 1e-300))
            found = found + share * (tried - found)
            taken &= found > 1e-14
            found[~taken] = 0.0
        found = tried
    return found
