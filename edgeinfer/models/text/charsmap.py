"""The map by which SentencePiece normalises characters (`precompiled_charsmap`): is it whole?

In: its bytes: the size of a trie, the trie (a double array of 32-bit units), and the texts that its leaves point into.
Out: nothing, or BadGGUF. The `tokenizers` package, which reads it, trusts it: a unit that points outside ends the
program there. Source: Aoe, An Efficient Digital Search Algorithm by Using a Double-Array Structure (1989), in the form
of Darts-clone.
"""

from __future__ import annotations

from edgeinfer.errors import BadGGUF

KEY = "tokenizer.ggml.precompiled_charsmap"
UNIT_BYTES = 4
IS_LEAF, HAS_LEAF, IS_FAR = 1 << 31, 1 << 8, 1 << 9
LAST_BYTE = 0xFF


def check_charsmap(charsmap: bytes) -> None:
    """Raises BadGGUF where following the trie, whatever the text is, could lead outside of it or of its texts."""
    import numpy as np  # whoever only tokenizes with other vocabularies does without

    n_bytes = int.from_bytes(charsmap[:UNIT_BYTES], "little")
    texts = charsmap[UNIT_BYTES + n_bytes :]
    if len(charsmap) < UNIT_BYTES or not n_bytes or n_bytes % UNIT_BYTES or len(charsmap) < UNIT_BYTES + n_bytes:
        raise BadGGUF(f"{KEY} cannot be read: its trie is said to have {n_bytes} of its {len(charsmap)} bytes")
    units = np.frombuffer(charsmap, "<u4", n_bytes // UNIT_BYTES, UNIT_BYTES)
    nodes = np.union1d(0, np.flatnonzero(units & IS_LEAF == 0))  # the root is followed whatever it says
    below = nodes ^ ((units[nodes] >> 10) << ((units[nodes] & IS_FAR) >> 6)).astype(np.int64)
    if int((below | LAST_BYTE).max(initial=LAST_BYTE)) >= len(units):
        raise BadGGUF(f"{KEY} cannot be read: its trie points beyond its {len(units)} units")
    leaves = units[below[units[nodes] & HAS_LEAF != 0]] & np.uint32(IS_LEAF - 1)
    begins = np.append(np.frombuffer(texts, np.uint8) & 0xC0 != 0x80, True)  # of characters in UTF-8, and the end
    if int(leaves.max(initial=0)) >= len(begins) or not begins[leaves].all():
        raise BadGGUF(f"{KEY} cannot be read: its trie points to no beginning of a text")
