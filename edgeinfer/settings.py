"""Settings: each option is declared once, with its default, help text and validation, and read from four places.

In: overrides (the command line), the environment, ``./edgeinfer.toml`` and the user's configuration file, in that order
of precedence. Out: one frozen `Settings` that also records where each value came from. The TOML files are flat (``temp
= 0.2``); an option's environment variable is ``EDGEINFER_`` plus its name in capitals. Deliberately does not know what
any option does, and opens nothing until `load_settings` is called.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from edgeinfer.errors import BadFlag, BadSetting
from edgeinfer.load_options import LoadOptions as LoadOptions
from edgeinfer.setting_groups import CTX_CAP as CTX_CAP
from edgeinfer.setting_groups import ENVIRONMENT_PREFIX as ENVIRONMENT_PREFIX
from edgeinfer.setting_groups import (
    METADATA_KEY,
    SWITCH_WORDS,
    ClusterSettings,
    FaceSettings,
    GenerationSettings,
    ModelSettings,
)
from edgeinfer.setting_groups import Option as Option
from edgeinfer.setting_values import MOST_DRAFTED as MOST_DRAFTED
from edgeinfer.setting_values import KVKind as KVKind
from edgeinfer.setting_values import Mode as Mode
from edgeinfer.setting_values import Spec as Spec
from edgeinfer.text_values import user_path

PROJECT_FILE = "edgeinfer.toml"
COMMAND_LINE = "command line"
"""The origin of what was given there."""
OTHER_TABLES = ("mcp",)
"""Tables of the user's file that are no settings; `app.mcp` reads them."""
FOR_USERS_ALONE = MappingProxyType({"ray": "names computers that may run anything here"})
"""Settings that a folder's file must not have, as whoever made the folder would have a say in them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All settings, in groups. `origins` maps each name to where its value came from."""

    model: ModelSettings
    generation: GenerationSettings
    load: LoadOptions
    cluster: ClusterSettings
    face: FaceSettings
    origins: Mapping[str, str]

    def __reduce__(self) -> tuple[object, ...]:
        """Settings go to other processes by their values."""
        own = {name: self.value(name) for name in declared_options()}
        values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in own.items()}
        return _settings_of, (values, dict(self.origins))

    def value(self, name: str) -> object:
        """The value of the option called `name`. Raises BadSetting if there is none."""
        option = find_option(name)
        return getattr(getattr(self, option.group), option.field)


GROUPS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "model": ModelSettings,
        "generation": GenerationSettings,
        "load": LoadOptions,
        "cluster": ClusterSettings,
        "face": FaceSettings,
    }
)


@functools.cache
def declared_options() -> Mapping[str, Option[object]]:
    """All options by name, in order of declaration."""
    options: dict[str, Option[Any]] = {}
    for group, settings_class in GROUPS.items():
        words = _words_by_name(group)
        for field in dataclasses.fields(settings_class):
            declared = field.metadata.get(METADATA_KEY)
            if declared is None:
                continue
            name, named = declared.name or field.name, words[field.name]
            options[name] = dataclasses.replace(
                declared, name=name, group=group, field=field.name, form=declared.form or "|".join(named), words=named
            )
    return options


@functools.cache
def _words_by_name(group: str) -> Mapping[str, tuple[str, ...]]:
    """The allowed words of each option of a group; none for options that are not enumerations.

    Cached because resolving type hints is slow.
    """
    types = get_type_hints(GROUPS[group])
    return MappingProxyType({name: _words_of(kind) for name, kind in types.items()})


def _words_of(kind: object) -> tuple[str, ...]:
    if kind is bool:
        return SWITCH_WORDS
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def find_option(name: str, where: str = "") -> Option[object]:
    """The option called `name` (dashes count as underscores). Raises BadSetting with the nearest names."""
    options = declared_options()
    key = name.replace("-", "_").lower()
    if key in options:
        return options[key]
    from edgeinfer.foreign_names import OF_SETTINGS

    meant = {name: name for name in options} | {name: told for name, told in OF_SETTINGS.items() if told in options}
    near = difflib.get_close_matches(key, meant, n=1, cutoff=0.5)
    hint = f"did you mean {meant[near[0]]}?" if near else f"there are: {', '.join(options)}"
    raise BadSetting(f"{where + ': ' if where else ''}no setting is called {name!r}; {hint}")


