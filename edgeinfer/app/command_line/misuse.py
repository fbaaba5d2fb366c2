"""Explains what is wrong with a command line in one line that says what would work: unknown commands and options.

In: a command line that typer cannot parse. Out: `Misuse`, which ends the process with exit code 2; the classes of
commands and groups that raise it. Knows no command by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from edgeinfer.app.command_line.parameters import take_texts
from edgeinfer.app.command_line.short_help import HELP_ALL, fits_screen, short_options
from edgeinfer.app.plain_text import harmless
from edgeinfer.errors import BadSetting, UnknownKey

if TYPE_CHECKING:
    from edgeinfer.settings import Option

HELP_NAMES = ("--help", "-h")
NO_SUCH_OPTION = "NoSuchOption"
"""Name of typer's error class, which typer does not export."""
_NEGATIVE_NUMBER = re.compile(r"-\d[\d.]*")
OTHER_WORDS = MappingProxyType({"help": "--help", "version": "--version", "list": "ls", "ask": "run"})
"""What other programs call the same things."""


class Misuse(typer.BadParameter):
    """An invalid command line; the message says what would work."""

    def format_message(self) -> str:
        return self.message

    def show(self, file: IO[Any] | None = None) -> None:
        typer.echo(harmless(f"error: {self.message}"), file=file, err=file is None)


@contextmanager
def flags_read() -> Iterator[None]:
    """Inside this context options that are not settings are parsed: an invalid value raises Misuse."""
    try:
        yield
    except (BadSetting, UnknownKey) as reason:
        raise Misuse(str(reason)) from None


def flag_bytes(text: str) -> int:
    """Bytes of an option that is a size. Raises Misuse."""
    from edgeinfer.text_values import size_in_bytes

    with flags_read():
        return size_in_bytes(text, 0)


class CommandGroup(TyperGroup):
    """A group of commands. For an unknown name, the error suggests the nearest one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not self.has(ctx, name) and not name.startswith("-") and not ctx.resilient_parsing:
            raise Misuse(f"{ctx.command_path} {name}: no such command; {self._hint(ctx, name)}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def has(self, ctx: Any, name: str) -> bool:
        """Whether there is a command of this name."""
        return self.get_command(ctx, name) is not None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return parsed(super().parse_args, self, ctx, args)

    def _hint(self, ctx: Any, name: str) -> str:
        if any(c.isspace() for c in name) and ctx.parent is None:
            return f"{ctx.command_path} run asks a question"
        near = OTHER_WORDS.get(name) if ctx.parent is None else None
        near = near or nearest(name, self.list_commands(ctx))
        return f"did you mean {near}?" if near else f"{ctx.command_path} --help lists them"


class Line(TyperCommand):
    """A command. For an unknown option, the error suggests the nearest one. Its help fits on a screen."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if HELP_ALL in args[: args.index("--") if "--" in args else None] and not ctx.resilient_parsing:
            typer.echo(self._help_with(ctx, super().format_options))
            ctx.exit()
        return parsed(super().parse_args, self, ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in full if the whole help fits on a screen, else in short."""
        if fits_screen(self._help_with(ctx, super().format_options)):
            super().format_options(ctx, formatter)
        else:
            before = formatter.getvalue()
            formatter.write(short_options(self.get_params(ctx), ctx, formatter.width, before.count("\n")))

    def _help_with(self, ctx: Any, format_options: Any) -> str:
        """The help, with options as `format_options` writes them."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        format_options(ctx, formatter)
        return str(formatter.getvalue()).rstrip("\n")


def parsed(parse: Any, command: Any, ctx: Any, args: list[str]) -> Any:
    """Parse a command line with `parse`. A negative number at the end is not taken for an option. Raises Misuse."""
    args = with_bare_values(args)
    given = list(args)  # parsing removes words
    take_texts(command.get_params(ctx))
    try:
        return parse(ctx, args)
    except Misuse:
        raise
    except Exception as error:
        if type(error).__name__ == NO_SUCH_OPTION:
            if _NEGATIVE_NUMBER.fullmatch(given[-1]) and "--" not in given:
                return parsed(parse, command, ctx, [*given[:-1], "--", given[-1]])
            raise Misuse(unknown_option(str(getattr(error, "option_name", "")), command, ctx), ctx=ctx) from None
        if (told := wrong_number(error)) is not None:
            raise Misuse(told, ctx=ctx) from None
        raise


def with_bare_values(args: list[str]) -> list[str]:
    """A command line where flags of settings that may stand without a value have theirs.

    The next word is the value only if it can be one: `--ray FILE` says nothing of an address.
    """
    if not any(word.startswith("--") for word in args):
        return args
    from edgeinfer.settings import declared_options, flag_of

    bare = {flag_of(option.name): option for option in declared_options().values() if option.bare}
    found: list[str] = []
    for number, word in enumerate(args):
        found.append(word)
        if word == "--":
            return [*found, *args[number + 1 :]]
        if word in bare and not _can_be_value(bare[word], args[number + 1 : number + 2]):
            found[-1] = f"{word}={bare[word].bare}"
    return found


def _can_be_value(option: Option[object], words: list[str]) -> bool:
    """Whether the word behind a flag, if there is one, can be its value."""
    try:
        return bool(words) and option.read(words[0]) is not None
    except ValueError:
        return False


def wrong_number(error: Exception) -> str | None:
    """The message for an option, not a setting, whose value is not the number it needs; None for other errors."""
    option: Any = getattr(error, "param", None)
    found: Any = getattr(error.__cause__, "errors", None)
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if kind not in (int, float) or found is None:
        return None
    limits = option.type_descriptor.parameter_info
    needed = "a whole number" if kind is int else "a number"
    if limits.min is not None and limits.max is not None:
        needed += f" from {limits.min} to {limits.max}"
    elif limits.min is not None:
        needed += f" from {limits.min} up"
    return f"{option.opts[0]} needs {needed}, not {str(found()[0]['input'])!r}"


def unknown_option(name: str, command: Any, ctx: Any) -> str:
    """The message for an option that a command does not have."""
    names = [option for parameter in command.get_params(ctx) for option in parameter.opts + parameter.secondary_opts]
    near = nearest(name, [option for option in names if option.startswith("--")])
    hint = f"did you mean {near}?" if near else f"{ctx.command_path} --help lists them"
    takes_words = any(parameter.nargs == -1 for parameter in command.params)
    words = " Words of a question that begin with - stand after --, or in quotes with others." if takes_words else ""
    return f"{ctx.command_path}: no option {name}; {hint}{words}"


def nearest(name: str, names: list[str]) -> str | None:
    """The most similar name, if there is one."""
    found = difflib.get_close_matches(name.lower(), names, n=1)
    return found[0] if found else None
