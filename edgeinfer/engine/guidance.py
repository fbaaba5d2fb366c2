"""Constraints from JSON schemas and grammars, by llguidance (https://github.com/guidance-ai/llguidance).

In: a tokenizer, a `Grammar`. Out: a `Constraint`. llguidance is loaded when the first one is asked for; its tables of
the vocabulary are made once for a tokenizer. Knows no logits and no drafts.
"""

from __future__ import annotations

import copy
import functools
import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.constraints import Constraint, Grammar
from edgeinfer.engine.gbnf import spelled
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.models.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

JSON_FORM: JsonCompileOptions = {"whitespace_pattern": r"( |\n {0,32})?"}
"""Between the parts of JSON: nothing, a space, or a new line with its indentation. Small models go on with white space
for ever where they may."""
MOST_DIGITS = 20
"""In a row, in a number of JSON: as many as 64 bits have. Small models go on with these for ever, too."""
MOST_TEXT = 1 << 20
"""Characters of a schema or grammar."""


def grammar_of(
    schema: Mapping[str, object] | str | Literal[True] | None, grammar: str | None, regex: str | None
) -> Grammar | None:
    """What the options of an answer ask for; None: nothing. Raises BadSetting for more than one, or for none at all."""
    given = [name for name, value in (("schema", schema), ("grammar", grammar), ("regex", regex)) if value is not None]
    if len(given) > 1:
        raise BadSetting(f"an answer follows one of {' and '.join(given)}, not all of them; leave the others out")
    if schema is not None:
        schema = {"type": "object"} if schema is True else schema
        return Grammar("json", _short(schema if isinstance(schema, str) else _text_of(schema), "schema"))
    if grammar is not None:
        return Grammar("grammar", _short(grammar, "grammar"))
    return None if regex is None else Grammar("regex", _short(regex, "regex"))


