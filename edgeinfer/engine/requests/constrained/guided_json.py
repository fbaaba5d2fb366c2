"""Constraints for JSON answers: numbers end, and the JSON is closed before the answer runs out of tokens.

In: a matcher of a schema, chosen tokens. Out: what may follow. When the remaining tokens are only just enough to close
strings, lists and objects and to write what the schema still requires, exactly that is forced. The result depends only
on the tokens before and on the number of tokens allowed, so drafts change nothing. Knows no logits.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.constrained.constraints import Guided
from edgeinfer.engine.requests.constrained.schemas import FORMATS, forms, shortest
from edgeinfer.models.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_DIGITS = 20
"""Most digits in a row in a JSON number, as many as 64 bits have.

Small models otherwise tend to write digits forever.
"""
MOST_EXPONENT_DIGITS = 2
"""Most digits of a number's exponent: larger ones give numbers that are infinite to who reads them."""
MOST_CLOSING = 1024
"""Most tokens for closing an answer; what takes more is cut."""
MOST_IN_STRING = 64
"""Of these, most tokens within one string: if so many do not end it, chance will not satisfy its pattern."""
MOST_PATTERNS = 64
"""Most patterns of a schema that are used to close strings,"""
MOST_ENDINGS = 512
"""most endings of such patterns that are tried,"""
TRIED = 5
"""and at how many tokens of a string they are tried: at the first one, a character may be incomplete."""
NEAR = 64
"""Tokens to spare after closing: with fewer, closing is checked at every token, as one may require many more;"""
LOOKS = 8
"""with more, it is checked again when an eighth of the tokens beyond that are used."""
WITHIN = b'"abcdefghijklmnopqrstuvwxyz 0123456789'
"""Characters that end a string soonest, in this order;"""
OUTSIDE = b'}],:0123456789-"tfn{['
"""and those that end lists and objects soonest: with a number of one digit where any value is allowed."""

ENDS = b"}],"
"""Characters that may follow a number."""


@dataclass(frozen=True, slots=True)
class JsonTokens:
    """Facts about a tokenizer's tokens. leading_digits: number of digits that each token begins with, int32[V]."""

    tokenizer: Tokenizer
    leading_digits: NDArray[np.int32]
    of_bytes: Mapping[int, int]
    """The token whose text is just this byte."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Compute the facts for a tokenizer."""
        pieces = [tokenizer.piece(token) for token in range(tokenizer.n_tokens)]
        digits = np.array([len(piece) - len(piece.lstrip(b"0123456789")) for piece in pieces], np.int32)
        is_control = tokenizer.vocabulary.is_control
        single = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1 and not is_control(token)}
        return cls(tokenizer, digits, single)


