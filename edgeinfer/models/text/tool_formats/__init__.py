"""How families of models write that they call a function, one file for each.

In: a chat template's source. Out: a `ToolFormat`: what begins a call, what stands around it, how its object is keyed.
Which family a template belongs to is told by what it writes itself. A model whose template knows nothing of functions,
or has calls written in a form that is none of these, is told of them in words, in the form that most families were
trained on (hermes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeinfer.registry import Registry


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`trigger`: text that begins calls. Each call is an object {"name": …, `arguments_key`: {…}}.

    shape: "each": every object stands between `begin` (which begins with the trigger) and `end`; "list": one list of
    objects does; "bare": the answer is an object, or several with `separator` between them, and nothing else.
    marks: all of them are in the source of templates of this family; strange: none of these is, which have calls begin
    in the same way and go on in another.
    """

    trigger: str
    shape: Literal["each", "list", "bare"]
    begin: str
    end: str
    marks: tuple[str, ...]
    strange: tuple[str, ...] = ()
    separator: str = "\n"
    arguments_key: str = "arguments"


TOOL_FORMATS: Registry[ToolFormat] = Registry(__name__, "FORMAT", "format of calls")
FALLBACK = "hermes"


def format_of(source: str) -> tuple[str, ToolFormat] | None:
    """The format that a template is written for, by name; None where it knows of none."""
    found = [
        (name, entry)
        for name, entry in TOOL_FORMATS.entries().items()
        if all(mark in source for mark in entry.marks) and not any(mark in source for mark in entry.strange)
    ]
    return max(found, key=lambda each: sum(map(len, each[1].marks)), default=None)
