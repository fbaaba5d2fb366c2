"""The user's configuration file: validates and changes single settings in it, and formats values.

In: names and texts. Out: values; the file, with its comments preserved; texts of values. Knows no option by name:
`settings` defines them. The settings whose values name registry entries are checked here; only for them the registries
are listed, and no entry is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.errors import BadSetting
from edgeinfer.private_files import readable_folder
from edgeinfer.settings import Option, find_option, read_value, user_config_path
from edgeinfer.text_values import proper_text

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def read_checked(name: str, text: str, called: str = "") -> object:
    """Parse the value of a setting. Raises BadSetting, saying what would work."""
    value = read_value(name, text, called)
    if name == "device":
        from edgeinfer.backends.base import DEVICES, gpu_hint

        names = [str(part).partition(":")[0] for part in str(value).split(",")]
        _require(names, ("auto", *DEVICES.keys()), "a device", called or name, gpu_hint)
    elif name == "schedule":
        from edgeinfer.scheduling.batch.schedules import NAMES
        from edgeinfer.scheduling.placement.schedules import SCHEDULES

        _require([str(value)], tuple(dict.fromkeys((*SCHEDULES, *NAMES))), "a schedule", called or name)
    return value


def _require(
    names: list[str], known: tuple[str, ...], kind: str, called: str, hint: Callable[[str], str] = lambda _: ""
) -> None:
    for name in names:
        if name not in known:
            raise BadSetting(f"{called} needs {kind}, not {name!r}; there are: {', '.join(known)}{hint(name)}")


def write_setting(name: str, text: str | None, path: Path | None = None) -> object:
    """Write a setting to the file (None removes it) and return the value as TOML writes it. Raises BadSetting."""
    import tomlkit

    option = find_option(name)
    path = path or user_config_path()
    document = _read(path)
    try:
        written = None if text is None else plain(read_checked(option.name, proper_text(text)), is_list=option.is_list)
    except UnicodeDecodeError:
        raise BadSetting(
            f"{text} has bytes that are no UTF-8, which {path} cannot hold; rename the file, or give it on the command "
            "line"
        ) from None
    if written is None:  # removed, or unset by a word such as "auto": TOML has no null value
        document.pop(option.name, None)
    else:
        document[option.name] = written
    _write(path, tomlkit.dumps(document))
    return written


def plain(value: object, *, is_list: bool = False) -> object:
    """A value as TOML and JSON hold it. `is_list`: comma-separated text becomes a list."""
    if is_list:
        return str(value).split(",")
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{part}" for name, part in value.items())
    return list(value) if isinstance(value, tuple) else value


def written(option: Option[object], value: object) -> str:
    """A value as typed text, in the form the option's reader accepts."""
    shown = plain(value)
    if shown is None:
        return ""
    if isinstance(shown, bool):
        return "true" if shown else "false"
    if not isinstance(shown, list):
        return str(shown)
    for separator in (",", os.pathsep, " "):
        text = separator.join(map(str, shown))
        try:
            if option.read(text) == value:
                return text
        except ValueError:
            continue
    return ",".join(map(str, shown))


def _read(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}; mend it by hand first") from None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from None


def _write(path: Path, text: str) -> None:
    from edgeinfer.models.store_files import write_text

    file = path.resolve()  # keep a symbolic link to a file stored elsewhere
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise BadSetting(f"{path} is read-only; allow writing it, or set the value on the command line")
        readable_folder(file.parent)
        write_text(file, text)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror or error}") from None
