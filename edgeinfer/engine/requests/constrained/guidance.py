"""Constraints from JSON schemas and grammars, by llguidance (https://github.com/guidance-ai/llguidance).

In: a tokenizer, a `Grammar`. Out: a `Constraint`. llguidance is imported when the first constraint is requested; its
vocabulary tables are built once per tokenizer. llama.cpp's grammars (GBNF) are rewritten so that llguidance reads them
with the same meaning: characters given by number stand as themselves; characters in sets that its regular expressions
would read as operators ([a-z&&b], [--9]) are given by number; "any character" includes the new line; and no rule has
llguidance's name for the root. Grammars in Lark's syntax stay as they are. Errors in a grammar are left to llguidance.
Knows no logits and no drafts.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgeinfer.engine.requests.constrained import schemas
from edgeinfer.engine.requests.constrained.constraints import (
    Constraint,
    Grammar,
    Guided,
    first_line,
    problem_ahead,
    problem_of,
)
from edgeinfer.engine.requests.constrained.declared_keys import with_declared_keys
from edgeinfer.engine.requests.constrained.guided_json import GuidedCalls, GuidedJson, JsonTokens
from edgeinfer.engine.requests.constrained.schema_faults import fault_in
from edgeinfer.engine.requests.constrained.schema_sources import Schema, schema_text
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions


JSON_FORM: JsonCompileOptions = {"whitespace_pattern": r"( |\n {0,32})?"}
"""Whitespace between the parts of JSON: none, a space, or a new line with its indentation. Small models otherwise tend
to write whitespace forever.
"""
MOST_TEXT = 1 << 20
"""Most characters of a schema or grammar."""
MOST_ITEMS = 20_000
"""Most items of llguidance's parser between two choices: what has no choice and never ends takes about 140 MB."""
_FIRST_RULE = re.compile(r"^[^\S\n]*root\s*::=", re.MULTILINE)
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:)", re.MULTILINE)
"""What llguidance takes for Lark's syntax; its own expression takes time with the square of blank lines."""
_PART = re.compile(
    r'#[^\r\n]*|"(?:[^"\\]|\\.)*(?:"|(?P<literal>\\?\Z))|\[(?:[^\]\\]|\\.)*(?:\]|(?P<set>\\?\Z))'
    r"|\.|(?<![\w-])start(?![\w-])",
    re.DOTALL,
)
"""A comment, a literal, a character set, any character, or a reserved name; what is not closed goes on to the end."""
_INSTEAD = {".": r"[^\x00]", "start": "start-here"}
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_OPERATORS = "&~-"


def grammar_of(schema: Schema, grammar: str | None, regex: str | None) -> Grammar | None:
    """The grammar that the options of an answer ask for, or None.

    Raises BadSetting if there are several, or an empty one.
    """
    given = [name for name, value in (("schema", schema), ("grammar", grammar), ("regex", regex)) if value is not None]
    if len(given) > 1:
        raise BadSetting(f"an answer follows one of {' and '.join(given)}, not all of them; leave the others out")
    if schema is not None:
        return Grammar("json", _short(schema_text(schema), "schema"))
    if grammar is not None:
        return Grammar("grammar", _short(grammar, "grammar"))
    return None if regex is None else Grammar("regex", _short(regex, "regex"))


