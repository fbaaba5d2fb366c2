"""Records of the kernels of active neurons; see `layout.records` of the device.

In: nothing. Out: dtypes. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

ACTIVE = np.dtype(
    [
        ("source", "i8"),  # float32[n, stride / 4], zero beyond the row's width
        ("stride", "i8"),
        ("n_vectors", "i8"),  # even
        ("count", "i8"),  # address of the number of rows
        ("marks", "i8"),  # uint32[n_vectors / 2]
        ("neurons", "i8"),  # int32[16 * n_vectors]
        ("n_active", "i8"),  # address of their number
    ]
)
"""Record of `kernels.active`."""

CHOSEN = np.dtype(
    [
        ("rows", "i8"),  # int64[n_chosen, padded to whole panels]: addresses of rows; beyond n_chosen any row
        ("neurons", "i8"),  # int32[n_chosen], in order
        ("n_chosen", "i8"),  # address of their number
        ("begin", "i8"),  # first column of out that is written,
        ("end", "i8"),  # and the end of the last: the chosen neurons lie between
        ("n_records", "i8"),  # of a panel
        ("scratch", "i8"),  # a panel for each worker
        ("scratch_stride", "i8"),
        ("n_blocks", "i8"),  # blocks of 32 columns of a row, padding included
        ("activations", "i8"),
        ("activations_stride", "i8"),  # bytes between the copies of two workers, 0: they share one
        ("tiled", "i8"),  # as in PRODUCT
        ("activated", "i8"),  # float32[n, activated_stride / 4]
        ("activated_stride", "i8"),
        ("out", "i8"),  # float32[n, out_stride / 4]
        ("out_stride", "i8"),
        ("count", "i8"),  # address of the number of tokens
        ("bias", "i8"),  # float32 of each neuron, or 0
    ]
)
"""Record of `kernels.chosen_rows`."""

COLUMN_PRODUCT = np.dtype(
    [
        ("columns", "i8"),  # int64[n_chosen]: addresses
        ("neurons", "i8"),  # int32[n_chosen], in order, of the blocks of this call
        ("n_chosen", "i8"),  # address of their number
        ("first_block", "i8"),  # of 32 neurons
        ("n_blocks", "i8"),  # of this call, and of a row of its activations
        ("scales", "i8"),  # float16[all blocks, scales_stride / 2]
        ("minima", "i8"),  # the same, if the form has minima
        ("scales_stride", "i8"),
        ("activations", "i8"),  # int8 records of this call's blocks; or float32[n, activations_stride / 4]
        ("activations_stride", "i8"),  # bytes between two workers' copies, 0: they share one; of floats between tokens
        ("tiled", "i8"),  # as in PRODUCT
        ("n_units", "i8"),  # runs of 32 rows
        ("sums", "i8"),  # float32[n, sums_stride / 4]; for floats two chains, half a stride apart
        ("sums_stride", "i8"),
        ("is_first", "i8"),  # 1: the call starts the sums
        ("is_last", "i8"),  # 1: the call writes the sums to out
        ("out", "i8"),
        ("out_stride", "i8"),
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_units, 32], or float32[32] zeros with stride 0
        ("bias_stride", "i8"),
    ]
)
"""Record of `kernels.columns`."""
