"""Unigram, the tokenizer of XLM-RoBERTa and T5: of all ways to cut a text the one whose pieces are likeliest.

In: text without special tokens. Out: ids, through the `tokenizers` package, which is imported when an encoder is made.
Knows nothing of special tokens. Source: Kudo, arXiv 1804.10959.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.charsmap import KEY as CHARSMAP
from edgeinfer.models.text.charsmap import check_charsmap
from edgeinfer.models.text.vocabulary import Vocabulary

SPACE = "▁"


class UnigramEncoder:
    """Encodes plain text with the scores of a vocabulary; `charsmap`: how its characters are normalised, if they are.

    Raises BadGGUF where the vocabulary has no scores or no unknown token, or the map is none.
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
        except Exception as reason:  # the package has no error of its own
            raise BadGGUF(f"{CHARSMAP} cannot be read: {reason}") from None
        if joins_spaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        self._tokenizer.normalizer = normalizers.Sequence(steps)
        scheme = "always" if vocabulary.add_space_prefix else "never"
        self._starting = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
        self._following = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`; where it `starts` a text, a space goes before it if the vocabulary says so."""
        self._tokenizer.pre_tokenizer = self._starting if starts else self._following
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that are unknown by themselves."""
        return "".join(character for character in text if self._unknown in self.encode(character, starts=False))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        return self._tokens[token].replace(SPACE, " ").encode()
