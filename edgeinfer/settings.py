"""Settings: each option declared once, with its default, help text and rules; read from four places.

In: overrides (the command line), the environment, ``./edgeinfer.toml`` and the user's configuration file, in that order
of precedence. Out: one frozen `Settings` and, for every value, where it came from. The TOML files are flat
(``temp = 0.2``); the environment name of an option is ``EDGEINFER_`` and its name in capitals. Deliberately does not
know what any option does, and opens nothing until `load_settings` is called.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from edgeinfer.errors import BadSetting
from edgeinfer.setting_values import MOST_DRAFTED as MOST_DRAFTED
from edgeinfer.setting_values import (
    THEMES,
    core_list,
    cost_curve,
    device_list,
    disk_space,
    key_list,
    nearest_of,
    number,
    one_of,
    path_list,
    spec_choice,
    switch,
    text,
    unset_or,
    whole,
)
from edgeinfer.setting_values import KVKind as KVKind
from edgeinfer.setting_values import Mode as Mode
from edgeinfer.setting_values import Spec as Spec

T = TypeVar("T")

ENVIRONMENT_PREFIX = "EDGEINFER_"
PROJECT_FILE = "edgeinfer.toml"
CTX_CAP = 8192  # tokens of context when `ctx` is unset and the model was trained for more
SAMPLED_REPEAT_PENALTY = 1.1  # small models fall into loops without it; greedy answers stay the plain argmax
METADATA_KEY = "option"


@dataclasses.dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One setting: how it is read, what it may be and how it is explained.

    `read` turns text, a TOML value or an already typed value into T and raises ValueError with the reason.
    """

    name: str
    group: str
    default: T
    help: str
    read: Callable[[object], T]
    words: tuple[str, ...] = ()  # the words there are, where it is one of a few; a switch has "true" and "false"

    @property
    def environment_name(self) -> str:
        """The environment variable that sets this option."""
        return ENVIRONMENT_PREFIX + self.name.upper()


def option(default: T, help_text: str, read: Callable[[object], T]) -> T:
    """A dataclass field that declares an option (typed as its value, as dataclass fields are)."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: (help_text, read)})


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model."""

    model: str | None = option(
        None, "Model: a name, a path or a source (default: the last used, else the starter).", unset_or(text)
    )
    approx: float | None = option(
        None,
        "Approximate: count activations of a magnitude below this as zero, and leave their neurons out, as 0.05; "
        "answers differ from the model's own (default: exact).",
        unset_or(number(above=0)),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How text is generated."""

    temp: float = option(0.7, "Temperature; 0 takes the most likely token.", number(at_least=0, at_most=100))
    top_p: float = option(0.95, "Keep the most likely tokens up to this total probability.", number(above=0, at_most=1))
    top_k: int = option(40, "Keep this many tokens; 0 keeps all.", whole(at_least=0))
    min_p: float = option(0.05, "Drop tokens below this share of the top probability.", number(at_least=0, at_most=1))
    repeat_penalty: float | None = option(
        None,
        f"Divide the scores of repeated tokens; 1 is off (default: {SAMPLED_REPEAT_PENALTY}, off at temperature 0).",
        unset_or(number(above=0, at_most=100)),
    )
    seed: int | None = option(None, "Seed of the random choices (default: a new one).", unset_or(whole(at_least=0)))
    max_tokens: int | None = option(None, "Stop after this many tokens.", unset_or(whole(at_least=1)))
    system: str | None = option(None, "System prompt.", lambda value: None if value is None else text(value))
    ctx: int | None = option(
        None,
        f"Context in tokens (default: what the model was trained for, {CTX_CAP} at most).",
        unset_or(whole(at_least=1)),
    )


def repeat_penalty_of(generation: GenerationSettings) -> float:
    """The repeat penalty to use: the one set, else a mild one where tokens are sampled and none where they are not."""
    if generation.repeat_penalty is not None:
        return generation.repeat_penalty
    return SAMPLED_REPEAT_PENALTY if generation.temp > 0 else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """How tokens are drafted."""

    spec: Literal["auto", "on", "off"] | int = option(
        "auto",
        "Draft tokens and check several in a pass: auto (wherever no token changes), on, off, or tokens of a pass.",
        spec_choice,
    )
    verify_cost: Mapping[int, float] | None = option(
        None, "Assume what passes cost, such as 4:1.05,8:1.15 (default: measured).", unset_or(cost_curve)
    )
    draft_from: tuple[str, ...] = option(
        (), "Draft from these text files and folders too, or from a smaller model; repeatable.", path_list
    )
    history: bool = option(
        True, "Keep what was learnt of texts on this machine, and draft from it the next time.", switch
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MachineSettings:
    """What it runs on."""

    threads: int | None = option(None, "Worker threads (default: one per usable core).", unset_or(whole(at_least=1)))
    cores: tuple[int, ...] | None = option(None, "Cores to use, such as 0,2-5.", unset_or(core_list))
    device: tuple[str, ...] = option(("auto",), "auto, or device names with commas between them.", device_list)
    schedule: str = option(
        "auto", "How several devices share a model: auto (predicted fastest, perhaps one alone), static, rows, ….", text
    )
    kv: Literal["f16", "int8"] = option(
        "f16", "How cached keys and values are kept: f16, or int8 in about half the memory.", one_of(get_args(KVKind))
    )
    mode: Literal["max", "balanced", "quiet", "battery"] = option(
        "balanced",
        "What may be used: max (everything), balanced (less when hot or on a low battery), quiet, battery.",
        one_of(get_args(Mode)),
    )
    ram: str | None = option(
        None,
        "Memory for weights, such as 3GB or 60% of what is available; the rest is read from disk in every pass "
        "(default: all there is).",
        unset_or(text),
    )
    pack: bool = option(
        True, "Write a bundle file (`edgeinfer pack`) when a model needs one because it does not fit in memory.", switch
    )
    isolate: bool = option(
        False, "Run the device in a process of its own: if it crashes, another one goes on with the text.", switch
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FaceSettings:
    """How the terminal app looks and behaves."""

    theme: str = option(
        "textual-dark", "Colours of the terminal app, such as textual-light or ansi-dark.", nearest_of(THEMES)
    )
    keys: tuple[str, ...] = option(
        (), "Other keys for commands of the terminal app, such as copy=ctrl+k; repeatable.", key_list
    )
    thinking: Literal["fold", "show", "hide"] = option(
        "fold", "What models think before they answer: fold it, show it or hide it.", one_of(("fold", "show", "hide"))
    )
    snapshots: str = option(
        "1GB", "Room on disk for what was read of chats, so that they open at once; 0 keeps nothing.", disk_space
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, in groups; `origins` says per name where the value came from."""

    model: ModelSettings
    generation: GenerationSettings
    speculation: SpeculationSettings
    machine: MachineSettings
    face: FaceSettings
    origins: Mapping[str, str]

    def value(self, name: str) -> object:
        """The value of the option called `name`. Raises BadSetting when there is none."""
        return getattr(getattr(self, find_option(name).group), name)


GROUPS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "model": ModelSettings,
        "generation": GenerationSettings,
        "speculation": SpeculationSettings,
        "machine": MachineSettings,
        "face": FaceSettings,
    }
)


