"""Records that kernels read: arguments, the control block of the worker pool, and constants that both sides share.

Python fills them, compiled code reads them by address. In: nothing. Out: dtypes; the module named below each record
explains its use. Loads no compiler, so that a program whose kernels are compiled never loads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUND_ROWS = np.dtype(
    [
        ("source", "i8"),  # float32[n, source_stride / 4]
        ("source_stride", "i8"),  # bytes
        ("rows", "i8"),  # address of the address of int32[n], the row of the source for each row; 0: in order
        ("weight", "i8"),  # float32[32 * n_blocks], weight of an RMSNorm before rounding; 0: none
        ("n_blocks", "i8"),  # blocks of 32 columns that hold data
        ("n_padded", "i8"),  # blocks of a tile, the last ones zero
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between the copies of two workers, who then each round all rows; 0: they share
        ("count", "i8"),  # address of the number of rows n
        ("tiled", "i8"),  # see `rounded.tile_of`
        ("width", "f4"),  # columns
        ("epsilon", "f4"),
    ]
)
"""Record of `kernels.matmul.activations`."""

PRODUCT = np.dtype(
    [
        ("weights", "i8"),
        ("unit_bytes", "i8"),  # bytes from a unit's first panel to the next unit's
        ("second", "i8"),  # bytes from a unit's first panel to its second
        ("n_units", "i8"),
        ("n_records", "i8"),
        ("n_blocks", "i8"),  # blocks of 32 columns of a panel, padding included
        ("activations", "i8"),
        ("activations_stride", "i8"),  # bytes between the copies of two workers, 0: they share one
        ("block_tokens", "i8"),  # tokens whose activations stay in cache, a multiple of rounded.TILE
        ("tiled", "i8"),  # 1: `kernels.matmul.amx` handles `rounded.tiled_tokens`
        ("unpacked", "i8"),  # scratch of that kernel
        ("unpacked_stride", "i8"),  # bytes between workers
        ("ahead", "i8"),  # what is prefetched while a unit is read: A_UNIT, what lies this many bytes ahead, or 0
        ("next", "i8"),  # address of the arguments of the next product, prefetched at the end; 0: none
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_units, 32], or float32[32] zeros with stride 0
        ("bias_stride", "i8"),  # bytes between units
        ("curve", "i8"),  # one of CURVES; bias and accumulate are for PLAIN only
        ("rows", "i8"),  # int32[n], the row of out that belongs to each token, for PLAIN only; 0: in order
    ]
)
"""Record of `kernels.matmul.integers`."""

FLOAT_PRODUCT = np.dtype(
    [
        ("weights", "i8"),
        ("panel_bytes", "i8"),
        ("n_units", "i8"),  # pairs of panels
        ("n_rounds", "i8"),  # columns / 4
        ("source", "i8"),
        ("source_stride", "i8"),  # bytes between tokens
        ("block_tokens", "i8"),  # tokens whose activations stay in cache
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_units, 32], or float32[32] zeros with stride 0
        ("bias_stride", "i8"),  # bytes between units
        ("rows", "i8"),  # int32[n], the row of out that belongs to each token; 0: in order
        ("scratch", "i8"),  # 0: none
        ("scratch_stride", "i8"),  # bytes between workers
    ]
)
"""Record of `kernels.matmul.floats` and `split_floats`."""

RMS_NORM = np.dtype(
    [
        ("source", "i8"),
        ("source_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("weight", "i8"),  # float32[group_stride / 4], zero-padded
        ("weight_stride", "i8"),  # bytes between weights of groups, 0 if they have the same
        ("groups", "i8"),
        ("group_stride", "i8"),  # bytes between groups of a row
        ("n_vectors", "i8"),  # vectors of a group
        ("count", "i8"),
        ("width", "f4"),  # columns of a group
        ("epsilon", "f4"),
    ]
)
"""Record of `kernels.rows.rms_norm`."""

LAYER_NORM = np.dtype(
    [
        ("source", "i8"),
        ("source_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("weight", "i8"),  # float32[16 * n_vectors], zero-padded
        ("bias", "i8"),  # the same
        ("n_vectors", "i8"),
        ("count", "i8"),
        ("width", "f4"),  # columns
        ("epsilon", "f4"),
        ("last", "i8"),  # columns of the last vector of a part
        ("groups", "i8"),
        ("group_stride", "i8"),  # of all: bytes
        ("parts", "i8"),  # places with padding at their end: a whole row, or its heads
        ("period", "i8"),  # vectors of a part
    ]
)
"""Record of `kernels.rows.layer_norm`."""

COLUMNS = np.dtype(
    [
        ("source", "i8"),
        ("other", "i8"),
        ("out", "i8"),
        ("stride", "i8"),  # of source and out, bytes
        ("other_stride", "i8"),
        ("n_vectors", "i8"),
        ("count", "i8"),
        ("cap", "f4"),
        ("rise", "f4"),  # this and the next of xielu
        ("fall", "f4"),
        ("slope", "f4"),
        ("edge", "f4"),
        ("least", "f4"),  # this and the next of clip
        ("most", "f4"),
    ]
)
"""Record of the kernels of `kernels.rows` that split by columns."""

CONVOLUTION = np.dtype(
    [
        ("source", "i8"),
        ("before", "i8"),  # 0: no gate
        ("after", "i8"),  # 0: no gate
        ("out", "i8"),
        ("stride", "i8"),  # of all four, bytes
        ("n_vectors", "i8"),
        ("taps", "i8"),
        ("weight", "i8"),  # float32[4, row_bytes / 4], the oldest token's tap first, zeros for missing taps
        ("row_bytes", "i8"),  # of weight, states and kept rows
        ("states", "i8"),
        ("state_bytes", "i8"),
        ("kept", "i8"),
        ("states_step", "i8"),  # `step_records.STATE_STEP`
    ]
)
"""Record of `kernels.convolution`."""

STATE_FIELDS = ("states", "state_bytes", "kept", "kept_stride", "states_step", "count")
"""What all recurrences read: states, kept tokens, a `step_records.STATE_STEP`, and the number of tokens."""
DELTA = np.dtype(
    [
        ("mixed", "i8"),
        ("stride", "i8"),  # bytes, as all strides
        ("decay", "i8"),
        ("decay_stride", "i8"),
        ("n_decays", "i8"),  # one per value head, or one per key column of each
        ("strength", "i8"),
        ("strength_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("mixed_width", "i8"),
        ("width", "i8"),  # of a head
        ("rows", "i8"),  # of a state: the same
        ("key_heads", "i8"),
        ("heads", "i8"),  # value heads
        ("grouped", "i8"),
        ("rate", "i8"),  # float32[n_decays], padded
        ("shift", "i8"),  # the same
        *((name, "i8") for name in STATE_FIELDS),
        ("scale", "f4"),  # of queries
    ]
)
"""Record of `kernels.delta`."""
MOST_DELTA_WIDTH = 256
"""Most rows of a tile, which lies on the stack."""

STATE_SPACE = np.dtype(
    [
        *((name, "i8") for name in ("mixed", "stride", "keys", "keys_stride", "queries", "queries_stride")),
        *((name, "i8") for name in ("steps", "steps_stride", "n_steps", "out", "out_stride")),
        *((name, "i8") for name in ("width", "rows", "heads", "groups")),  # width of a head, rows of S
        *((name, "i8") for name in ("rate", "shift", "skip")),  # shift and skip float32[n_steps], padded
        *((name, "i8") for name in STATE_FIELDS),
    ]
)
"""Record of `kernels.state_space`."""

CUT_COLUMNS = np.dtype(
    [
        ("source", "i8"),
        ("other", "i8"),
        ("out", "i8"),
        ("stride", "i8"),  # of all three, bytes
        ("n_vectors", "i8"),
        ("count", "i8"),
        ("kept", "i8"),  # int64 of each worker, COUNT_LINE bytes apart
        ("threshold", "f4"),
    ]
)
"""Record of `kernels.thresholds`."""

COUNT_LINE = 64
"""Bytes between the counts of two workers."""

PEAKS = np.dtype(
    [
        ("source", "i8"),
        ("stride", "i8"),  # bytes, as all strides
        ("width", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("count", "i8"),
    ]
)
"""Record of `kernels.rows.find_peaks`."""

TAKE_OUTPUTS = np.dtype(
    [("source", "i8"), ("out", "i8"), ("stride", "i8"), ("n_vectors", "i8"), ("outputs", "i8"), ("count", "i8")]
)
"""Record of `kernels.rows.take_outputs`."""

ROPE = np.dtype(
    [
        ("value", "i8"),
        ("stride", "i8"),
        ("heads", "i8"),
        ("head_stride", "i8"),  # bytes
        ("parts", "i8"),  # groups of heads that workers share
        ("half", "i8"),  # pairs of a head
        ("cosines", "i8"),
        ("sines", "i8"),
        ("step", "i8"),
    ]
)
"""Record of the rotation in `kernels.attention.rotary`."""

JOIN_HEADS = np.dtype(
    [
        ("first", "i8"),
        ("first_stride", "i8"),  # bytes between tokens
        ("first_head_stride", "i8"),  # bytes between heads
        ("first_width", "i8"),
        ("second", "i8"),
        ("second_stride", "i8"),
        ("second_head_stride", "i8"),  # 0: all have the same
        ("second_width", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("out_head_stride", "i8"),
        ("heads", "i8"),
        ("count", "i8"),  # address of the number of tokens
    ]
)
"""Record of joined heads in `kernels.attention.rotary`."""

PACKING_JOB = np.dtype(
    [
        ("rows", "i8"),
        ("skip", "i8"),  # bytes of each row that other jobs handle
        ("n_panels", "i8"),
        ("out", "i8"),
        ("panel_bytes", "i8"),
        ("n_records", "i8"),
        ("source_bytes", "i8"),
        ("record_bytes", "i8"),
        ("stores", "i8"),
        ("n_stores", "i8"),
        ("terms", "i8"),
    ]
)
"""Record of `kernels.weights.packing`."""

CONTROL = np.dtype(
    [
        ("launch", "i8"),  # number of launches so far; threads wait for it to change
        ("pad", "i8", (15,)),
        ("launch_at", "i8"),  # address of `launch`
        ("tape", "i8"),
        ("n_entries", "i8"),
        ("work_split", "i8"),  # address of the work split of this launch
        ("flags", "i8"),  # address of one barrier flag per worker, LINE bytes apart
        ("meters", "i8"),  # address of one METER per worker, LINE bytes apart
        ("seats", "i8"),  # address of int64[threads]
        ("asleep", "i8"),  # address of int64[threads]: 1 while a thread sleeps or is about to
        ("record", "i8"),  # 0, or address of int64[workers, n_entries, 2]: ticks waited before and spent in each call
        ("slowness", "i8"),  # 0, or address of int64[threads] in sixteenths: for benchmarks and tests
        ("yield_at", "i8"),  # C function that gives up the core
        ("stand_in", "i8"),  # the thread whose core the caller uses
        ("stopping", "i8"),
        ("barriers", "i8"),  # barriers passed before this launch
        ("finished", "i8"),  # the last launch that worker 0 has finished
    ]
)
"""Control record of `kernels.launch`."""

METER = np.dtype([("busy", "i8"), ("passed", "i8"), ("pad", "i8", (14,))])
"""Ticks of a worker in the last launch: in calls that are shared out, and from its start to its last barrier."""

NOTHING = np.dtype([("unused", "i8")])
"""Record of `kernels.launch.nothing`."""

ENTRY_INTS = 5
"""An entry of a tape: kernel address, argument record, barrier before it, serial, PRODUCT record after the barrier."""
LINE = 128
"""Bytes between the flags of two workers, so that no two share a cache line."""
WORKER_POOL_LIMIT = 1024
"""More than the highest number of workers; a seat is launch * WORKER_POOL_LIMIT + worker."""
NOT_SLOWED = 16
"""Value in `slowness` for a worker at its own speed; 32 makes each call take twice as long."""
TILE_PRODUCTS_BYTES = 2 * 4 * 1024
"""Integers of a block from up to four tile registers, twice: one half is written while the other is read."""
TILE_BLOCK_TOKENS = 256
"""Most tokens for which panels are unpacked at a time."""
TILE_SUMS_BYTES = TILE_BLOCK_TOKENS * 2 * 64
MOST_UNPACKED_BLOCKS = 18
"""Blocks of two panels that are unpacked at a time: they stay in the first cache."""
TILE_SCRATCH_BYTES = TILE_PRODUCTS_BYTES + TILE_SUMS_BYTES + 2 * MOST_UNPACKED_BLOCKS * 1024
"""A block of a panel takes less than 1024 bytes."""
A_UNIT = 1
"""Prefetch the next unit while one is read."""
PLAIN, SILU, GELU_TANH, RELU, RELU2, SIGMOID, GELU, SOFTPLUS, GELU_QUICK, SWIGLU_OAI = range(10)
CURVES = {
    name: number
    for number, name in enumerate(
        ("silu", "gelu_tanh", "relu", "relu2", "sigmoid", "gelu", "softplus", "gelu_quick"), SILU
    )
}
"""How a product combines a gate and an up row."""


def work_split_record(cuts: Sequence[int]) -> NDArray[np.int64]:
    """int64[1 + len(cuts)], as `kernels.work_split` reads it: the number of workers, then where each share begins."""
    return np.array([len(cuts) - 1, *cuts], np.int64)
