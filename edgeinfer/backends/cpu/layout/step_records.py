"""What kernels read of a pass: its tokens, slots, page tables, attention tiles, and the states of its sequences.

In: nothing. Out: dtypes and places; `memory.step` and `memory.sequences` fill the records. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

STEP = np.dtype(
    [
        ("n_tokens", "i8"),
        ("n_outputs", "i8"),
        ("positions", "i8"),  # int32[T]
        ("slots", "i8"),  # int32[T]
        ("outputs", "i8"),  # int32[O]
        ("tables", "i8"),  # int32[B, table_stride / 4]
        ("table_stride", "i8"),  # bytes
        ("tiles", "i8"),  # int32[n_tiles, TILE_INTS]
        ("n_tiles", "i8"),
        ("paths", "i8"),  # int32: slots of a token's ancestors from `start` on, then its own, by position
        ("n_chunks", "i8"),  # chunks of CHUNK positions of the longest context
        ("ends", "i8"),  # int32[T]: the last position of each token's sequence in the pass
        ("split", "i8"),  # 1: attention is cut by chunks, 0: by tiles
        ("turns", "i8"),  # int32[T]: the row of the rotary tables for each token
        ("recents", "i8"),  # int32[T]: the first recent chunk of each token with a budget; 0: it sees everything
        ("n_best", "i8"),  # int32[T]: how many chunks before that, besides the first, each token chooses
        ("blocks", "i8"),  # int32[n_blocks, 2]: the first token of each block of a prompt, and its row of `tables`
        ("n_blocks", "i8"),
        ("spans", "i8"),  # int32[T, 2]: the first position each token sees, and how many after its own; 0: no spans
    ]
)
TILE = {
    name: 4 * place
    for place, name in enumerate(
        ("first", "n_tokens", "row", "start", "path", "lowest", "highest", "path_ints", "spare", "gathers", "block")
    )
}
"""Byte offsets in an attention tile, int32[TILE_INTS]: its first token and the number of tokens; their row of `tables`;
the position from which on they have paths, where those begin in `paths` (-1: no paths) and the distance between paths;
the lowest and highest position; the spare page that paths lead to besides the table's pages (-1: none); 1 if they lead
to several spare pages, so that the keys and values of the tile's one token must be gathered; and the number of their
block in `blocks` (-1: none).
"""
TILE_INTS = len(TILE)
STATE_STEP = np.dtype(
    [
        ("rows", "i8"),  # int32[n_rows, ROW_INTS]
        ("n_rows", "i8"),
        ("saves", "i8"),  # int32[n_saves, SAVE_INTS]
        ("n_saves", "i8"),
        ("parents", "i8"),  # int32[T]
        ("nodes", "i8"),  # int32[n_nodes]: tokens by which a slot advances, as rows of the kept tokens
        ("n_nodes", "i8"),
        ("source", "i8"),  # the slot that it starts from
        ("target", "i8"),  # the slot that is written
    ]
)
ROW = {name: 4 * place for place, name in enumerate(("first", "stop", "slot", "settled", "kept"))}
"""Byte offsets in a sequence's record of a pass, int32[ROW_INTS]: its first token, the one after its last, the slot of
its state, the first token that is not settled, and that token's row among the kept tokens.
"""
SAVE = {name: 4 * place for place, name in enumerate(("row", "last", "slot"))}
"""Byte offsets in the record of a state to be saved: its sequence's row, its last token, and the slot."""
ROW_INTS, SAVE_INTS = len(ROW), len(SAVE)
