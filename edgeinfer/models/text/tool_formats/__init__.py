"""How model families write function calls, one file per family.

In: a chat template's source. Out: a `ToolFormat`: what begins a call, what surrounds it, the keys of its object. The
family is recognised by what the template itself writes. If the template does not support functions, or writes calls in
a form that is none of these, the functions are described to the model in words, in the form most families were trained
on (hermes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgeinfer.registry import Registry

Parameters = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the arguments of functions, by the functions' names."""
ReadCalls = Callable[[str, Parameters], list[tuple[str, dict[str, Any]]]]
"""Reads names and arguments in the text between `trigger` and `end`. Raises ValueError if it has no calls."""
WriteCalls = Callable[[Sequence[tuple[str, object]]], str]
"""Writes names and arguments as the text between `begin` and `end`."""


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """How calls in a block are written, for grammars that enforce them.

    A call is enclosed by `before` and `after`, all of them by `begin` and `end`, which are the format's unless given,
    with `separator` between them; None: there is only one. each: every call is in a block of its own. argument: what
    encloses each argument, with `apart` between them; None: the arguments are a JSON object. texts: how arguments that
    are texts are written: as they are ("plain"), as JSON ("JSON"), or between two of the mark given.

    {name} stands for a name, {number} for digits, {id} for letters and digits, {line} for a line end that may be left
    out, {is_text} and {type} for what the value of an argument is.
    """

    before: str
    after: str = ""
    argument: tuple[str, str] | None = None
    apart: str = ""
    separator: str | None = ""
    begin: str | None = None
    end: str | None = None
    each: bool = False
    texts: str = "plain"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`trigger`: text that begins calls. Each call is an object {`name_key`: …, `arguments_key`: {…}}.

    shape: "each": every object is enclosed by `begin` (which begins with the trigger) and `end`; "list": a single list
    of objects is enclosed; "bare": the answer is an object, or several with `separator` between them, and nothing else;
    "block": calls that are no such objects, which `read` reads, up to `end`, or to the end of the answer if that is "",
    and `write` writes for templates that do not; `written` is for grammars, and None if they cannot be enforced.
    call_end: in a block, the end of each call, without which it may lack arguments; None: its syntax shows its end.
    lead: what comes before calls, beside thoughts. as_python: the answer may also be a list of calls as in Python, and
    nothing else: [f(a=1)].
    marks: texts that all occur in the templates of this family; strange: texts that occur in none of them, but in
    templates whose calls begin in the same way and continue differently.
    """

    trigger: str
    shape: Literal["each", "list", "bare", "block"]
    begin: str
    end: str
    marks: tuple[str, ...]
    strange: tuple[str, ...] = ()
    separator: str = "\n"
    arguments_key: str = "arguments"
    name_key: str = "name"
    read: ReadCalls | None = None
    write: WriteCalls | None = None
    written: WrittenCalls | None = None
    call_end: str | None = None
    as_python: bool = False
    lead: str = ""


TOOL_FORMATS: Registry[ToolFormat] = Registry(__name__, "FORMAT", "format of calls", skip=("values",))
FALLBACK = "hermes"


def format_of(source: str) -> tuple[str, ToolFormat] | None:
    """The format that a template is written for, by name; None if it has none of them."""
    found = [
        (name, entry)
        for name, entry in TOOL_FORMATS.entries().items()
        if all(mark in source for mark in entry.marks) and not any(mark in source for mark in entry.strange)
    ]
    return max(found, key=lambda each: sum(map(len, each[1].marks)), default=None)
