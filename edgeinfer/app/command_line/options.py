"""What a command is made of: `Command`, which its file in `app/commands` exports, its options, its standard input.

In: a function, or several under names; names of settings, or of groups of them; an argument that may be missing. Out:
the constant `COMMAND` of each file, whose name is the command's; a decorator that adds options to a command, generated
from the settings' declarations, and collects the values given; text, byte for byte. Knows no command, reads no setting.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import typer

from edgeinfer.app.command_line.misuse import flags_read
from edgeinfer.app.command_line.shell_words import setting_words
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import GROUPS, Option, declared_options, find_option, flag_of

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


GIVEN = "given"
"""The parameter of a command that is replaced by the options of settings."""
SHORT_FLAGS = {"model": "-m"}
Given = Mapping[str, object]
"""Values of settings by name, as given by a command's options: the highest precedence in `load_settings`."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


def takes_settings(*names: str, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Run]:
    """Replace a command's parameter `given` by options for settings; the command receives the given values in it.

    `names`: settings or groups of them ("load" is everything that a model is loaded with), in order; `without`:
    settings that do not concern the command. Another parameter whose type is a record is replaced by options for the
    fields of the record, which the command receives.
    """
    return lambda command: WithSettings(command, names, without)


class WithSettings:
    """A command with options of settings. Its signature is built on request, that is, when the command is run."""

    def __init__(self, command: Callable[..., None], names: tuple[str, ...], without: tuple[str, ...]) -> None:
        self._command, self._names, self._without = command, names, without
        functools.update_wrapper(self, command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))

    def __call__(self, **values: Any) -> None:
        given = {option.name: values.pop(option.name, None) for option in self._options}
        values[GIVEN] = {name: value for name, value in given.items() if value not in (None, [], ())}
        for name, record in self._records.items():
            values[name] = record(**{field.name: values.pop(field.name) for field in fields(record)})
        self._command(**values)

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(self._command).parameters.values():
            if parameter.name == GIVEN:
                parameters += map(_parameter, self._options)
            elif parameter.name in self._records:
                parameters += _field_parameters(self._records[parameter.name])
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(parameter.replace(annotation=self._hints[parameter.name], kind=kind))
        return inspect.Signature(parameters)

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {parameter.name: parameter.annotation for parameter in self.__signature__.parameters.values()}

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self._command, include_extras=True)

    @functools.cached_property
    def _records(self) -> dict[str, type[Any]]:
        return {name: hint for name, hint in self._hints.items() if is_dataclass(hint) and isinstance(hint, type)}

    @functools.cached_property
    def _options(self) -> list[Option[object]]:
        listed = [option for name in self._names for option in _options_of(name)]
        return [option for option in listed if option.name not in self._without]


def help_of(option: Option[object]) -> str:
    """Help of an option: what it does, its default, and the environment variable that sets it."""
    return f"{option.help} Default: {option.default_text}. [{option.environment_name}]"


def _options_of(name: str) -> list[Option[object]]:
    """The settings of a group, or the one setting of this name."""
    if name in GROUPS and name != "model":
        return [option for option in declared_options().values() if option.group == name]
    return [find_option(name)]


def _parameter(option: Option[object]) -> inspect.Parameter:
    """A command's parameter for a setting: None if it is not given."""
    if option.is_switch:
        kind: Any = bool | None
    else:
        kind = list[str] | None if option.is_repeatable else str | None
    annotation = Annotated[kind, _typer_option(option)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _field_parameters(record: type[Any]) -> list[inspect.Parameter]:
    """A command's parameters for the fields of a record."""
    hints, kind = get_type_hints(record, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(record)]


def _typer_option(option: Option[object]) -> Any:
    """A `typer.Option` for a setting, with its validation, help text and environment variable."""
    flag = flag_of(option.name)
    shown: dict[str, Any] = {"help": help_of(option), "show_default": False}
    if option.is_switch:
        return typer.Option(f"{flag}/--no-{flag.removeprefix('--')}", **shown)
    short = [SHORT_FLAGS[option.name]] if option.name in SHORT_FLAGS else []
    return typer.Option(
        flag,
        *short,
        metavar=option.form or None,
        autocompletion=setting_words(option.name),
        **shown,
        **_rule(option),
    )


def _rule(option: Option[object]) -> dict[str, Any]:
    """How typer parses an option: by the setting's reader. Repeatable options are validated as a whole later."""
    if option.is_repeatable:
        return {}

    def read(text: str) -> object:
        from edgeinfer.app.config_file import read_checked

        with flags_read():
            return read_checked(option.name, text, flag_of(option.name))

    return {"parser": read}


def argument_or_stdin(argument: str | None) -> str:
    """The argument if given, else all of standard input as UTF-8. Raises EdgeInferError if it is not UTF-8."""
    if argument is not None:
        return argument
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EdgeInferError(f"standard input is not UTF-8 at byte {error.start}; convert it to UTF-8 first") from None