def read_value(name: str, value: object, called: str = "", place: str = "") -> object:
    """Validate `value` for the option `name`. Raises BadSetting with what it needs and what would work.

    `called`: what the user knows the option as, such as --temp; `place`: the file that contains it.
    """
    found = find_option(name, place)
    try:
        return found.read(value)
    except ValueError as reason:
        needed, *hints = map(str, reason.args)
        where = f"{place}: " if place else ""
        said = f"{where}{called or found.name} needs {needed}, not {_as_given(value)}"
        raise BadSetting("; ".join([said, *hints])) from None


def _as_given(value: object) -> str:
    """Format a value as its source spells it: true and false in TOML spelling for files."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str | int | float) else str(value)


def flag_of(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"


def _read_flag(name: str, value: object) -> object:
    """Validate a value from the command line. Raises BadFlag."""
    try:
        return read_value(name, value, flag_of(name))
    except BadSetting as reason:
        raise BadFlag(str(reason)) from None


def user_config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The user's configuration file: in $EDGEINFER_HOME, else in the platform's configuration folder."""
    home = (os.environ if environ is None else environ).get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "config.toml"
    import platformdirs

    return Path(platformdirs.user_config_dir("edgeinfer", appauthor=False)) / "config.toml"


def read_config(path: Path) -> dict[str, object]:
    """The validated values of one TOML file; empty if the file does not exist. Raises BadSetting."""
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as reason:
        raise BadSetting(f"{path} is not valid TOML: {reason}") from None
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}") from None
    is_users = path.name != PROJECT_FILE
    for name in OTHER_TABLES:
        if table.pop(name, None) is not None and not is_users:
            raise BadSetting(
                f"{path}: [{name}] names programs to start, which a folder's file must not; "
                f"move it to {user_config_path()}"
            )
    for name, why in FOR_USERS_ALONE.items():
        if name in table and not is_users:
            raise BadSetting(f"{path}: {name} {why}, which a folder's file must not; move it to {user_config_path()}")
    return {
        find_option(name, str(path)).name: read_value(name, value, place=str(path)) for name, value in table.items()
    }


def load_settings(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_path: Path | None = None,
) -> Settings:
    """Resolve settings by precedence: `overrides` (None: not given), environment, ./edgeinfer.toml, user file, default.

    Raises BadSetting for an unknown name or an invalid value, naming where it was found.
    """
    environ = os.environ if environ is None else environ
    options = declared_options()
    values: dict[str, object] = {name: found.default for name, found in options.items()}
    origins = dict.fromkeys(options, "default")
    for path in (config_path or user_config_path(environ), (cwd or Path.cwd()) / PROJECT_FILE):
        for name, value in read_config(path).items():
            values[name], origins[name] = value, str(path)
    for name, found in options.items():
        if environ.get(found.environment_name):
            values[name] = read_value(name, environ[found.environment_name], found.environment_name)
            origins[name] = found.environment_name
    for name, value in (overrides or {}).items():
        key = find_option(name, COMMAND_LINE).name
        if value is not None:
            values[key], origins[key] = _read_flag(key, value), COMMAND_LINE
    return _settings_of(values, origins)


def _settings_of(values: Mapping[str, object], origins: Mapping[str, str]) -> Settings:
    options = declared_options()
    groups = {
        group: settings_class(**{found.field: values[name] for name, found in options.items() if found.group == group})
        for group, settings_class in GROUPS.items()
    }
    return Settings(**groups, origins=MappingProxyType(dict(origins)))


def overlaid(settings: Settings, values: Mapping[str, object], origin: str) -> Settings:
    """Settings with validated values by name in place of their own, except for those from the command line."""
    taken = {name: value for name, value in values.items() if settings.origins[name] != COMMAND_LINE}
    found = {name: settings.value(name) for name in declared_options()}
    return _settings_of({**found, **taken}, {**settings.origins, **dict.fromkeys(taken, origin)})
