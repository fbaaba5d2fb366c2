"""Schemas keep the meaning of every number, and short texts match the regular expressions they are made of."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.constrained.schemas import (
    EXACT,
    FARTHEST,
    FORMATS,
    LONGEST_PATTERN,
    LONGEST_TEXT,
    CannotBeHeld,
    forms,
    long_numbers,
    parts,
    shortest,
    with_bounds_held,
)
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.requests.constrained.test_guidance import byte_level


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


def may_be(tokenizer: Tokenizer, schema: object, text: str) -> bool:
    constraint = Guidance(tokenizer).constraint(Grammar("json", json.dumps(schema)))
    for token in tokenizer.encode(text, add_special=False):
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return constraint.allows(2)


@given(bound=st.integers(-(1 << 70), 1 << 70), key=st.sampled_from(["minimum", "exclusiveMaximum"]))
def test_bounds_are_held_and_no_wider(bound: int, key: str) -> None:
    schema = {"items": {key: bound}}
    try:
        held = with_bounds_held(schema)
    except CannotBeHeld:
        assert abs(bound) > FARTHEST
        return
    kept = held["items"][key]
    assert kept == float(kept)
    assert abs(kept) <= FARTHEST
    assert kept >= bound if key == "minimum" else kept <= bound
    assert kept == bound or abs(bound) > EXACT
    assert schema == {"items": {key: bound}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
        {"type": "number", "minimum": -1e300, "exclusiveMaximum": 1e30},
        {"type": "integer", "minimum": EXACT + 1},
        {"type": "integer", "exclusiveMaximum": -EXACT - 1},
    ],
)
def test_answers_keep_within_bounds(tokenizer: Tokenizer, schema: dict[str, float]) -> None:
    """As 64-bit programs ask for them, and such as llguidance rounds."""
    n_allowed = 0
    for number in (0, EXACT, -EXACT - 1, EXACT + 1, EXACT + 2, -EXACT - 2, 1 << 63, -(1 << 63) - 1, 9 * 10**18):
        if may_be(tokenizer, schema, str(number)):
            jsonschema.validate(number, schema)
            n_allowed += 1
    assert n_allowed


def test_bounds_that_leave_nothing_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadSetting, match="minimum 10000000000000000000 leaves only numbers of more than 64 bits"):
        may_be(tokenizer, {"type": "integer", "minimum": 10**19}, "")


@pytest.mark.parametrize("number", [EXACT + 1, 123456789.12345679, 11383180336143164326202074043385195475])
def test_numbers_that_would_be_written_as_others_are_refused(tokenizer: Tokenizer, number: float) -> None:
    for schema in ({"const": number}, {"properties": {"enum": {"enum": ["a", {"b": [number]}]}}}):
        with pytest.raises(BadSetting, match=f"it wants the number {number}, which would be written as .* as a string"):
            may_be(tokenizer, schema, "")


@pytest.mark.parametrize("value", [10**400, 10**5000, {1, 2}], ids=["beyond floats", "beyond texts", "no JSON"])
def test_what_no_answer_can_have_is_refused(tokenizer: Tokenizer, value: object) -> None:
    for schema in ({"const": value}, {"enum": [1, [value]]}):
        with pytest.raises(BadSetting, match="the schema cannot be followed: "):
            Guidance(tokenizer).kept(schema)


@pytest.mark.parametrize("number", [EXACT, EXACT + 2, (1 << 63) - 1, 10**22, 0.1, 1e-7, 123456.75, 0.30000000000000004])
def test_numbers_that_are_kept_may_be_asked_for(tokenizer: Tokenizer, number: float) -> None:
    text = f"{number:.7f}" if number == 1e-7 else str(number)
    assert may_be(tokenizer, {"const": number}, text)


def test_names_and_constants_are_no_schemas() -> None:
    schema = {
        "properties": {"const": {"maximum": 1}, "pattern": {"pattern": "a"}},
        "const": {"pattern": "no", "minimum": EXACT + 1},
        "anyOf": [{"items": [{"format": "date"}, True]}, {"patternProperties": {"b": {"enum": [{"format": "no"}]}}}],
    }
    assert forms(schema) == (["b", "a"], ["date"]) or forms(schema) == (["a", "b"], ["date"])
    assert with_bounds_held(schema) == schema
    assert long_numbers(schema) == [EXACT + 1]
    assert sum(1 for _ in parts(schema)) == 7


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("needle", 6),
        ("a*", 0),
        ("a+b|cd{3}", 2),
        ("(?:[A-Z]{3}-\\d{4})?x", 1),
        ("([a-z]{3}\\d)+X", 5),
        ("[^D]//[^D][Yf9]+", 5),
        ("\\x14[^9BLd\\d\\s]\\x05", 3),
        ("^\\S+@\\S+\\.\\S+$", 5),
        ("\\w\\W\\D\\s", 4),
        ("[^\\w\\s]", 1),
        ("[^a0 A\\-_.~\\xe9-\\uffff]", 1),
        ("[\\xe9-\\uffff]", 1),
        ("é{2,}?.", 3),
        ("(?i:needle)", 6),
    ],
)
def test_a_text_is_matched_and_short(pattern: str, length: int) -> None:
    text = shortest(pattern)
    assert text is not None
    assert re.search(pattern, text)
    assert len(text) == length


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        f"a{{{LONGEST_TEXT + 1}}}",
        "(a{99}){99}",
        "a|" * LONGEST_PATTERN,
        "(a)\\1",
        "(?=a)",
        "\\p{L}",
        "[a&&b]",
        "[[:alpha:]]",
        "[^\\d\\D]",
        "a)",
        "*a",
        "(" * 5000 + ")" * 5000,
    ],
)
def test_what_is_not_known_has_no_text(pattern: str) -> None:
    assert shortest(pattern) is None


@pytest.mark.parametrize("form", FORMATS)
def test_formats_have_texts_of_theirs(form: str) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.validate(FORMATS[form], {"format": form}, format_checker=checker)
