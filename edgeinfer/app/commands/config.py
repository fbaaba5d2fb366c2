"""`edgeinfer config`: where settings are, what they are, changing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command import Command
from edgeinfer.app.options import Json
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def show_path(as_json: Json = False) -> None:
    """Print the path of your configuration file."""
    from edgeinfer.settings import user_config_path

    path = user_config_path()
    typer.echo(json.dumps({"path": str(path), "exists": path.is_file()}) if as_json else str(path))


def show(as_json: Json = False) -> None:
    """Print every setting, its value and where it comes from."""
    from edgeinfer.settings import declared_options, load_settings

    settings = load_settings()
    rows = [(name, _plain(settings.value(name)), settings.origins[name]) for name in declared_options()]
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
    import tomlkit

    from edgeinfer.settings import find_option, read_value, user_config_path

    option = find_option(name)
    path = user_config_path()
    document = _read_document(path)
    unset = value.strip().lower() == "none"
    if unset:
        document.pop(option.name, None)
    else:
        document[option.name] = _plain(read_value(option.name, value))
    _write_document(path, tomlkit.dumps(document))
    written = None if unset else _plain(read_value(option.name, value))
    if as_json:
        typer.echo(json.dumps({"name": option.name, "value": written, "path": str(path)}, ensure_ascii=False))
        return
    typer.echo(f"{option.name} is {'unset' if unset else json.dumps(written, ensure_ascii=False)} in {path}", err=True)


def _plain(value: object) -> object:
    """A value as TOML and JSON have it."""
    return list(value) if isinstance(value, tuple) else value


def _read_document(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}; mend it by hand first") from None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from None


def _write_document(path: Path, text: str) -> None:
    from edgeinfer.models.manifest import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from None


COMMAND = Command(
    help="Where settings are, what they are, changing them.",
    subcommands={"path": show_path, "show": show, "set": set_value},
)
