"""The special tokens of a vocabulary, found in a text before it is tokenized.

In: a vocabulary; a text. Out: the text as a sequence of plain stretches and special tokens: the leftmost match wins,
and at each position the longest token, as in SentencePiece and the `tokenizers` package. Independent of how plain text
becomes tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary


class SpecialTokens:
    """The special tokens of a vocabulary, matched against text.

    User-defined tokens are always matched, control and unknown tokens only if `parse_special` is set.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = vocabulary.special_ids()
        user_defined = [token for token in ids if vocabulary.types[token] == TokenType.USER_DEFINED]
        control = [token for token in ids if vocabulary.is_control(token)]
        self._all = MarkMatcher({vocabulary.tokens[token]: token for token in reversed(ids)})
        self.control = MarkMatcher({vocabulary.tokens[token]: token for token in reversed(control)})
        """Finds the tokens that are matched only if `parse_special` is set."""
        self._user_defined = MarkMatcher({vocabulary.tokens[token]: token for token in reversed(user_defined)})
        self._strips_right = vocabulary.strips_right

    def split(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """`text` as non-empty plain stretches and token ids, in order."""
        matcher = self._all if parse_special else self._user_defined
        plain_from = 0
        for start, end, token in matcher.matches(text):
            if start < plain_from:
                continue
            if start > plain_from:
                yield text[plain_from:start]
            yield token
            plain_from = end
            if token in self._strips_right:
                plain_from += len(text[end:]) - len(text[end:].lstrip(" \t\n\v\f\r"))
        if plain_from < len(text):
            yield text[plain_from:]


class MarkMatcher:
    """Finds the given texts: scans for their first characters, then looks up by length, longest first."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = {text: token for text, token in ids.items() if text}
        self.texts = frozenset(self._ids)
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self.first_characters = frozenset(lengths)
        self._first = re.compile("[" + "".join(map(re.escape, sorted(lengths))) + "]") if lengths else None

    def matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, token) of every match, left to right, none overlapping."""
        position = 0
        while self._first is not None and (found := self._first.search(text, position)):
            start = found.start()
            position = start + 1
            for size in self._lengths[found.group()]:
                token = self._ids.get(text[start : start + size])
                if token is not None:
                    position = start + size
                    yield start, position, token
                    break
