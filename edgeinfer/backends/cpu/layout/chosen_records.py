"""Records of kernels that compute only the experts of a mixture that a pass selects; see `records`.

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
        ("own_stride", "i8"),  # bytes between the copies of two workers, who then each take all tokens; 0: they share
        ("count", "i8"),  # address of the number of tokens
        ("n_experts", "i8"),
        ("active", "i8"),
        ("sigmoid", "i8"),
        ("mixer", "i8"),
        ("normalised", "i8"),
        ("bias", "i8"),  # float32[n_experts], added to shares for ranking; 0: scores are ranked
        ("groups", "i8"),  # of neighbouring experts; only experts of the best groups may be chosen; 1: no groups
        ("active_groups", "i8"),
        ("rated_by", "i8"),  # how many of its experts rate a group: one or two
        ("scales", "i8"),  # float32[n_experts], by which shares are multiplied; 0: none
        ("scale", "f4"),
    ]
)
"""Record of `kernels.routing.route`."""

EXPERT_LISTS = np.dtype(
    [
        ("shares", "i8"),
        ("shares_stride", "i8"),  # bytes between tokens
        ("shares_own_stride", "i8"),  # bytes between the copies of two workers, 0: they share one
        ("count", "i8"),  # address of the number of tokens
        ("n_experts", "i8"),
        ("most_pairs", "i8"),
        ("lists", "i8"),  # int64 experts with tokens, int64[E] which, int64[E] tokens of each, int64[E] its first
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
"""Record of `kernels.experts.group`."""

EXPERT_PRODUCTS = np.dtype(
    [
        ("kernel", "i8"),  # address of the product's code
        ("products", "i8"),  # PRODUCT[2] or FLOAT_PRODUCT[1] of each worker, filled except for the fields of an expert
        ("products_stride", "i8"),
        ("lists", "i8"),  # as in EXPERT_LISTS
        ("lists_stride", "i8"),
        ("n_experts", "i8"),
        ("table", "i8"),  # int64[E], addresses of the panels of each expert's matrix
        ("second_table", "i8"),  # the same of the up matrix if gate and up are one product; else 0
        ("source", "i8"),
        ("source_stride", "i8"),  # bytes between pairs, 0: all read the same row
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between pairs, 0: results go to the rows of their tokens
        ("scatters", "i8"),  # 1: results go to the rows of their tokens
        ("ahead", "i8"),
        ("most_pairs", "i8"),
        ("bias", "i8"),  # float32[E, 32 * n_units], times the shares, for tokens' rows; 0: none
        ("n_units", "i8"),  # runs of 32 columns, as workers share them
        ("row_stride", "i8"),  # bytes between tokens' rows
    ]
)
"""Record of `kernels.experts.multiply` and `multiply_floats`."""

EXPERT_HIDDEN = np.dtype(
    [
        ("lists", "i8"),
        ("lists_stride", "i8"),
        ("n_experts", "i8"),
        ("most_pairs", "i8"),
        ("gate", "i8"),  # float32[pairs, stride / 4]
        ("up", "i8"),  # the same, unless `curve` is PLAIN; 0: none, and `gate` has the products of up
        ("stride", "i8"),
        ("curve", "i8"),  # one of CURVES, or SWIGLU_OAI
        ("gate_bias", "i8"),  # float32[E, stride / 4], unless `curve` is PLAIN; 0: none
        ("up_bias", "i8"),
        ("scratch", "i8"),  # one row for each worker
        ("scratch_stride", "i8"),
        ("scales_source", "i8"),  # 1: shares multiply products, not hidden rows; unless `curve` is PLAIN
        ("rounding", "i8"),  # ROUND_ROWS of these rows; 0: they stay floats
        ("out", "i8"),
        ("own_stride", "i8"),  # bytes between the copies of two workers, who then each take all rows; 0: they share
    ]
)
"""Record of `kernels.experts.finish_hidden`."""

LOW_ROWS = np.dtype(
    [
        ("lists", "i8"),
        ("lists_stride", "i8"),
        ("n_experts", "i8"),
        ("rows", "i8"),  # float32[pairs, stride / 4]
        ("stride", "i8"),
        ("scales", "i8"),  # float32 of each token; 0: rows stay as they are
        ("rounding", "i8"),  # ROUND_ROWS of these rows; 0: they stay floats alone
        ("out", "i8"),  # int8 records of the rows, in the tiles of their expert's tokens
        ("factor", "f4"),  # of all scales
    ]
)
"""Record of `kernels.expert_adapters.ready_low_rows`."""

MOST_EXPERTS = 1024
"""Most experts of a layer that a router can choose among."""
