"""Unigram, the tokenizer of XLM-RoBERTa and T5: the most likely of all ways to split a text into pieces.

In: text without special tokens. Out: ids, through the `tokenizers` package, which is imported when an encoder is
created. Does not handle special tokens. Source: Kudo, arXiv 1804.10959.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.vocabulary import Vocabulary

SPACE = "▁"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"


class UnigramEncoder:
    """Encodes plain text with the scores of a vocabulary; `charsmap`: how its characters are normalised, if at all.

    Raises BadGGUF if the vocabulary has no scores or no unknown token, or the map is invalid.
    """

    def __init__(self, vocabulary: Vocabulary, charsmap: bytes, *, joins_spaces: bool) -> None:
        from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
        from tokenizers.models import Unigram

        if not vocabulary.scores or vocabulary.unk_id is None:
            raise BadGGUF("a Unigram vocabulary (tokenizer.ggml.model = t5) needs scores and an unknown token")
        self._tokens, self._unknown = vocabulary.tokens, vocabulary.unk_id
        pairs = list(zip(vocabulary.tokens, map(float, vocabulary.scores), strict=True))
        self._tokenizer = Tokenizer(Unigram(pairs, vocabulary.unk_id, False))
        if charsmap:
            check_charsmap(charsmap)
        try:
            steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
        except Exception as reason:  # the package has no error type of its own
            raise BadGGUF(f"{CHARSMAP} cannot be read: {reason}") from None
        if joins_spaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        self._tokenizer.normalizer = normalizers.Sequence(steps)
        scheme = "always" if vocabulary.add_space_prefix else "never"
        self._starting = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
        self._following = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`; if it `starts` a text, a space is put before it if the vocabulary requires one."""
        self._tokenizer.pre_tokenizer = self._starting if starts else self._following
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that are unknown by themselves."""
        return "".join(character for character in text if self._unknown in self.encode(character, starts=False))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        return self._tokens[token].replace(SPACE, " ").encode()


UNIT_BYTES = 4
IS_LEAF, HAS_LEAF, IS_FAR = 1 << 31, 1 << 8, 1 << 9
LAST_BYTE = 0xFF


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
