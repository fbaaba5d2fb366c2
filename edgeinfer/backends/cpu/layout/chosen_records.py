"""Records of kernels that compute only what a pass has chosen: experts of a mixture, active neurons; see `records`.

In: nothing. Out: dtypes. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

ROUTER = np.dtype(
    [
        ("scores", "i8"),  # float32[n, scores_stride / 4]
        ("scores_stride", "i8"),  # bytes between tokens
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("own_stride", "i8"),  # bytes between the copies of two workers, who then take all tokens; 0: they share
        ("count", "i8"),  # address of the number of tokens
        ("n_experts", "i8"),
        ("active", "i8"),
        ("sigmoid", "i8"),
        ("normalised", "i8"),
        ("bias", "i8"),  # float32[n_experts] that shares are ranked with; 0: scores are ranked
        ("groups", "i8"),  # of neighbours, of whose experts only those in the best are chosen; 1: all experts are
        ("active_groups", "i8"),
        ("scale", "f4"),
    ]
)
"""`kernels.experts.route`."""

EXPERT_LISTS = np.dtype(
    [
        ("shares", "i8"),
        ("shares_stride", "i8"),  # bytes between tokens
        ("shares_own_stride", "i8"),  # bytes between the copies of two workers, 0: they share one
        ("count", "i8"),  # address of the number of tokens
        ("n_experts", "i8"),
        ("most_pairs", "i8"),
        ("lists", "i8"),  # int64 experts that have tokens, int64[E] which, int64[E] tokens of each, int64[E] its first
        ("lists_stride", "i8"),  # pair, int32[most_pairs] tokens, float32[most_pairs] shares; bytes between workers
        ("records", "i8"),  # int8 records of the tokens; 0: none are gathered
        ("n_padded", "i8"),
        ("tiled", "i8"),  # of the tokens' records, see `rounded.tile_of`; those of the pairs have no large tiles
        ("gathered", "i8"),
        ("floats", "i8"),  # float32 rows of the tokens; 0: none are gathered
        ("float_stride", "i8"),
        ("gathered_floats", "i8"),
    ]
)
"""`kernels.experts.group`."""

EXPERT_PRODUCTS = np.dtype(
    [
        ("kernel", "i8"),  # address of the product's code
        ("products", "i8"),  # PRODUCT[2] or FLOAT_PRODUCT[1] of each worker, filled but for what an expert changes
        ("products_stride", "i8"),
        ("lists", "i8"),  # as in EXPERT_LISTS
        ("lists_stride", "i8"),
        ("n_experts", "i8"),
        ("table", "i8"),  # int64[E], the panels of each expert's matrix
        ("second_table", "i8"),  # the same of the up matrix, where gate and up are one product; 0: else
        ("source", "i8"),
        ("source_stride", "i8"),  # bytes between pairs, 0: all read the same
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between pairs, 0: their tokens' rows are written to
        ("scatters", "i8"),  # 1: they are
        ("ahead", "i8"),
        ("most_pairs", "i8"),
        ("bias", "i8"),  # float32[E, 32 * n_units], times their shares, for tokens' rows; 0: none
        ("n_units", "i8"),  # runs of 32 columns, as workers share them
        ("row_stride", "i8"),  # bytes between tokens' rows
    ]
)
"""`kernels.experts.multiply` and `multiply_floats`."""

EXPERT_HIDDEN = np.dtype(
    [
        ("lists", "i8"),
        ("lists_stride", "i8"),
        ("n_experts", "i8"),
        ("most_pairs", "i8"),
        ("gate", "i8"),  # float32[pairs, stride / 4]
        ("up", "i8"),  # the same, unless `curve` is PLAIN
        ("stride", "i8"),
        ("curve", "i8"),  # one of CURVES, or SWIGLU_OAI
        ("gate_bias", "i8"),  # float32[E, stride / 4], unless `curve` is PLAIN; 0: none
        ("up_bias", "i8"),
        ("scratch", "i8"),  # a row of each worker
        ("scratch_stride", "i8"),
        ("rounding", "i8"),  # ROUND_ROWS of these rows; 0: they stay floats
        ("out", "i8"),
        ("own_stride", "i8"),  # bytes between the copies of two workers, who then take all rows; 0: they share
    ]
)
"""`kernels.experts.finish_hidden`."""

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
"""`kernels.sparse.active`."""

CHOSEN = np.dtype(
    [
        ("rows", "i8"),  # int64[whole panels of n_chosen]: addresses of rows, of any rows beyond n_chosen
        ("neurons", "i8"),  # int32[n_chosen], in order
        ("n_chosen", "i8"),  # address of their number
        ("begin", "i8"),  # first column of out that is written,
        ("end", "i8"),  # and the one after the last: the chosen neurons lie between
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
"""`kernels.sparse.chosen_rows`."""

COLUMN_PRODUCT = np.dtype(
    [
        ("columns", "i8"),  # int64[n_chosen]: addresses
        ("neurons", "i8"),  # int32[n_chosen], in order, of the blocks of this call
        ("n_chosen", "i8"),  # address of their number
        ("first_block", "i8"),  # of 32 neurons
        ("n_blocks", "i8"),  # of this call, and of a row of its activations
        ("scales", "i8"),  # float16[all blocks, scales_stride / 2]
        ("minima", "i8"),  # the same, where the form has minima
        ("scales_stride", "i8"),
        ("activations", "i8"),  # int8 records of this call's blocks; or float32[n, activations_stride / 4]
        ("activations_stride", "i8"),  # bytes between the copies of two workers, 0: they share one; or between tokens
        ("tiled", "i8"),  # as in PRODUCT
        ("n_units", "i8"),  # runs of 32 rows
        ("sums", "i8"),  # float32[n, sums_stride / 4], of floats two chains of half a stride
        ("sums_stride", "i8"),
        ("is_first", "i8"),  # 1: sums begin here
        ("is_last", "i8"),  # 1: sums go to out
        ("out", "i8"),
        ("out_stride", "i8"),
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_units, 32], or float32[32] zeros with stride 0
        ("bias_stride", "i8"),
    ]
)
"""`kernels.sparse.columns`."""

MOST_EXPERTS = 1024
"""Experts of a layer that a router can choose among."""
