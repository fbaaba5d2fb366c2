"""Help on one screen: of a command with many options, those that most people use, a line each, and the others by name.

In: a command's options as typer holds them. Out: lines for its `--help`; everything in full is `--help-all`. A command
whose help fits on a screen shows it in full. Knows no command by name.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCREEN_LINES = 40
HELP_ALL = "--help-all"
MAIN_SETTINGS = ("model", "system", "temp", "max_tokens", "seed", "ctx", "device", "ram")
"""Settings that stand among the options of every short help that has them."""
LAST = ("--stats", "--json", "--help")
"""Options that stand last, and are never left out."""
GROUP_TITLES = (("generation", "Answers"), ("load", "Loading"), ("cluster", "Clusters"), ("", "Others"))
NAME_CELLS = 30
_SENTENCE = re.compile(r"(?<=[^.][.;])\s")


@dataclass(frozen=True, slots=True)
class _Row:
    """An option as it is shown; `group`: of its setting, "" for the command's own options."""

    flag: str
    name: str
    help: str
    group: str
    is_main: bool


def fits_screen(text: str) -> bool:
    """Whether a help text fits on a screen."""
    return text.rstrip("\n").count("\n") + 1 <= SCREEN_LINES


def short_options(params: Sequence[Any], ctx: Any, width: int, n_before: int) -> str:
    """The arguments and options of a command, in what `n_before` lines leave of a screen."""
    params = [param for param in params if not getattr(param, "hidden", False)]
    arguments = [_argument_row(param, ctx) for param in params if not param.opts[0].startswith("-")]
    rows = [_row(param, ctx) for param in params if param.opts[0].startswith("-")]
    listed = [row for row in rows if row.is_main or not row.group]
    while True:
        text = _written([row for row in arguments if row.help], listed, rows, width, ctx.command_path)
        own = [row for row in listed if not row.group and row.flag not in LAST]
        if not own or n_before + text.count("\n") <= SCREEN_LINES:
            return text
        listed.remove(own[-1])


def _written(arguments: Sequence[_Row], listed: Sequence[_Row], rows: Sequence[_Row], width: int, command: str) -> str:
    ordered = [row for row in listed if row.flag not in LAST] + [row for row in listed if row.flag in LAST]
    ordered.append(_Row(HELP_ALL, HELP_ALL, "Show every option in full", "", is_main=True))
    lines = ["", "Arguments:", *_lines(arguments, width)] if arguments else []
    lines += ["", "Options:", *_lines(ordered, width)]
    left = [row for row in rows if row not in listed]
    lines += ["", f"More options ({command} {HELP_ALL} explains them):"] if left else []
    for group, title in GROUP_TITLES:
        flags = ", ".join(row.flag for row in left if row.group == group)
        whole = textwrap.wrap(f"{title}: {flags}", width - 2, break_on_hyphens=False, subsequent_indent="  ")
        lines += [f"  {line}" for line in whole] if flags else []
    return "\n".join(lines) + "\n"


def _lines(rows: Sequence[_Row], width: int) -> list[str]:
    """Rows as lines of two columns."""
    column = max(len(row.name) for row in rows)
    return [_cut(f"  {row.name:<{column}}  {row.help}", width) for row in rows]


def _row(param: Any, ctx: Any) -> _Row:
    from edgeinfer.settings import declared_options

    option = declared_options().get(param.name or "")
    record = param.get_help_record(ctx)
    flag = next((each for each in param.opts if each.startswith("--")), param.opts[0])
    name = record[0] if record is not None else flag
    if len(name) > NAME_CELLS or " / " in name:
        name = ", ".join(sorted(param.opts, key=len))
    group = "" if option is None else option.group
    is_setting = option is not None and group != "model"
    is_main = param.name in MAIN_SETTINGS
    return _Row(flag, name, _first_sentence(record[1] if record else ""), group if is_setting else "", is_main)


def _argument_row(param: Any, ctx: Any) -> _Row:
    record = param.get_help_record(ctx)
    name = record[0].split()[0].strip("[].") if record is not None else ""
    return _Row(name, name, _first_sentence(record[1]) if record else "", "", is_main=True)


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(" ".join(text.split()), maxsplit=1)[0].rstrip(".;")


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
