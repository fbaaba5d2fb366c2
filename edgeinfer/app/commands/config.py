"""`edgeinfer config`: where settings are, what they are, changing them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edgeinfer.app.command import Command
from edgeinfer.app.options import Json


def show_path(as_json: Json = False) -> None:
    """Print the path of your configuration file."""
    from edgeinfer.settings import user_config_path

    path = user_config_path()
    typer.echo(json.dumps({"path": str(path), "exists": path.is_file()}) if as_json else str(path))


def show(as_json: Json = False) -> None:
    """Print every setting, its value and where it comes from."""
    from edgeinfer.app.config_file import plain
    from edgeinfer.settings import declared_options, load_settings

    settings = load_settings()
    rows = [(name, plain(settings.value(name)), settings.origins[name]) for name in declared_options()]
    if as_json:
        typer.echo(json.dumps({name: {"value": value, "from": origin} for name, value, origin in rows}))
        return
    for name, value, origin in rows:
        written = "(unset)" if value is None else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{name:<16}{written:<24}{origin}")


def set_value(
    name: Annotated[str, typer.Argument(help="The setting's name, such as temp.")],
    value: Annotated[str, typer.Argument(help="Its value; none takes it out of the file.")],
    as_json: Json = False,
) -> None:
    """Write a setting into your configuration file, keeping its comments."""
    from edgeinfer.app.config_file import write_setting
    from edgeinfer.settings import find_option, user_config_path

    option, path = find_option(name), user_config_path()
    unset = value.strip().lower() == "none"
    written = write_setting(option.name, None if unset else value)
    if as_json:
        typer.echo(json.dumps({"name": option.name, "value": written, "path": str(path)}, ensure_ascii=False))
        return
    typer.echo(f"{option.name} is {'unset' if unset else json.dumps(written, ensure_ascii=False)} in {path}", err=True)


COMMAND = Command(
    help="Where settings are, what they are, changing them.",
    subcommands={"path": show_path, "show": show, "set": set_value},
)
