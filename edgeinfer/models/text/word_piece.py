"""WordPiece, BERT's tokenizer: words, often in lower case without accents, split into the longest pieces from the left.

In: text without special tokens. Out: ids, through the `tokenizers` package, which is imported when an encoder is
created. GGUF files mark pieces that begin a word with a space mark, and leave those within words unmarked. Does not
handle special tokens. Source: Wu et al., arXiv 1609.08144; BERT's `BasicTokenizer`.
"""

from __future__ import annotations

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.vocabulary import Vocabulary

BEGINS = "▁"
WITHIN = "##"
LONGEST_WORD = 1024
"""Characters per word; longer words are unknown."""


class WordPieceEncoder:
    """Encodes plain text with the pieces of a vocabulary. Raises BadGGUF if it has no unknown token."""

    def __init__(self, vocabulary: Vocabulary, *, lowers: bool = True, strips_accents: bool = True) -> None:
        from tokenizers import Tokenizer, normalizers, pre_tokenizers
        from tokenizers.models import WordPiece

        unknown = vocabulary.unk_id
        if unknown is None:
            raise BadGGUF("tokenizer.ggml.unknown_token_id is missing: a WordPiece vocabulary needs it")
        self._tokens, self._unknown = vocabulary.tokens, unknown
        self._pieces = [self._piece(token, vocabulary) for token in range(vocabulary.n_tokens)]
        ids = {piece: token for token, piece in reversed(list(enumerate(self._pieces)))}
        name = self._pieces[unknown]
        self._tokenizer = Tokenizer(WordPiece(ids, unk_token=name, max_input_chars_per_word=LONGEST_WORD))
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=strips_accents)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    @staticmethod
    def _piece(token: int, vocabulary: Vocabulary) -> str:
        """A piece in the package's notation: pieces within words begin with a mark."""
        text = vocabulary.tokens[token]
        if vocabulary.is_control(token):
            return text
        return text.removeprefix(BEGINS) if text.startswith(BEGINS) else WITHIN + text

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that are unknown words by themselves."""
        return "".join(character for character in text if self._unknown in self.encode(character, starts=False))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for: a piece that begins a word has a space before it."""
        return self._tokens[token].replace(BEGINS, " ").encode()
