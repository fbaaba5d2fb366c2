"""Short texts are matched by the regular expressions they are made of, as far as these are known."""

from __future__ import annotations

import re

import jsonschema
import pytest

from edgeinfer.engine.requests.constrained.short_texts import FORMATS, LONGEST_PATTERN, LONGEST_TEXT, shortest


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
