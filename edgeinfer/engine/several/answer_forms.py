"""What an answer says, as votes count it: the part of its text in which answers can agree.

In: a form as a text, or a function; the text of an answer. Out: a value that equals that of other texts which say the
same; None if the text says nothing of the form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable
from decimal import Decimal, InvalidOperation
from typing import Any

from edgeinfer.errors import BadSetting

Form = Callable[[str], Hashable]
MOST_ZEROS = 12
"""Zeros at the end of a whole number up to which it is written out."""
FORMS = "auto, text, number, json, json:FIELD, regex:PATTERN"
_BOX = "\\boxed{"
_SAID = re.compile(r"(?i)\banswer\s*(?:is|:|=)\s*:?\s*([^\n]+)")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")


def form_of(value: str | Form) -> Form:
    """The form that a text names: one of FORMS. Raises BadSetting.

    auto    what stands in the last \\boxed{…}, or after the last "answer is" or "answer:", as a number if it has one;
            else the last number of the text; else the text
    text    the whole text, but for case, white space and punctuation at its end
    number  the last number
    json    the whole text as JSON, whatever the order and spacing of its fields; or one field, as a.b.0
    regex   what the last match of a pattern has as its first group, or the whole match
    """
    if callable(value):
        return value
    name, colon, rest = value.partition(":")
    if name == "json" and (rest or not colon):
        return lambda text: json_value(text, rest)
    if name == "regex" and rest:
        return _matched(rest)
    plain: dict[str, Form] = {"auto": automatic, "text": plain_text, "number": last_number}
    if colon or name not in plain:
        raise BadSetting(f"the form of an answer cannot be {value!r}; there are: {FORMS}")
    return plain[name]


def plain_text(text: str) -> Hashable:
    """The text without differences of case and white space, or punctuation at its end."""
    return " ".join(text.casefold().split()).rstrip(".!\u2026 ") or None


def last_number(text: str) -> Hashable:
    """The last number in a text: equal whether it is written 1,000, 1000 or 1000.0."""
    found = _NUMBER.findall(text)
    return None if not found else _decimal(found[-1])


def _decimal(written: str) -> Hashable:
    try:
        number = Decimal(written.replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:
        return None
    plain = number.normalize() if number else Decimal(0)
    exponent = plain.as_tuple().exponent
    # 40, not 4E+1, in what people are told; equal all the same
    return plain.quantize(Decimal(1)) if isinstance(exponent, int) and 0 < exponent < MOST_ZEROS else plain


def automatic(text: str) -> Hashable:
    """What a text gives as its answer; see `form_of`."""
    said = _boxed(text)
    if said is None and (found := _SAID.findall(text)):
        said = _SENTENCE_END.split(found[-1])[0].strip(" *_`")
    if said is not None:
        number = last_number(said)
        return plain_text(said) if number is None else number
    number = last_number(text)
    return plain_text(text) if number is None else number


def _boxed(text: str) -> str | None:
    """What stands in the last \\boxed{…}, which may have braces in it."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, first = 1, start + len(_BOX)
    for at in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[first:at]
    return None


def json_value(text: str, path: str) -> Hashable:
    """A text as JSON, or a field of it, in one spelling; None where there is none."""
    try:
        value: Any = json.loads(_unfenced(text))
        for name in path.split(".") if path else ():
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _unfenced(text: str) -> str:
    """A text without the fence of a Markdown code block around it."""
    lines = text.strip().splitlines()
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].startswith("```"):
        return "\n".join(lines[1:-1])
    return text


def _matched(pattern: str) -> Form:
    try:
        compiled = re.compile(pattern)
    except re.error as reason:
        raise BadSetting(f"the pattern {pattern!r} of an answer is no regular expression: {reason}") from None

    def matched(text: str) -> Hashable:
        matches = list(compiled.finditer(text))
        if not matches:
            return None
        last = matches[-1]
        return last[1] if compiled.groups and last[1] is not None else last[0]

    return matched
