"""Operations of chat templates on values, each checked against the budget before it runs.

In: a `TemplateMeter`, a name, operands. Out: the result, or BadTemplate. Covers binary operators, methods of strings,
lists and dicts, and the filters whose result can be much larger than their input. Independent of Jinja's environment.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text.template_meter import NODE, TemplateMeter

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}
_STRING_METHODS = (
    "strip lstrip rstrip split rsplit splitlines partition rpartition upper lower title capitalize swapcase casefold "
    "startswith endswith removeprefix removesuffix find rfind index rindex count replace join format isalnum isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper"
)
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STRING_METHODS.split()),
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
}
CHANGES = frozenset({"append", "pop"})
"""Methods that change a list; templates may call them on lists that they wrote themselves."""
_FILTERS = (
    "abs batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format "
    "groupby indent int items join last length list lower map max min reject rejectattr replace reverse round safe "
    "select selectattr slice sort string sum title trim truncate unique upper urlencode wordcount"
)
FILTERS = frozenset(_FILTERS.split())
# From the right, a search may compare every character of the needle at every position.
_FROM_RIGHT = frozenset({"rfind", "rindex", "rsplit", "rpartition"})
_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_MAX_NEEDLE = 1000
_MAX_BITS = 4096
_MAX_DIGITS = 1000
_MAX_PRECISION = 100
_MAX_JSON_INDENT = 16
_REPR_GROWTH = 10
_PERCENT = r"%(?:\([^)]{0,63}\))?[-+ #0-9.]*"
_LONG_KEY = r"%\([^)]{64}"
"""A key is looked for at each %, so that a long one without an end would take the square of the pattern's length."""
_SEQUENCES = (str, list, tuple)


