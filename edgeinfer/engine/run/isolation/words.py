"""What the process of an isolated evaluator says about words: tokens and vocabularies, believed only if they can be.

In: the values of replies. Out: what they stand for, or ValueError, TypeError, KeyError. Knows no processes.
"""

from __future__ import annotations

import base64
from typing import Any

from edgeinfer.models.text import Vocabulary


def tokens_of(reply: object, n_vocab: int) -> list[int]:
    """A list of tokens of a vocabulary of so many. Raises ValueError for what is none."""
    if not isinstance(reply, list):
        raise ValueError(f"{type(reply).__name__} for a list of tokens")
    for each in reply:
        if not isinstance(each, int) or not 0 <= each < n_vocab:
            raise ValueError(f"token {each!r} of {n_vocab}")
    return reply


def vocabulary_of(reply: Any, n_vocab: int) -> tuple[Vocabulary, list[bytes]]:
    """A vocabulary and the bytes of its tokens. Raises ValueError, TypeError or KeyError for what is none."""
    fields, pieces = dict(reply["fields"]), [base64.b64decode(piece) for piece in reply["pieces"]]
    for name, kind in (("tokens", str), ("scores", (int, float)), ("types", int)):
        fields[name] = tuple(fields[name])
        if not all(isinstance(each, kind) for each in fields[name]):
            raise ValueError(f"a vocabulary with other {name}")
    for name in ("end_of_generation", "strips_right"):
        fields[name] = frozenset(tokens_of(fields[name], n_vocab))
    found = Vocabulary(**fields)
    if not found.n_tokens == len(found.types) == len(pieces) or len(found.scores) not in (0, found.n_tokens):
        raise ValueError(f"{found.n_tokens} tokens, {len(found.types)} types and {len(pieces)} pieces")
    return found, pieces
