"""Unigram, the tokenizer of XLM-RoBERTa and T5: the most likely of all ways to split a text into pieces.

In: text without special tokens; a map that normalises characters, if the file has one. Out: ids, through the
`tokenizers` package, which is imported when an encoder is created. Does not handle special tokens. Source: Kudo, arXiv
1804.10959.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.sentencepiece import SPACE, SpacedPieces
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary

CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
UNIT_BYTES = 4
IS_LEAF, HAS_LEAF, IS_FAR = 1 << 31, 1 << 8, 1 << 9
LAST_BYTE = 0xFF
_NOT_IN_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN)


class UnigramEncoder:
    """Encodes plain text with the scores of a vocabulary; one instance can be used by several threads.

    `charsmap`: how its characters are normalised, if at all. Raises BadGGUF if the vocabulary has no scores or no
    unknown token, or the map is invalid.
    """

    def __init__(self, vocabulary: Vocabulary, charsmap: bytes, *, joins_spaces: bool) -> None:
        from tokenizers import Regex, Tokenizer, normalizers
        from tokenizers.models import Unigram

        if not vocabulary.scores or vocabulary.unk_id is None:
            raise BadGGUF("a Unigram vocabulary (tokenizer.ggml.model = t5) needs scores and an unknown token")
        self._unknown, self._add_space_prefix = vocabulary.unk_id, vocabulary.add_space_prefix
        self.piece = SpacedPieces(vocabulary)
        pairs = list(zip(_texts(vocabulary), map(float, vocabulary.scores), strict=True))
        self._tokenizer = Tokenizer(Unigram(pairs, vocabulary.unk_id, bool(self.piece.byte_ids)))
        if charsmap:
            check_charsmap(charsmap)
        try:
            steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
        except Exception as reason:  # the package has no error type of its own
            raise BadGGUF(f"{CHARSMAP} cannot be read: {reason}") from None
        if joins_spaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        self._normalizer = normalizers.Sequence(steps)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`; if it `starts` a text, a space is put before it if the vocabulary requires one."""
        spaced: str = self._normalizer.normalize_str(text).replace(" ", SPACE)
        if spaced and starts and self._add_space_prefix and not spaced.startswith(SPACE):
            spaced = SPACE + spaced
        ids: list[int] = self._tokenizer.encode(spaced, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that are unknown by themselves."""
        return "".join(character for character in text if self._unknown in self.encode(character, starts=False))


def _texts(vocabulary: Vocabulary) -> list[str]:
    """Texts of the pieces; those of control tokens hold a space, which no text does that is to be cut."""
    kinds = vocabulary.types
    return [
        f" {token}" if kinds[token] in _NOT_IN_TEXT or not text else text
        for token, text in enumerate(vocabulary.tokens)
    ]


def check_charsmap(charsmap: bytes) -> None:
    """Raises BadGGUF if, for any text, following the map's trie could lead outside of it or of its texts.

    The map consists of the size of a trie, the trie (a double array of 32-bit units), and the texts that its leaves
    point into. `tokenizers` trusts it: a unit that points outside would crash the program. Source: Aoe, An Efficient
    Digital Search Algorithm by Using a Double-Array Structure (1989), in the form of Darts-clone.
    """
    import numpy as np  # not needed for other kinds of vocabularies

    n_bytes = int.from_bytes(charsmap[:UNIT_BYTES], "little")
    texts = charsmap[UNIT_BYTES + n_bytes :]
    if len(charsmap) < UNIT_BYTES or not n_bytes or n_bytes % UNIT_BYTES or len(charsmap) < UNIT_BYTES + n_bytes:
        raise BadGGUF(f"{CHARSMAP} cannot be read: its trie is said to have {n_bytes} of its {len(charsmap)} bytes")
    units = np.frombuffer(charsmap, "<u4", n_bytes // UNIT_BYTES, UNIT_BYTES)
    nodes = np.union1d(0, np.flatnonzero(units & IS_LEAF == 0))  # the root is always followed, whatever it says
    below = nodes ^ ((units[nodes] >> 10) << ((units[nodes] & IS_FAR) >> 6)).astype(np.int64)
    if int((below | LAST_BYTE).max(initial=LAST_BYTE)) >= len(units):
        raise BadGGUF(f"{CHARSMAP} cannot be read: its trie points beyond its {len(units)} units")
    leaves = units[below[units[nodes] & HAS_LEAF != 0]] & np.uint32(IS_LEAF - 1)
    begins = np.append(np.frombuffer(texts, np.uint8) & 0xC0 != 0x80, True)  # starts of UTF-8 characters, and the end
    if int(leaves.max(initial=0)) >= len(begins) or not begins[leaves].all():
        raise BadGGUF(f"{CHARSMAP} cannot be read: its trie points to no beginning of a text")