def _text_of(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as reason:
        raise BadSetting(f"the schema is no JSON: {reason}") from None


def _short(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise BadSetting(f"a {what} cannot be {text!r}: it must be text")
    if not (text if what == "regex" else text.strip()):
        raise BadSetting(f"a {what} cannot be empty")
    if len(text) > MOST_TEXT:
        raise BadSetting(f"the {what} has {len(text)} characters; {MOST_TEXT} are the most")
    return text


class Guidance:
    """Makes constraints for one tokenizer; for any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def constraint(self, grammar: Grammar) -> Constraint:
        """One answer's constraint. Raises BadSetting for a grammar that is none or cannot be met."""
        try:
            from llguidance import LLMatcher, grammar_from
        except ImportError:
            raise BadSetting(
                "answers that follow a schema or grammar need llguidance: pip install 'edgeinfer[schema]'"
            ) from None
        with self._lock:
            tables = self._tables
        try:
            if grammar.kind == "json":
                compiled = LLMatcher.grammar_from_json_schema(grammar.text, defaults=JSON_FORM)
            else:
                text = spelled(grammar.text) if grammar.kind == "grammar" else grammar.text
                compiled = grammar_from(grammar.kind, text)
        except Exception as reason:  # whatever a converter makes of a text that is no grammar
            raise BadSetting(f"the {_name(grammar)} cannot be read: {_first_line(str(reason))}") from None
        matcher = LLMatcher(tables, compiled, log_level=0)
        if (problem := _problem(matcher, self._unwritten) or _problem_ahead(matcher, self._unwritten)) is not None:
            raise BadSetting(f"the {_name(grammar)} cannot be followed: {problem}")
        if grammar.kind == "json":
            return _GuidedJson(matcher, self._tokenizer, self._unwritten, self._leading_digits)
        return _Guided(matcher, self._tokenizer, self._unwritten)

    @functools.cached_property
    def _unwritten(self) -> frozenset[int]:
        """Bytes that are in no token's text."""
        is_control = self._tokenizer.vocabulary.is_control
        tokens = (token for token in range(self._tokenizer.n_tokens) if not is_control(token))
        return frozenset(range(256)).difference(*map(self._tokenizer.piece, tokens))

    @functools.cached_property
    def _leading_digits(self) -> NDArray[np.int32]:
        """Digits that each token begins with: int32[V]."""
        pieces = (self._tokenizer.piece(token) for token in range(self._tokenizer.n_tokens))
        return np.array([len(piece) - len(piece.lstrip(b"0123456789")) for piece in pieces], np.int32)

    @functools.cached_property
    def _tables(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        vocabulary = self._tokenizer.vocabulary
        return LLTokenizer(
            _Wrapped(self._tokenizer),  # type: ignore[arg-type]  # its class only asks for these fields
            n_vocab=self._tokenizer.n_tokens,
            eos_token=sorted(vocabulary.end_of_generation) or None,
        )


class _Wrapped:
    """A tokenizer as llguidance wants it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        ends = sorted(vocabulary.end_of_generation)
        if not ends:
            raise BadSetting("this model has no token that ends a text, so that no answer can be made to end")
        self.eos_token_id = vocabulary.eos_id if vocabulary.eos_id is not None else ends[0]
        self.bos_token_id = vocabulary.bos_id
        self.tokens = [tokenizer.piece(token) for token in range(tokenizer.n_tokens)]
        self.special_token_ids = [token for token in range(tokenizer.n_tokens) if vocabulary.is_control(token)]

    def __call__(self, text: bytes | str) -> list[int]:
        known = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.encode(known, add_special=False, parse_special=False, goes_on=True)


class _Guided:
    """A constraint by one of llguidance's matchers."""

    def __init__(self, matcher: LLMatcher, tokenizer: Tokenizer, unwritten: frozenset[int]) -> None:
        self._matcher, self._unwritten = matcher, unwritten
        self._n_vocab = tokenizer.n_tokens
        self._ends = tokenizer.vocabulary.end_of_generation
        self._forced: deque[int] = deque()  # asked on the way, the matcher may cut the same text into other tokens

    def forced(self) -> Sequence[int]:
        if not self._forced:
            self._forced.extend(self._matcher.compute_ff_tokens())
            self._check()
        return tuple(self._forced)

    def allows(self, token: int) -> bool:
        if token in self._ends:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def n_allowed(self, tokens: Sequence[int]) -> int:
        wanted = list(tokens)
        stop = next((number for number, token in enumerate(wanted) if token in self._ends), len(wanted))
        return self._matcher.validate_tokens(wanted[:stop])

    def mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()

    def _check(self) -> None:
        if (problem := _problem(self._matcher, self._unwritten)) is not None:
            raise EdgeInferError(f"the grammar could not be followed: {problem}")


class _GuidedJson(_Guided):
    """As its like, but numbers end after MOST_DIGITS digits in a row, wherever the schema lets them."""

    def __init__(
        self, matcher: LLMatcher, tokenizer: Tokenizer, unwritten: frozenset[int], leading_digits: NDArray[np.int32]
    ) -> None:
        super().__init__(matcher, tokenizer, unwritten)
        self._tokenizer, self._leading_digits = tokenizer, leading_digits
        self._number = _Number()

    def allows(self, token: int) -> bool:
        if token not in self._ends and not self._is_short(token, self._number):
            return bool(self.mask()[token])
        return super().allows(token)

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """As its like; of a number that would get too long no more than is certain."""
        n, ahead = super().n_allowed(tokens), copy.copy(self._number)
        for before, token in enumerate(tokens[:n]):
            if not self._is_short(token, ahead):
                return before
            ahead.push(self._tokenizer.piece(token))
        return n

    def mask(self) -> NDArray[np.bool_]:
        allowed = super().mask()
        if not self._number.n_digits:
            return allowed
        short = allowed & (self._leading_digits <= self._number.room)
        return short if short.any() else allowed

    def accept(self, token: int) -> None:
        super().accept(token)
        self._number.push(self._tokenizer.piece(token))

    def _is_short(self, token: int, number: _Number) -> bool:
        """Whether a token would leave the number that is being written short enough."""
        return not number.n_digits or token >= self._n_vocab or self._leading_digits[token] <= number.room


class _Number:
    """The digits in a row at the end of JSON that grows, outside of its strings."""

    def __init__(self) -> None:
        self.n_digits = 0
        self._in_string = self._is_escaped = False

    @property
    def room(self) -> int:
        """How many more there may be, in a number that has begun."""
        return max(0, MOST_DIGITS - self.n_digits)

    def push(self, piece: bytes) -> None:
        for byte in piece:
            if self._in_string:
                self._in_string = self._is_escaped or byte != ord('"')
                self._is_escaped = byte == ord("\\") and not self._is_escaped
            else:
                self._in_string = byte == ord('"')
                self.n_digits = self.n_digits + 1 if ord("0") <= byte <= ord("9") else 0


def _problem(matcher: LLMatcher, unwritten: frozenset[int]) -> str | None:
    """Why it cannot be followed from here on, as far as that shows."""
    if matcher.is_error():
        return _first_line(matcher.get_error())
    wanted = unwritten.intersection(matcher.compute_ff_bytes())
    return f"it wants the byte {min(wanted):02X}, which no token of this model writes" if wanted else None


def _problem_ahead(matcher: LLMatcher, unwritten: frozenset[int]) -> str | None:
    """Why it cannot be followed as far as to its first choice; some of what cannot be met shows there only."""
    ahead = matcher.deep_copy()
    ahead.consume_tokens(ahead.compute_ff_tokens())
    ahead.compute_bitmask()
    return _problem(ahead, unwritten)


def _name(grammar: Grammar) -> str:
    return {"json": "schema", "regex": "regular expression"}.get(grammar.kind, "grammar")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "for an unknown reason")[:300]
