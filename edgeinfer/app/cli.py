"""The command line: builds the commands from `app/commands`, turns errors into one line and an exit code.

In: the arguments of the process. Out: exit codes 0 done, 1 the user's error, 2 usage, 130 interrupted. Knows no command
by name and imports nothing that computes.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import edgeinfer
from edgeinfer.app.command import Command, Run
from edgeinfer.errors import EdgeInferError
from edgeinfer.registry import Registry

COMMANDS: Registry[Command] = Registry("edgeinfer.app.commands", "COMMAND", "command")
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    try:
        build_app()(args=arguments, prog_name="edgeinfer")
    except EdgeInferError as error:
        _complain(error)
        sys.exit(1)
    finally:
        _flush()


def build_app() -> typer.Typer:
    """The command line, with every command of the registry."""
    app = _group("Run language models on this computer.")
    app.callback()(_global_options)
    for name, command in COMMANDS.entries().items():
        shown = name.replace("_", "-")
        if command.run is not None:
            app.command(shown, help=_first_paragraph(command.run))(guarded(command.run))
        else:
            group = _group(command.help)
            for part, run in command.subcommands.items():
                group.command(part, help=_first_paragraph(run))(guarded(run))
            app.add_typer(group, name=shown)
    return app


def guarded(run: Run) -> Run:
    """`run` with its errors turned into a line on stderr and an exit code."""

    @functools.wraps(run)
    def run_guarded(*arguments: Any, **options: Any) -> None:
        try:
            run(*arguments, **options)
            sys.stdout.flush()
        except EdgeInferError as error:
            _complain(error)
            raise typer.Exit(1) from None
        except (KeyboardInterrupt, typer.Abort) as stop:  # Abort: an interrupt or end of input at a question
            for note in ("interrupted", *getattr(stop, "__notes__", ())):
                typer.echo(note, err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _silence_stdout()
            raise typer.Exit(1) from None

    return run_guarded


def _group(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=True
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgeinfer {edgeinfer.__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What stands before the command; the version is printed by its callback."""


def _first_paragraph(run: Run) -> str:
    return (inspect.getdoc(run) or "").partition("\n\n")[0].replace("\n", " ")


def _complain(error: EdgeInferError) -> None:
    for line in (f"error: {error}", *getattr(error, "__notes__", ())):
        typer.echo(line, err=True)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def _silence_stdout() -> None:
    """Let the interpreter's own flush at exit go nowhere: the reader of our output has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
