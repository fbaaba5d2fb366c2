"""What is wrong with a value of a request, in words of JSON: pydantic's own ones speak of dictionaries and parsing.

In: pydantic's failures, of which a value that may be of several kinds has one for each. Out: the parameter that is
wrong, and words such as "stop must be a string or a list".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_KIND = re.compile(r"(?:str|int|float|bool)$|(?:constrained|function|lax)-|(?:list|dict|literal|nullable)\[|[A-Z]\w*$")
"""What pydantic adds to the place of a value that may be of several kinds: which of them it was tried as."""
_ONE = re.compile(r"\b1 (item|character)s$")
_TYPES = {
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_type": "a string",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "literal_error": "{expected}",
}
_LIMITS = {
    "missing": "is missing",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "string_unicode": "has half of a surrogate pair, which is no Unicode text",
    "extra_forbidden": "is unknown",
    "value_error": "is wrong: {error}",
}
Failure = Mapping[str, Any]


def what_is_wrong(failures: Sequence[Failure]) -> tuple[str, str]:
    """The parameter, "" for the whole body, and what is wrong with it or with a part of it. `failures`: one or more."""
    first = _place(failures[0])
    within = [each for each in failures if _place(each)[: len(first)] == first]
    deepest = max(within, key=lambda each: len(_place(each)))  # the kind that fits furthest is the one that was meant
    place = _place(deepest)
    same = [each for each in within if _place(each) == place]
    of_a_kind = next((each for each in same if each["type"] not in _TYPES), None)  # it is of one of the kinds
    types = dict.fromkeys(_filled(_TYPES, each) for each in same)
    wrong = f"must be {' or '.join(types)}" if of_a_kind is None else _limit(of_a_kind)
    return ".".join(first), f"{'.'.join(place) or 'the body'} {wrong}"


def _place(failure: Failure) -> tuple[str, ...]:
    return tuple(str(part) for part in failure["loc"] if not _KIND.match(str(part)))


def _limit(failure: Failure) -> str:
    return _ONE.sub(r"1 \1", _filled(_LIMITS, failure)) or f"is wrong: {failure['msg']}"


def _filled(words: Mapping[str, str], failure: Failure) -> str:
    return words.get(failure["type"], "").format_map(failure.get("ctx", {}))
