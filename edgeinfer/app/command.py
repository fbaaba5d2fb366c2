"""The type that each file in `app/commands` exports.

In: a function, or several under names. Out: `Command`, the constant `COMMAND` of each file there; the file's name is
the command's name. Does not know any command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Run = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: either `run`, or `subcommands` by name with a `help` for all of them.

    Its arguments and options are those of the function, declared with `typer.Argument` and `typer.Option`; its help is
    the first paragraph of the function's docstring. A command file imports nothing heavy outside the function that
    needs it.
    """

    run: Run | None = None
    help: str = ""
    subcommands: Mapping[str, Run] = field(default_factory=lambda: MappingProxyType({}))
