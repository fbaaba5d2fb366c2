"""SentencePiece's two algorithms, text to token ids: BPE by scores with byte fallback, and Unigram.

In: text without special tokens. Out: ids. BPE merges the adjacent pair whose concatenation has the best score first,
the leftmost on ties, until no concatenation is a token (`bpe_model.cc` of SentencePiece). The rank of a merge is the
score of its *result*, so a result reached through two pairs has one rank and the leftmost wins; a list of merges, as
used by the `tokenizers` package, cannot express that. Unigram, the tokenizer of XLM-RoBERTa and T5, is the most likely
of all ways to split a text into pieces (Kudo, arXiv 1804.10959); it runs in the `tokenizers` package, which is imported
when an encoder is created. Does not handle special tokens or the start of a text.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from typing import Any

from edgeinfer.errors import BadGGUF, EdgeInferError, UnsupportedModel
from edgeinfer.models.text.vocabulary import TokenType, Vocabulary

SPACE = "▁"
_MERGEABLE = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED})
_VERBATIM = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CACHED_WORDS = 16384
_CACHED_LENGTH = 48
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
UNIT_BYTES = 4
IS_LEAF, HAS_LEAF, IS_FAR = 1 << 31, 1 << 8, 1 << 9
LAST_BYTE = 0xFF


class SentencePieceEncoder:
    """Encodes plain text with the scores of a vocabulary; one instance can be used by several threads.

    Raises UnsupportedModel if the vocabulary has no scores.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.scores:
            raise UnsupportedModel(
                "tokenizer.ggml.scores is missing: a SentencePiece vocabulary (tokenizer.ggml.model = llama) needs them"
            )
        kinds, tokens = vocabulary.types, vocabulary.tokens
        self._ids = {tokens[t]: t for t in reversed(range(len(tokens))) if kinds[t] in _MERGEABLE}
        self._scores = vocabulary.scores
        self._unused = {text for text, token in self._ids.items() if kinds[token] == TokenType.UNUSED}
        self._bytes = {byte: t for t, kind in enumerate(kinds) if kind == TokenType.BYTE for byte in _byte(tokens[t])}
        self._unk_id = vocabulary.unk_id
        self._add_space_prefix = vocabulary.add_space_prefix
        self._bytes_of = {token: bytes([byte]) for byte, token in self._bytes.items()}
        self._tokens = tokens
        self._types = kinds
        self._words = _word_pattern(self._ids)
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`; if it `starts` a text, a space is put before it if the vocabulary requires one."""
        escaped = ((" " if starts and self._add_space_prefix else "") + text).replace(" ", SPACE)
        ids: list[int] = []
        for word in self._words.findall(escaped):
            ids += self._word(word)
        return self._fused(ids)

    def unwritable(self, text: str) -> str:
        """The characters of `text` that become the unknown token."""
        lacking = {c for c in set(text.replace(" ", SPACE)) - self._ids.keys() if not self._has_bytes(c)}
        return "".join(character for character in text if character in lacking)

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for in a text."""
        byte = self._bytes_of.get(token)
        if byte is not None:
            return byte
        text = self._tokens[token]
        return (text if self._types[token] in _VERBATIM else text.replace(SPACE, " ")).encode()

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._cache.get(word)
        if known is not None:
            return known
        ids = tuple(self._merged(word))
        if len(word) <= _CACHED_LENGTH:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _merged(self, word: str) -> list[int]:
        symbols = list(word)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, int]] = []
        parts: dict[str, tuple[str, str]] = {}

        def offer(left: int, right: int) -> None:
            text = symbols[left] + symbols[right]
            token = self._ids.get(text)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, len(text)))
                if text in self._unused:
                    parts[text] = (symbols[left], symbols[right])

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, size = heapq.heappop(queue)
            # An entry is stale once either side has been merged with something else.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            following = after[left] = after[right]
            if following >= 0:
                before[following] = left
                offer(left, following)
            if before[left] >= 0:
                offer(before[left], left)
        return [token for symbol in symbols if symbol for token in self._resolved(symbol, parts)]

    def _resolved(self, symbol: str, parts: dict[str, tuple[str, str]]) -> list[int]:
        """Ids of a finished symbol: itself, or the parts of an unused token, or its bytes, or the unknown token."""
        if symbol in parts:
            return [token for part in parts[symbol] for token in self._resolved(part, parts)]
        token = self._ids.get(symbol)
        if token is not None:
            return [token]
        if self._has_bytes(symbol):
            return [self._bytes[byte] for byte in symbol.encode()]
        if self._unk_id is None:
            raise EdgeInferError(f"the vocabulary has no token for {symbol!r}, no byte tokens and no unknown token")
        return [self._unk_id]

    def _has_bytes(self, symbol: str) -> bool:
        return all(byte in self._bytes for byte in symbol.encode())

    def _fused(self, ids: list[int]) -> list[int]:
        """`ids` with each run of unknown tokens reduced to one, as in SentencePiece."""
        unk = self._unk_id
        if unk is None or unk not in ids:
            return ids
        return [token for i, token in enumerate(ids) if token != unk or i == 0 or ids[i - 1] != unk]


def _word_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for words that no merge can join: a space begins one unless some token has it after that character."""
    # Few vocabularies have tokens with a space after another character, and then only few.
    crossing = [text for text in texts if SPACE in text.lstrip(SPACE)]
    joined = sorted({text[at - 1] for text in crossing for at in range(1, len(text)) if text[at] == SPACE} - {SPACE})
    before = "".join(map(re.escape, joined))
    within = f"(?:(?<=[{before}]){SPACE}+)?" if before else ""
    return re.compile(f"{SPACE}*(?:[^{SPACE}]+{within})+|{SPACE}+")


def _byte(text: str) -> list[int]:
    """The byte named by `<0xAB>`, in a list, or nothing."""
    found = _BYTE.fullmatch(text)
    return [int(found.group(1), 16)] if found else []


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