def binary(meter: TemplateMeter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`. Raises BadTemplate for a result beyond the budget."""
    meter.tick()
    if symbol == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        meter.allow(meter.weigh(left) + meter.weigh(right))
    elif symbol == "*" and isinstance(left, _SEQUENCES) and isinstance(right, int):
        meter.allow((meter.weigh(left) - NODE) * right)
    elif symbol == "*" and isinstance(right, _SEQUENCES) and isinstance(left, int):
        meter.allow((meter.weigh(right) - NODE) * left)
    elif symbol == "%" and isinstance(left, str):
        meter.allow(_percent_cost(meter, left, right))
    elif symbol in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if symbol == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise BadTemplate(f"the chat template asked for an integer of {bits} bits; it may use {_MAX_BITS}")
    return meter.admit(OPERATORS[symbol](left, right))


def concatenate(meter: TemplateMeter, values: Iterable[object]) -> str:
    """The texts of `values`, concatenated."""
    texts = [text(meter, value) for value in values]
    meter.allow(sum(map(len, texts)))
    return meter.admit("".join(texts))


def text(meter: TemplateMeter, value: object) -> str:
    """`value` as a template writes it."""
    meter.allow(meter.weigh(value))
    written = str(value)
    meter.charge(len(written))
    return written


def check_method(meter: TemplateMeter, owner: object, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments for method `name` of `owner`, checked.

    Raises BadTemplate for a method that templates may not call or a result beyond the budget.
    """
    kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
    if kind is None or name not in METHODS[kind]:
        raise BadTemplate(f"the chat template calls {type(owner).__name__}.{name}, which templates may not")
    meter.tick()
    if isinstance(owner, str):
        return _check_string_method(meter, owner, name, arguments)
    return arguments


def check_change(meter: TemplateMeter, owner: list[object], name: str, arguments: tuple[Any, ...]) -> None:
    """Check a change of a list. Raises BadTemplate for lists of the input, and for items that are lists themselves."""
    if not meter.owns(owner) or not all(isinstance(argument, str | int | None) for argument in arguments):
        raise BadTemplate(f"the chat template calls list.{name} on this list, which templates may not")
    meter.note_change()
    meter.allow(meter.weigh(owner) + sum(map(meter.weigh, arguments)))
    meter.charge(NODE + sum(map(meter.weigh, arguments)))


def format_cost(meter: TemplateMeter, pattern: str, arguments: object) -> int:
    """An upper bound of the size of `str.format`'s result. Raises BadTemplate for widths taken from arguments."""
    bare = pattern.replace("{{", "").replace("}}", "")
    if re.search(r"\{[^{}]*\{", bare):
        raise BadTemplate("the chat template nests fields in a format string, which templates may not")
    growth = _REPR_GROWTH if re.search(r"![ra]", bare) else 1
    return len(pattern) + _widths(pattern) + bare.count("{") * meter.weigh(arguments) * growth


def check_filter(
    meter: TemplateMeter, name: str, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """The checked input for filter `name`: its result must fit the budget."""
    meter.tick()
    for argument in (value, *arguments, *options.values()):
        meter.weigh(argument)
    check = _FILTER_CHECKS.get(name)
    return check(meter, value, arguments, options) if check is not None else value


def to_json(
    meter: TemplateMeter,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`value` as JSON, without escaping HTML, with the options that chat templates use."""
    if indent is not None and (
        indent > _MAX_JSON_INDENT if isinstance(indent, int) else len(indent) > _MAX_JSON_INDENT
    ):
        raise BadTemplate(f"the chat template asks for JSON indented by more than {_MAX_JSON_INDENT}")
    meter.weigh(value)
    for separator in separators or ():
        meter.weigh(separator)
        if len(separator) > _MAX_JSON_INDENT:
            raise BadTemplate(f"the chat template asks for JSON separators longer than {_MAX_JSON_INDENT}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, check_circular=False
    )
    chunks = []
    for chunk in encoder.iterencode(value):
        meter.charge(len(chunk))
        chunks.append(chunk)
    return meter.admit("".join(chunks))


def from_json(meter: TemplateMeter, value: object) -> object:
    """The value that a JSON text stands for. Raises BadTemplate for other texts."""
    meter.allow(meter.weigh(value))
    try:
        return meter.admit(json.loads(str(value)))
    except (ValueError, RecursionError) as error:
        raise BadTemplate(f"the chat template reads JSON from a text that is none: {str(error)[:200]}") from error


def _check_string_method(meter: TemplateMeter, owner: str, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    needle = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    if len(needle) > _MAX_NEEDLE and (name in _FROM_RIGHT or name in _STRIPS):
        raise BadTemplate(f"the chat template calls {name} with more than {_MAX_NEEDLE} characters")
    if name == "replace":
        _check_replace(meter, owner, arguments, {})
    elif name == "join" and arguments:
        items = meter.drain(arguments[0])
        meter.allow(sum(map(meter.weigh, items)) + len(items) * len(owner))
        return (items, *arguments[1:])
    return arguments


def _check_replace(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    given = dict(zip(("old", "new", "count"), arguments, strict=False)) | options
    old, new = str(given.get("old", "")), str(given.get("new", ""))
    source = text(meter, value)
    found = source.count(old)
    meter.allow(len(source) + found * max(len(new) - len(old), 0))
    return value


def _check_join(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    items = meter.drain(value)
    separator = str((*arguments, options.get("d", ""))[0])
    meter.allow(sum(map(meter.weigh, items)) + len(items) * len(separator))
    return items


def _check_indent(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    width = (*arguments, options.get("width", 4))[0]
    size = len(width) if isinstance(width, str) else max(int(width), 0)
    source = text(meter, value)
    meter.allow(len(source) + (len(source.splitlines()) + 1) * size)
    return value


def _check_count(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """For filters whose integer arguments are widths and counts: each must fit the budget."""
    for argument in (*arguments, *options.values()):
        if isinstance(argument, int):
            meter.allow(abs(argument) * 8)
    return value


def _check_format(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    meter.allow(_percent_cost(meter, str(value), options or arguments))
    return value


def _check_round(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    precision = (*arguments, options.get("precision", 0))[0]
    if isinstance(precision, int) and abs(precision) > _MAX_PRECISION:
        raise BadTemplate(f"the chat template rounds to {precision} digits; it may to {_MAX_PRECISION}")
    return value


def _check_sum(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    start = (*arguments[1:], options.get("start", 0))[0]
    if not isinstance(start, int | float):
        raise BadTemplate("the chat template sums something other than numbers")
    return value


def _check_int(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise BadTemplate(f"the chat template reads a number from more than {_MAX_DIGITS} characters")
    return value


def _check_trim(meter: TemplateMeter, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    characters = (*arguments, options.get("chars"))[0]
    if isinstance(characters, str) and len(characters) > _MAX_NEEDLE:
        raise BadTemplate(f"the chat template trims more than {_MAX_NEEDLE} kinds of characters")
    return value


def _percent_cost(meter: TemplateMeter, pattern: str, arguments: object) -> int:
    """An upper bound of the size of `pattern % arguments`. Raises BadTemplate for widths taken from arguments."""
    if re.search(_LONG_KEY, pattern):
        raise BadTemplate("the chat template has a key of more than 63 characters in a format")
    if re.search(_PERCENT + r"\*", pattern):
        raise BadTemplate("the chat template takes a width from the arguments of a format, which templates may not")
    growth = _REPR_GROWTH if re.search(_PERCENT + "[ra]", pattern) else 1
    return len(pattern) + _widths(pattern) + pattern.count("%") * meter.weigh(arguments) * growth


def _widths(pattern: str) -> int:
    """The sum of all numbers in a format string; a number too long to read counts as enormous."""
    numbers = islice(re.finditer(r"\d+", pattern), 100_000)
    return sum(int(number.group()) if len(number.group()) < 12 else 10**12 for number in numbers)


_FILTER_CHECKS: dict[str, Callable[[TemplateMeter, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    "replace": _check_replace,
    "join": _check_join,
    "indent": _check_indent,
    "center": _check_count,
    "batch": _check_count,
    "slice": _check_count,
    "format": _check_format,
    "round": _check_round,
    "sum": _check_sum,
    "int": _check_int,
    "trim": _check_trim,
}
