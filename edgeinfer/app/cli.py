"""The command line: builds the commands from `app/commands`, and turns errors into one line and an exit code.

In: the arguments of the process. Out: exit codes 0 done, 1 user error, 2 usage, 130 interrupted. Knows no command by
name and imports nothing that computes.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import edgeinfer
from edgeinfer.app.command_line.misuse import HELP_NAMES, CommandGroup, Line
from edgeinfer.app.command_line.options import Command, Run
from edgeinfer.app.command_line.shell_words import joined_at_colons
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadFlag, EdgeInferError
from edgeinfer.interrupts import INTERRUPTED, interrupt_commands
from edgeinfer.registry import Registry

USAGE = 2
WIDTH: dict[str, Any] = {"max_content_width": 100}
"""Help is as wide as the terminal, up to this."""
COMMANDS: Registry[Command] = Registry("edgeinfer.app.commands", "COMMAND", "command")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    try:
        with joined_at_colons(os.environ):
            build_app()(args=arguments, prog_name="edgeinfer")
    except EdgeInferError as error:
        _complain(error)
        sys.exit(1)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # for example, the reader of --help left before the end
            left.code = 0
        raise
    finally:
        _flush()


class Commands(CommandGroup):
    """The commands of the registry. Each is built only when it is run, as a command line needs just one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [key.replace("_", "-") for key in sorted(COMMANDS.keys())]

    def has(self, ctx: Any, name: str) -> bool:
        return "_" not in name and name.replace("-", "_") in COMMANDS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return built(cmd_name, COMMANDS.get(cmd_name.replace("-", "_"))) if self.has(ctx, cmd_name) else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first sentence of each, without building any."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))
        rows = [(name, _help_line(COMMANDS.get(name.replace("-", "_")), width)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def build_app() -> typer.Typer:
    """The command line, with all commands of the registry."""
    app = _group("Run language models on this computer.", Commands)
    app.callback()(_global_options)
    return app


def built(name: str, command: Command) -> Any:
    """The typer command for a registry entry."""
    if command.run is not None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name, cls=Line, help=_first_paragraph(command.run), context_settings=WIDTH)(guarded(command.run))
    else:
        app = _group(command.help, CommandGroup)
        for part, run in command.subcommands.items():
            app.command(part, cls=Line, help=_first_paragraph(run), context_settings=WIDTH)(guarded(run))
    found = typer.main.get_command(app)
    found.name = name
    return found


def guarded(run: Run) -> Run:
    """Wrap `run` so that its errors become a line on stderr and an exit code."""

    @functools.wraps(run)
    def run_guarded(*arguments: Any, **options: Any) -> None:
        interrupt_commands()
        try:
            run(*arguments, **options)
            sys.stdout.flush()
        except EdgeInferError as error:
            _complain(error)
            raise typer.Exit(USAGE if isinstance(error, BadFlag) else 1) from None
        except (KeyboardInterrupt, typer.Abort) as stop:  # Abort: an interrupt or end of input at a question
            for note in ("interrupted", *getattr(stop, "__notes__", ())):
                echo(note, err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            if not _reader_left():
                raise
            _silence_stdout()
            raise typer.Exit(0) from None

    return run_guarded


def _group(help_text: str, kind: type[CommandGroup]) -> typer.Typer:
    return typer.Typer(
        cls=kind,
        help=help_text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=kind is Commands,
        context_settings={"help_option_names": list(HELP_NAMES)},
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"edgeinfer {edgeinfer.__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What stands before the command; the version is printed by its callback."""


def _help_line(command: Command, width: int) -> str:
    """A command's summary, in at most `width` characters."""
    text = command.help if command.run is None else _first_paragraph(command.run)
    return TyperCommand(None, help=text).get_short_help_str(width)


def _first_paragraph(run: Run) -> str:
    return (inspect.getdoc(run) or "").partition("\n\n")[0].replace("\n", " ")


def _complain(error: EdgeInferError) -> None:
    for line in (f"error: {error}", *getattr(error, "__notes__", ())):
        echo(line, err=True)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def _reader_left() -> bool:
    """Whether the reader of standard output has left; otherwise another pipe broke."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def _silence_stdout() -> None:
    """Send the interpreter's own flush at exit to the null device: the reader of our output has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