def _short(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise BadSetting(f"a {what} cannot be {text!r}: it must be text")
    if not (text if what == "regex" else text.strip()):
        raise BadSetting(f"a {what} cannot be empty")
    if len(text) > MOST_TEXT:
        raise BadSetting(f"the {what} has {len(text)} characters; {MOST_TEXT} are the most")
    return text


class Guidance:
    """Builds constraints for one tokenizer; usable from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def constraint(self, grammar: Grammar, arguments: Sequence[object] | None = None) -> Constraint:
        """Build the constraint of one answer. Raises BadSetting for an invalid grammar, or one that nothing satisfies.

        `arguments`: the schemas of the functions' arguments, if it is a grammar of function calls.
        """
        _require_llguidance()
        from llguidance import LLMatcher

        schema: object = None
        try:
            if grammar.kind == "json":
                schema = self.kept(schemas.read(grammar.text))
                compiled = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_FORM)
            else:
                compiled = (
                    _in_lark(grammar.text) if grammar.kind == "grammar" else LLMatcher.grammar_from_regex(grammar.text)
                )
        except BadSetting:
            raise
        except Exception as reason:  # whatever a converter raises for a text that is not a grammar
            raise BadSetting(f"the {_name(grammar)} cannot be read: {first_line(str(reason))}") from None
        matcher = self._matcher(compiled)
        if (problem := self._problem(matcher)) is not None:
            problem = fault_in(schema, problem, self._schema_problem) if grammar.kind == "json" else problem
            raise BadSetting(f"the {_name(grammar)} cannot be followed: {problem}")
        if arguments is not None:
            return GuidedCalls(matcher, list(arguments), self._json_tokens, self._unwritten)
        if grammar.kind == "json":
            return GuidedJson(matcher, schema, self._json_tokens, self._unwritten)
        return Guided(matcher, self._tokenizer, self._unwritten)

    def _matcher(self, compiled: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(step_max_items=MOST_ITEMS)
        return LLMatcher(self._tables_once(), compiled, log_level=0, limits=limits)

    def _problem(self, matcher: LLMatcher) -> str | None:
        return problem_of(matcher, self._unwritten) or problem_ahead(matcher, self._unwritten)

    def _schema_problem(self, schema: object) -> str | None:
        """Why a schema cannot be followed; None if it can."""
        from llguidance import LLMatcher

        try:
            compiled = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_FORM)
        except Exception as reason:  # whatever a converter raises
            return first_line(str(reason))
        return self._problem(self._matcher(compiled))

    def schema_of(self, text: str) -> Any:
        """The schema that a text is, as `kept` keeps it. Raises BadSetting."""
        try:
            return self.kept(schemas.read(text))
        except ValueError as reason:
            raise BadSetting(f"the schema cannot be read: {first_line(str(reason))}") from None

    def kept(self, schema: object) -> Any:
        """A copy of a schema in JSON's own types, with bounds that llguidance can hold, no wider than before.

        Objects have the keys that they declare and no others, unless the schema says otherwise. Raises BadSetting for
        numbers that llguidance would write differently, and for bounds that leave no such number.
        """
        try:
            held = with_declared_keys(schemas.with_bounds_held(schema))
            numbers = schemas.long_numbers(held)
            written = self._written(numbers) if numbers else []
        except (TypeError, ValueError, RecursionError) as reason:
            raise BadSetting(f"the schema cannot be followed: {first_line(str(reason))}") from None
        for number, found in zip(numbers, written, strict=True):
            if number != found:
                raise BadSetting(
                    f"the schema cannot be followed: it wants the number {number}, which would be written as {found}; "
                    "ask for it as a string"
                )
        return held

    def _written(self, numbers: Sequence[float]) -> list[float]:
        """The numbers as llguidance would write them in answers.

        Raises ValueError for ones that answers cannot have.
        """
        _require_llguidance()
        from llguidance import LLMatcher

        form: JsonCompileOptions = {"whitespace_flexible": False}
        compiled = LLMatcher.grammar_from_json_schema(json.dumps({"const": numbers}), defaults=form)
        matcher = LLMatcher(self._tables_once(), compiled, log_level=0)
        text = matcher.compute_ff_bytes()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        written: list[float] = json.loads(text)
        return written

    def _tables_once(self) -> LLTokenizer:
        with self._lock:
            return self._tables

    @functools.cached_property
    def _unwritten(self) -> frozenset[int]:
        """Bytes that occur in no token's text, but FF: no text has it; llguidance writes it before control tokens."""
        is_control = self._tokenizer.vocabulary.is_control
        tokens = (token for token in range(self._tokenizer.n_tokens) if not is_control(token))
        return frozenset(range(255)).difference(*map(self._tokenizer.piece, tokens))

    @functools.cached_property
    def _json_tokens(self) -> JsonTokens:
        return JsonTokens.of(self._tokenizer)

    @functools.cached_property
    def _tables(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        vocabulary = self._tokenizer.vocabulary
        return LLTokenizer(
            _Wrapped(self._tokenizer),  # type: ignore[arg-type]  # its class only needs these fields
            n_vocab=self._tokenizer.n_tokens,
            eos_token=sorted(vocabulary.end_of_generation) or None,
        )


class _Wrapped:
    """A tokenizer with the interface that llguidance expects."""

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


def _require_llguidance() -> None:
    """Raises BadSetting if llguidance is not installed."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        raise BadSetting(
            "answers that follow a schema or grammar need llguidance: pip install 'edgeinfer[schema]'"
        ) from None


def _name(grammar: Grammar) -> str:
    return {"json": "schema", "regex": "regular expression"}.get(grammar.kind, "grammar")


def _in_lark(grammar: str) -> str:
    """Read a grammar in either syntax, for llguidance."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = spelled(grammar)
    return LLMatcher.grammar_from_lark(text if _LARK.search(text) else gbnf_to_lark(text))


def spelled(grammar: str) -> str:
    """Rewrite a grammar for llguidance."""
    return _PART.sub(_part, grammar) if _FIRST_RULE.search(grammar) else grammar


def _part(found: re.Match[str]) -> str:
    text = _INSTEAD.get(found[0], found[0])
    is_open = found["literal"] is not None or found["set"] is not None
    if text != found[0] or text.startswith("#") or is_open:
        return text
    characters = _CHARACTER.findall(text[1:-1])
    return f"[{_set(characters)}]" if text.startswith("[") else f'"{"".join(map(_character, characters))}"'


def _set(characters: list[str]) -> str:
    """Rewrite the contents of a character set: characters, and ranges of them."""
    found = ["^"] if characters[:1] == ["^"] else []
    place = len(found)
    while place < len(characters):
        n = 3 if characters[place + 1 : place + 2] == ["-"] and place + 2 < len(characters) else 1
        found.append("-".join(_character(end, _OPERATORS) for end in characters[place : place + n : 2]))
        place += n
    return "".join(found)


def _character(written: str, by_number: str = "") -> str:
    """Rewrite one character: by number if it is in `by_number`, a control character, or ASCII and given by number."""
    if written in by_number or written < " ":
        code = ord(written)
    elif written[0] == "\\" and len(written) > 2:
        code = int(written[2:], 16)
    else:
        return written
    if code < 0x80:
        return f"\\x{code:02x}"
    return written if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)
