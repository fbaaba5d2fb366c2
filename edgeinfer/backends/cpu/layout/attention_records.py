"""Records of kernels that read and write the pages of the KV cache; see `records`.

In: nothing. Out: dtypes. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

PAGES = (
    ("keys", "i8"),  # uint8[banks, G, bank_pages, key_bytes]
    ("values", "i8"),  # uint8[banks, G, bank_pages, value_bytes]
    ("bank_pages", "i8"),
    ("bank_bytes", "i8"),  # bytes between banks
    ("places", "i8"),  # int32[n_pages]: the place of each page among those of the layer
    ("key_bytes", "i8"),
    ("value_bytes", "i8"),
)
"""Fields for the pages of a layer, part of three records."""

STORE_KV = np.dtype(
    [
        ("key", "i8"),
        ("key_stride", "i8"),  # bytes between tokens
        ("key_head_stride", "i8"),  # bytes between heads
        ("value", "i8"),
        ("value_stride", "i8"),
        ("value_head_stride", "i8"),
        ("kv_heads", "i8"),
        ("key_width", "i8"),
        ("value_width", "i8"),
        *PAGES,
        ("step", "i8"),
    ]
)
"""Record of `kernels.attention.store`."""

COPY_SLOTS = np.dtype(
    [
        *PAGES,
        ("kv_heads", "i8"),
        ("key_width", "i8"),
        ("value_width", "i8"),
        ("value_padded", "i8"),
    ]
)
"""Record of `kernels.attention.slots`."""

TURNED_LAYER = np.dtype(
    [
        *PAGES,
        ("kv_heads", "i8"),
        ("key_width", "i8"),
        ("value_width", "i8"),
        ("value_padded", "i8"),
        ("first", "i8"),  # the first column of a key that turns
        ("half", "i8"),  # pairs of columns that turn; 0: keys are copied
        ("cosines", "i8"),  # float32[half]
        ("sines", "i8"),
        ("start", "i8"),  # the first pair of slots for this layer
    ]
)
"""Record of a layer of `TURN_KEYS`."""

TURN_KEYS = np.dtype(
    [
        ("layers", "i8"),  # TURNED_LAYER[n_layers]
        ("n_layers", "i8"),
        ("n_heads", "i8"),  # of all layers
        ("sources", "i8"),  # int32[count]
        ("targets", "i8"),  # int32[count]
        ("count", "i8"),
    ]
)
"""Record of `kernels.attention.turning`."""

ATTENTION = np.dtype(
    [
        ("query", "i8"),
        ("query_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        *PAGES,
        *((name, "i8") for name in ("heads", "kv_heads", "key_width", "key_padded", "value_width", "value_padded")),
        ("full", "i8"),  # 1: a token sees its whole text, or all positions less than `window` away
        ("window", "i8"),  # positions a token sees, itself included
        ("chunked", "i8"),  # 1: a token sees those from the last multiple of `window` on
        ("spans", "i8"),  # 1: a token sees what the step's spans say, if it has any
        ("scratch", "i8"),
        ("scratch_stride", "i8"),  # bytes between workers
        ("tile_rows", "i8"),
        ("ahead", "i8"),  # 1: prefetch keys and values
        ("partials", "i8"),  # float32[T, H, max_chunks, 16 + value_padded]
        ("max_chunks", "i8"),
        ("step", "i8"),
        ("sinks", "i8"),  # float32[H]; 0: none
        ("slopes", "i8"),  # float32[16 + H]: 0 to 15, then each head's slope; 0: none
        ("biases", "i8"),  # float32[H, 288]: what is added at distances from -143 on; 0: none
        ("summaries", "i8"),  # float16[G, pages, 2, key_padded]: for budgets
        ("summary_stride", "i8"),  # bytes between kv heads
        ("choice", "i8"),  # scratch of `choice`
        ("choice_stride", "i8"),  # bytes between workers
        ("ranks", "i8"),  # int32[T, G, max_chunks]
        ("lists", "i8"),  # int32[n_tiles, G, 1 + max_chunks]
        ("block_lists", "i8"),  # int32[blocks, G, block_list_bytes / 4], as `block_choice` writes them; 0: none
        ("block_list_bytes", "i8"),
        ("block_chunks", "i8"),  # chunks a block sees
        ("block_attention", "i8"),  # float32[workers, 1 + 2 * sampled rows, block_attention_row / 4]
        ("block_attention_stride", "i8"),  # bytes between workers
        ("block_attention_row", "i8"),  # bytes
        ("scale", "f4"),
        ("cap", "f4"),  # 0: none
    ]
)
"""Record of `kernels.attention.attention`, and of `choice` and `chosen`, which read budgets."""

SUMMARISED_LAYER = np.dtype(
    [
        *PAGES,
        *((name, "i8") for name in ("kv_heads", "key_width", "key_padded")),
        ("summaries", "i8"),  # float16[G, pages, 2, key_padded]
        ("summary_stride", "i8"),  # bytes between kv heads
    ]
)
"""The keys of a layer and their summaries, by page."""

SUMMARISE = np.dtype(
    [
        ("layers", "i8"),  # SUMMARISED_LAYER[n_layers]
        ("n_layers", "i8"),
        ("pages", "i8"),  # int32[n_pages]
        ("n_pages", "i8"),
    ]
)
"""Record of `kernels.attention.choice.summarising`."""
