"""The reference of the command line, from the commands themselves.

In: the registry of commands. Out: Markdown with a section per command: its usage line, what it does, its arguments and
its options with their defaults and environment variables. Knows no command by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from edgeinfer.app.cli import build_app

PROGRAM = "edgeinfer"
SETTING = re.compile(r"\s*\[EDGEINFER_\w+\]$")
"""The environment variable behind a setting's help; what they are called is said once for all, at the top."""
DEFAULT = re.compile(r"\s*Default: (.+?)\.?$", re.DOTALL)


def command_reference() -> str:
    """All commands, in alphabetical order, each subcommand on its own."""
    return "\n".join(line for command, path in commands() for line in section(command, path))


def commands() -> Iterator[tuple[Any, str]]:
    """Every command that can be run, with the words that call it."""
    app: Any = typer.main.get_command(build_app())
    context = app.make_context(PROGRAM, ["--help"], resilient_parsing=True)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        if not hasattr(command, "list_commands"):
            yield command, f"{PROGRAM} {name}"
            continue
        for part in command.list_commands(context):
            yield command.get_command(context, part), f"{PROGRAM} {name} {part}"


def section(command: Any, path: str) -> Iterator[str]:
    """Lines of a command's section."""
    context = command.context_class(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield from (f"## {path.removeprefix(PROGRAM)[1:]}", "", f"`{usage}`", "", plain(command.help or ""), "")
    shown = [parameter for parameter in command.get_params(context) if not getattr(parameter, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option" and "--help" not in each.opts]
    if arguments:
        yield from ("| argument | |", "|---|---|")
        yield from (f"| {cell((each.metavar or each.name).upper())} | {plain(each.help or '')} |" for each in arguments)
        yield ""
    if options:
        yield from ("| option | | default |", "|---|---|---|")
        yield from (row(each) for each in options)
        yield ""


def row(option: Any) -> str:
    """A table row for an option."""
    text = option.help or ""
    text = SETTING.sub("", text)
    default = DEFAULT.search(text)
    text = DEFAULT.sub("", text)
    names = ", ".join(f"`{name}`" for name in sorted([*option.opts, *option.secondary_opts], key=order_of(option)))
    form = f" {cell(option.metavar)}" if option.metavar else ""
    usual = plain(default[1]) if default else shown_default(option.default)
    return f"| {names}{form} | {plain(text)} | {usual} |"


def order_of(option: Any) -> Any:
    """A short name first, then the others as they are declared."""
    declared = [*option.opts, *option.secondary_opts]
    return lambda name: (name.startswith("--"), declared.index(name))


def shown_default(value: object) -> str:
    """The default of an option that is no setting, as far as it says something."""
    return cell(str(value)) if isinstance(value, str | int | float) and value not in ("", False, True) else ""


def cell(text: str) -> str:
    """Code in a table cell."""
    return f"`{text}`"


def plain(text: str) -> str:
    """Help text in one line of Markdown, with nothing in it taken for markup."""
    text = re.sub(r"([\\`*_\[\]{}#])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