class GuidedJson(Guided):
    """The JSON constraint of one answer. Numbers end after MOST_DIGITS digits in a row if the schema allows that."""

    def __init__(self, matcher: LLMatcher, schema: object, tokens: JsonTokens, unwritten: frozenset[int]) -> None:
        """`schema`: the matcher's schema, or several schemas within it; used to find out how strings may end."""
        super().__init__(matcher, tokens.tokenizer, unwritten)
        self._schema, self._tokens = schema, tokens
        self._place = JsonPlace()
        self._n_left: int | None = None
        self._n_left_to_look = 0
        """Number of remaining tokens at which to compute again what closing takes."""
        self._is_closing = False

    @property
    def is_cut(self) -> bool:
        return self._is_closing

    def end_within(self, n_tokens: int) -> None:
        self._n_left = n_tokens
        self._look(n_tokens, self._closing(self._matcher, self._place, n_tokens))

    def settled(self, token: int) -> int:
        n_left = self._n_left
        if n_left is None or n_left > self._n_left_to_look or self._is_closing or token in self._ends:
            return token
        matcher, place = self._matcher.deep_copy(), copy.copy(self._place)
        matcher.consume_token(token)
        place.push(self._tokens.tokenizer.piece(token))
        after = self._closing(matcher, place, n_left - 1)
        if after is None and (closing := self._closing(self._matcher, self._place, n_left)) is not None:
            self._is_closing, self._forced = True, deque(closing)
            return closing[0] if closing else min(self._ends)
        self._look(n_left - 1, after)
        return token

    def forced(self) -> Sequence[int]:
        return tuple(self._forced) if self._is_closing else super().forced()

    def allows(self, token: int) -> bool:
        if self._is_closing or not self._is_short(token, self._place):
            return bool(self.mask()[token])
        return super().allows(token)

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """As in `Guided`, but does not count tokens that would make a number too long."""
        n, ahead = super().n_allowed(tokens), copy.copy(self._place)
        for before, token in enumerate(tokens[:n]):
            if not self._is_short(token, ahead):
                return before
            ahead.push(self._tokens.tokenizer.piece(token))
        return n

    def mask(self) -> NDArray[np.bool_]:
        if self._is_closing:
            closing = np.zeros(self._n_vocab, np.bool_)
            closing[self._forced[0] if self._forced else list(self._ends)] = True
            return closing
        allowed = super().mask()
        if not self._place.in_number:
            return allowed
        short = allowed & (self._tokens.leading_digits <= self._place.room)
        return short if short.any() else allowed

    def accept(self, token: int) -> None:
        super().accept(token)
        self._place.push(self._tokens.tokenizer.piece(token))
        if self._n_left is not None:
            self._n_left -= 1

    def _is_short(self, token: int, place: JsonPlace) -> bool:
        """Whether a token keeps the number being written short enough, or ends the answer."""
        if not place.in_number or token in self._ends or token >= self._n_vocab:
            return True
        return bool(self._tokens.leading_digits[token] <= place.room)

    def _look(self, n_left: int, closing: Sequence[int] | None) -> None:
        """Set when to look again, given `n_left` remaining tokens and the tokens that would close the answer now."""
        if closing is None:
            self._n_left_to_look = n_left - max(1, n_left // LOOKS)
        else:
            self._n_left_to_look = n_left - max(0, n_left - len(closing) - NEAR) // LOOKS

    def _closing(self, matcher: LLMatcher, place: JsonPlace, most: int) -> list[int] | None:
        """A short list of tokens that would complete the answer; None if that takes too many."""
        ahead, place, found, n_in_one = matcher.deep_copy(), copy.copy(place), list[int](), 0
        while not ahead.is_accepting():
            tokens = ahead.compute_ff_tokens()
            if not tokens and place.in_string and n_in_one < TRIED:
                tokens = self._ending(ahead)
            tokens = tokens or self._nearest(ahead, place)
            if not tokens or len(found) + len(tokens) > min(most, MOST_CLOSING) or not ahead.consume_tokens(tokens):
                return None
            for token in tokens:
                place.push(self._tokens.tokenizer.piece(token))
            found += tokens
            n_in_one = n_in_one + 1 if place.in_string or place.n_digits else 0
            if n_in_one > (MOST_IN_STRING if place.in_string else MOST_DIGITS):
                return None
        return found

    def _ending(self, matcher: LLMatcher) -> list[int]:
        """The tokens that end a string where a quote alone may not; empty if a quote may, or if none are known."""
        if self._own(b'"', self._allowed(matcher)):
            return []
        return next((ending for ending in self._endings if matcher.validate_tokens(ending) == len(ending)), [])

    @cached_property
    def _endings(self) -> list[list[int]]:
        """Endings, with quotes, of texts that the schema's strings may be, shortest first."""
        patterns, formats = forms(self._schema)
        texts = [
            *filter(None, map(shortest, patterns[:MOST_PATTERNS])),
            *(FORMATS[form] for form in formats if form in FORMATS),
        ]
        ends = {text[n:]: None for text in texts for n in range(len(text))}
        quoted = [json.dumps(end, ensure_ascii=False)[1:] for end in sorted(ends, key=len)[:MOST_ENDINGS]]
        encode = self._tokens.tokenizer.encode
        return [encode(end, add_special=False, parse_special=False, goes_on=True) for end in quoted]

    def _nearest(self, matcher: LLMatcher, place: JsonPlace) -> list[int]:
        """The token that brings the open value nearest to its end; empty if nothing may follow."""
        allowed = self._allowed(matcher)
        wanted = self._own(WITHIN if place.in_string else OUTSIDE, allowed)
        if place.n_digits and not self._own(ENDS, allowed):  # of a multiple, for example, not every digit may be last
            ending = (digit for n_more in (0, 1) for digit in wanted if self._may_end(matcher, digit, n_more))
            wanted = [digit] if (digit := next(ending, None)) is not None else wanted
        return wanted[:1] or [int(allowed.argmax())][: int(allowed.any())]

    def _may_end(self, matcher: LLMatcher, digit: int, n_more: int) -> bool:
        """Whether a number may end with this token and `n_more` more."""
        ahead = matcher.deep_copy()
        if not ahead.consume_token(digit):
            return False
        allowed = self._allowed(ahead)
        if n_more:
            return any(self._may_end(ahead, other, n_more - 1) for other in self._own(OUTSIDE, allowed))
        return ahead.is_accepting() or bool(self._own(ENDS, allowed))

    def _own(self, characters: bytes, allowed: NDArray[np.uint8]) -> list[int]:
        """The allowed single-character tokens among these characters, in their order."""
        tokens = (self._tokens.of_bytes.get(character) for character in characters)
        return [token for token in tokens if token is not None and allowed[token]]

    def _allowed(self, matcher: LLMatcher) -> NDArray[np.uint8]:
        return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")


class GuidedCalls(GuidedJson):
    """The constraint of an answer that may call functions: calls are JSON and get closed; other text is free."""

    def accept(self, token: int) -> None:
        super().accept(token)
        if self._matcher.is_accepting():  # never true within a call
            self._place = JsonPlace()


class JsonPlace:
    """The position within growing JSON: in a string, or in a number with `n_digits` digits in a row."""

    def __init__(self) -> None:
        self.n_digits = 0
        self.in_string = self._is_escaped = self._in_exponent = False

    @property
    def in_number(self) -> bool:
        """Whether a number has begun, of which more digits may follow."""
        return self.n_digits > 0 or self._in_exponent

    @property
    def room(self) -> int:
        """How many more digits a number that has begun may have."""
        return max(0, (MOST_EXPONENT_DIGITS if self._in_exponent else MOST_DIGITS) - self.n_digits)

    def push(self, piece: bytes) -> None:
        """Advance by more text."""
        for byte in piece:
            if self.in_string:
                self.in_string = self._is_escaped or byte != ord('"')
                self._is_escaped = byte == ord("\\") and not self._is_escaped
            else:
                self.in_string = byte == ord('"')
                is_digit = byte in b"0123456789"
                begins = byte in b"eE" and self.n_digits > 0
                self._in_exponent = begins or (self._in_exponent and (is_digit or byte in b"+-"))
                self.n_digits = self.n_digits + 1 if is_digit else 0
