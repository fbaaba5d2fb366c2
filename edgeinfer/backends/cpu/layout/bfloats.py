"""How floats lie as sums of two bfloat16 for tile registers, and the scratch of kernels that take them so.

A block is two tiles, of high and of low parts: of ROWS rows of activations bfloat16[ROWS, COLUMNS]; of ROWS rows of
weights, which may also be positions or columns of a KV cache, [pairs of columns, ROWS, 2]. Two blocks of one by two of
the other give four tiles of sums float32[ROWS, ROWS]. In: sizes. Out: byte counts. Loads no compiler.
"""

from __future__ import annotations

ROWS, COLUMNS = 16, 32
PAIRS = COLUMNS // 2
TILE_BYTES = 1024
BLOCK_BYTES = 2 * TILE_BYTES
SUMS_BYTES = 4 * TILE_BYTES
STEP_TOKENS = 2 * ROWS
"""Tokens that are multiplied at a time."""

MOST_TOKENS = 512
"""Most tokens that a product multiplies by one pair of panels after another."""
MOST_BLOCKS = 20
"""Blocks of these tokens that stay in the second cache, in half a megabyte less than two."""
UNIT_BYTES = 2 * MOST_BLOCKS * BLOCK_BYTES
PRODUCT_SCRATCH_BYTES = 2 * SUMS_BYTES + 2 * UNIT_BYTES + MOST_TOKENS // ROWS * MOST_BLOCKS * BLOCK_BYTES


def blocks(width: int) -> int:
    """Blocks of so many columns or positions."""
    return -(-width // COLUMNS)


def attention_scratch_bytes(key_width: int, value_width: int, n_context: int) -> int:
    """Bytes of scratch of a worker of `kernels.attention.whole`."""
    n_blocks, key_blocks, groups = blocks(n_context), blocks(key_width), -(-value_width // ROWS)
    fixed = key_blocks * (4 * COLUMNS + 2 * BLOCK_BYTES) + SUMS_BYTES + 4 * STEP_TOKENS
    return fixed + n_blocks * (BLOCK_BYTES * (2 * key_blocks + groups + 2) + SUMS_BYTES)