def declared_options() -> Mapping[str, Option[object]]:
    """Every option by name, in the order of declaration."""
    options: dict[str, Option[object]] = {}
    for group, settings_class in GROUPS.items():
        words = _words_by_name(group)
        for field in dataclasses.fields(settings_class):
            help_text, read = field.metadata[METADATA_KEY]
            options[field.name] = Option(field.name, group, field.default, help_text, read, words[field.name])
    return options


@functools.cache
def _words_by_name(group: str) -> Mapping[str, tuple[str, ...]]:
    """The words that each option of a group is one of; none where it may be more. Reading types takes its time."""
    types = get_type_hints(GROUPS[group])
    return MappingProxyType({name: _words_of(kind) for name, kind in types.items()})


def _words_of(kind: object) -> tuple[str, ...]:
    if kind is bool:
        return ("true", "false")
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def find_option(name: str, where: str = "") -> Option[object]:
    """The option called `name` (dashes count as underscores). Raises BadSetting with the nearest names."""
    options = declared_options()
    key = name.replace("-", "_").lower()
    if key in options:
        return options[key]
    near = difflib.get_close_matches(key, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(options)}"
    raise BadSetting(f"{where + ': ' if where else ''}no setting is called {name!r}; {hint}")


def read_value(name: str, value: object, where: str = "") -> object:
    """`value` as the option `name` wants it. Raises BadSetting with the place, the value and the rule."""
    found = find_option(name, where)
    try:
        return found.read(value)
    except ValueError as reason:
        place = f"{where}: " if where else ""
        raise BadSetting(f"{place}{found.name} cannot be {value!r}: {reason}") from None


def user_config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The user's configuration file: in $EDGEINFER_HOME, else where the platform keeps configuration."""
    home = (os.environ if environ is None else environ).get("EDGEINFER_HOME")
    if home:
        return Path(home).expanduser() / "config.toml"
    import platformdirs

    return Path(platformdirs.user_config_dir("edgeinfer", appauthor=False)) / "config.toml"


def read_config(path: Path) -> dict[str, object]:
    """The validated values of one TOML file; empty when there is no such file. Raises BadSetting."""
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise BadSetting(f"{path} is not valid TOML: {reason}") from None
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}") from None
    return {find_option(name, str(path)).name: read_value(name, value, str(path)) for name, value in table.items()}


def load_settings(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_path: Path | None = None,
) -> Settings:
    """Settings by precedence: `overrides` (None = not given), environment, ./edgeinfer.toml, user file, defaults.

    Raises BadSetting for an unknown name or an impossible value, naming the place it stands in.
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
        key = find_option(name, "command line").name
        if value is not None:
            values[key], origins[key] = read_value(key, value, "command line"), "command line"
    groups = {
        group: settings_class(**{name: values[name] for name, found in options.items() if found.group == group})
        for group, settings_class in GROUPS.items()
    }
    return Settings(**groups, origins=MappingProxyType(origins))
