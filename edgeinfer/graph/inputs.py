"""What a pass accepts besides token ids: rows of numbers in place of ids, and three positions per token.

An image or audio encoder produces rows as wide as the model. A model with multi-axis rotary embedding distinguishes the
tokens of an image by three positions: temporal, height and width. Independent of encoders and of how texts are
compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.errors import ContextOverflow, UnsupportedModel
from edgeinfer.graph.step import AXES, Batch


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model was opened for besides token ids.

    `row_width`: width of input rows, 0 for token ids only. `axes`: whether it reads three positions per token.
    """

    row_width: int = 0
    axes: bool = False

    def check(self, batch: Batch, n_context: int) -> None:
        """Raises UnsupportedModel, ContextOverflow or ValueError if a batch has invalid rows or axes."""
        if batch.rows is not None:
            if not self.row_width:
                raise UnsupportedModel(
                    "this model was opened for token ids alone and cannot be given rows of numbers; load it on the "
                    "cpu with rows=True"
                )
            shape = int(np.count_nonzero(batch.tokens < 0)), self.row_width
            if batch.rows.values.shape != shape:
                raise ValueError(f"rows of shape {batch.rows.values.shape} for {shape[0]} tokens of width {shape[1]}")
        if batch.axes is not None:
            if not self.axes:
                raise UnsupportedModel("this model, as it was opened, has one position a token and cannot read three")
            if batch.axes.shape != (len(batch.tokens), AXES):
                raise ValueError(f"axes of shape {batch.axes.shape} for {len(batch.tokens)} tokens")
            check_axes(int(batch.axes.min(initial=0)), int(batch.axes.max(initial=0)), n_context)


def check_axes(lowest: int, highest: int, n_context: int) -> None:
    """Raises ContextOverflow if a position is beyond the rotary tables."""
    if lowest < 0 or highest >= n_context:
        raise ContextOverflow(
            f"positions from {lowest} to {highest} along an axis are not all within the context of {n_context}; "
            "load the model with a larger context (--ctx, n_context)"
        )


IDS_ONLY = Inputs()
