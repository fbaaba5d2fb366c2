"""`edgeinfer config`: where settings are, what they are, changing them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flags_read
from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import setting_names, value_words
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.settings import Option

VALUE_WIDTH = 48


def show_path(as_json: Json = False) -> None:
    """Print the path of your configuration file."""
    from edgeinfer.settings import user_config_path

    path = user_config_path()
    echo(json.dumps({"path": str(path), "exists": path.is_file()}) if as_json else str(path))


def show(as_json: Json = False) -> None:
    """Print all settings, their values and their sources."""
    from edgeinfer.app.config_file import plain
    from edgeinfer.settings import declared_options, load_settings

    settings = load_settings()
    options = declared_options()
    if as_json:
        record = {
            name: {"value": plain(settings.value(name), is_list=option.is_list), "from": settings.origins[name]}
            for name, option in options.items()
        }
        echo(json.dumps(record))
        return
    rows = [(name, _shown(option, settings.value(name)), settings.origins[name]) for name, option in options.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        # a long value pushes the place it is from aside, and never touches it
        echo(f"{name:<{widths[0]}}  {value:<{min(widths[1], VALUE_WIDTH)}}  {origin}")


def _shown(option: Option[object], value: object) -> str:
    """A value as it is typed; what counts in place of one that is not set."""
    from edgeinfer.app.config_file import written

    if value is None or value == ():
        return option.unset
    text = written(option, value)
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def set_value(
    name: Annotated[
        str, typer.Argument(metavar="KEY", help="Name of the setting, such as temp.", autocompletion=setting_names)
    ],
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="New value; none removes it from the file.", autocompletion=value_words),
    ],
    as_json: Json = False,
) -> None:
    """Write a setting to your configuration file; comments are preserved."""
    _write(name, None if value.strip().lower() == "none" else value, as_json=as_json)


def unset(
    name: Annotated[
        str, typer.Argument(metavar="KEY", help="The setting's name, such as temp.", autocompletion=setting_names)
    ],
    as_json: Json = False,
) -> None:
    """Remove a setting from your configuration file."""
    _write(name, None, as_json=as_json)


def _write(name: str, value: str | None, *, as_json: bool) -> None:
    """Set a setting, or take it out, and say so. Raises Misuse for what it cannot be, BadSetting for the file."""
    from edgeinfer.app.config_file import read_checked, write_setting
    from edgeinfer.settings import find_option, user_config_path

    with flags_read():
        option = find_option(name)
        if value is not None:
            read_checked(option.name, value)
    path = user_config_path()
    written = write_setting(option.name, value)
    if as_json:
        echo(json.dumps({"name": option.name, "value": written, "path": str(path)}, ensure_ascii=False))
    elif written is None:
        echo(f"{option.name} is not set in {path} any more; the default is: {option.default_text}", err=True)
    else:
        echo(f"{option.name} is {json.dumps(written, ensure_ascii=False)} in {path}", err=True)
    _tell_what_counts(option, path)


def _tell_what_counts(option: Option[object], path: Path) -> None:
    """Say what goes before the file, if something does."""
    from edgeinfer.settings import load_settings

    with suppress(BadSetting):  # another setting is wrong, which is said when it is used
        origin = load_settings().origins[option.name]
        if origin not in ("default", str(path)):
            echo(f"note: {origin} sets {option.name} too, and goes before the file", err=True)


COMMAND = Command(
    help="Show and change settings.",
    subcommands={"path": show_path, "show": show, "set": set_value, "unset": unset},
)
