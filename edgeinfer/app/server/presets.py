"""Presets: models under names of their own, with how each is loaded and answers, from one TOML file.

In: a file with a table for each model, [defaults] for all, and `default`, the name of the model for requests that name
none, or an INI file of llama-server's; the settings of the command line, which come first. Out: `Presets`. A mistake is
told with its line and table. Opens no model, and pulls none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from pydantic import TypeAdapter, ValidationError

from edgeinfer.app.opening.loading import answer_options, check_template
from edgeinfer.app.server.llama_presets import tables_of
from edgeinfer.app.server.ollama_schemas import KeepAlive
from edgeinfer.app.server.ollama_wire import kept_s
from edgeinfer.errors import BadSetting, EdgeInferError, ModelNotFound
from edgeinfer.models.store import LocalModel, ModelStore
from edgeinfer.settings import Settings, declared_options, find_option, overlaid, read_value

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

DEFAULTS, DEFAULT = "defaults", "default"
"""The table for all models, and the key of the default model's name."""
SHARED_KEYS = ("keep_alive", "load_on_startup", "hides")
OWN_KEYS = ("model", "aliases", *SHARED_KEYS)
"""Keys of a table that are no settings."""
GROUPS = ("generation", "load")
LEFT_OUT = ("system",)
"""Settings that a server does not have: clients send their own."""
KEEP_ALIVE = TypeAdapter(KeepAlive)
Hides = Literal["file", "all", "none"]
"""Which models of the store are not listed beside a preset: its own file, those that it drafts from too, or none."""
INI = ".ini"


@dataclass(frozen=True, slots=True)
class Preset:
    """A model that is called as its table is.

    `settings`: how it is loaded and answers. `keep_s`: seconds without use after which it is closed (None: never); it
    counts if `has_keep_s`. `opens_at_start`: None if the table does not say. `hidden`: files that are not listed beside
    it.
    """

    model: LocalModel
    settings: Settings
    aliases: tuple[str, ...] = ()
    keep_s: float | None = None
    has_keep_s: bool = False
    opens_at_start: bool | None = None
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Presets:
    """All presets by name, one at least. `settings`: for models without one. `default`: the default model's name."""

    settings: Settings
    by_name: Mapping[str, Preset]
    default: str

    def of(self, model: LocalModel) -> Preset | None:
        """The preset that a model has its name from."""
        found = self.by_name.get(model.name)
        return found if found is not None and found.model.path == model.path else None

    def settings_of(self, model: LocalModel) -> Settings:
        """How a model is loaded."""
        preset = self.of(model)
        return self.settings if preset is None else preset.settings

    def defaults_of(self, model: LocalModel) -> Options:
        """How a model answers where a request does not say."""
        return given_options(self.settings_of(model))


def given_options(settings: Settings) -> Options:
    """The answer options that settings give; what is unset is left to the model's author."""
    return {name: value for name, value in answer_options(settings).items() if value is not None}  # type: ignore[return-value]


def read_presets(path: Path, settings: Settings) -> Presets:
    """Read a file of presets over `settings`. Raises BadSetting, with the line and the table of the mistake."""
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        tables, text = tables_of(text, path) if path.suffix.lower() == INI else (tomllib.loads(text), text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise BadSetting(f"{path} is not valid TOML: {reason}") from None
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}") from None
    return _Reader(path, text, settings).read(tables)


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    text: str
    settings: Settings

    def read(self, tables: dict[str, object]) -> Presets:
        default = tables.pop(DEFAULT, None)
        if isinstance(default, dict):
            self._refuse(DEFAULT, None, f"the table for all models is [{DEFAULTS}]; a model needs another name")
        common = self._table(DEFAULTS, tables.pop(DEFAULTS, {}))
        for key, table in tables.items():
            if not isinstance(table, dict):
                self._refuse(None, key, f"{key} belongs into a table: [{DEFAULTS}], or one with the name of a model")
        shared = overlaid(self.settings, self._values(DEFAULTS, common), str(self.path))
        shared_keys = {key: value for key, value in common.items() if key in OWN_KEYS}
        by_name = {
            name: self._preset(name, {**shared_keys, **self._table(name, record)}, shared)
            for name, record in tables.items()
        }
        if not by_name:
            raise BadSetting(f'{self.path} has no model; add a table such as ["small"] with model = "NAME"')
        self._check_names(by_name)
        if default is None:
            default = next(iter(by_name))
        if default not in by_name:
            self._refuse(
                None,
                DEFAULT,
                f"default names {default!r}, which is none of its tables; there are: {', '.join(by_name)}",
            )
        return Presets(shared, MappingProxyType(by_name), str(default))

    def _table(self, name: str, record: object) -> dict[str, object]:
        """A table whose keys are known. Raises BadSetting."""
        if not isinstance(record, dict):
            self._refuse(None, name, f"{name} is a table")
        if not name.strip():
            self._refuse(name, None, "a model needs a name")
        known = [key for key, option in declared_options().items() if option.group in GROUPS and key not in LEFT_OUT]
        known += SHARED_KEYS if name == DEFAULTS else OWN_KEYS
        for key, value in record.items():
            if isinstance(value, dict):
                self._refuse(name, key, f'a name with a dot needs quotes: ["{name}.{key}"]')
            if key.replace("-", "_") not in known:
                near = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
                self._refuse(name, key, f"no setting is called {key}; {hint}")
        return {key.replace("-", "_"): value for key, value in record.items()}

    def _values(self, name: str, table: Mapping[str, object]) -> dict[str, object]:
        """The settings in a table, validated."""
        values = dict[str, object]()
        for key, value in table.items():
            if key in OWN_KEYS:
                continue
            if key == "draft_from" and isinstance(value, list):
                value = [self._draft(name, part) if isinstance(part, str) else part for part in value]
            elif key == "small_model" and isinstance(value, str):
                value = self._draft(name, value, key)
            elif key == "lora" and isinstance(value, list):
                value = [self._placed(part) if isinstance(part, str) else part for part in value]
            elif key in ("lora", "draft_from", "chat_template_file", "mmproj") and isinstance(value, str):
                value = self._placed(value)
            try:
                values[find_option(key).name] = read_value(key, value)
            except BadSetting as reason:
                self._refuse(name, key, str(reason))
        return values

    def _preset(self, name: str, table: Mapping[str, object], shared: Settings) -> Preset:
        settings = overlaid(shared, self._values(name, table), str(self.path))
        for adapter in settings.load.adapters:
            if not Path(adapter.path).expanduser().is_file():
                self._refuse(name, "lora", f"lora: there is no file {adapter.path}")
        try:
            check_template(settings.load)
        except EdgeInferError as reason:
            self._refuse(name, "chat_template" if settings.load.chat_template else "chat_template_file", f"{reason}")
        model = replace(self._model(name, table.get("model")), name=name)
        starts = table.get("load_on_startup")
        if starts is not None and not isinstance(starts, bool):
            self._refuse(name, "load_on_startup", f"load_on_startup needs true or false, not {starts!r}")
        keep = table.get("keep_alive")
        return Preset(
            model,
            settings,
            self._aliases(name, table.get("aliases", [])),
            None if keep is None else self._seconds(name, keep),
            keep is not None,
            starts,
            self._hidden(name, table.get("hides", "file"), model, settings),
        )

    def _hidden(self, name: str, hides: object, model: LocalModel, settings: Settings) -> tuple[Path, ...]:
        """The files of models that are not listed beside a preset. Raises BadSetting."""
        if hides not in get_args(Hides):
            self._refuse(name, "hides", f"hides needs {', '.join(get_args(Hides))}, not {hides!r}")
        load = settings.load
        small = () if load.small_model is None else (load.small_model,)
        beside = map(Path, (*load.draft_from, *small) if hides == "all" else ())
        return () if hides == "none" else (model.path, *beside)

    def _model(self, name: str, wanted: object) -> LocalModel:
        """The file of a model. Raises BadSetting if it is not on this machine."""
        if wanted is None:
            wanted = name
        if not isinstance(wanted, str) or not wanted.strip():
            self._refuse(name, "model", f"model needs a name, path or source of a model, not {wanted!r}")
        try:
            return ModelStore().find(self._placed(wanted))
        except (ModelNotFound, OSError, ValueError) as reason:
            self._refuse(name, "model", f"model: {reason}")

    def _draft(self, name: str, wanted: str, key: str = "draft_from") -> str:
        """The path of what is drafted from, or of the small model, by its name or source too. Raises BadSetting."""
        placed = self._placed(wanted)
        if Path(placed).expanduser().exists():
            return placed
        try:
            return str(ModelStore().find(placed).path)
        except (ModelNotFound, OSError, ValueError) as reason:
            self._refuse(name, key, f"{key}: {reason}")

    def _aliases(self, name: str, value: object) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) and part.strip() for part in parts):
            self._refuse(name, "aliases", f'aliases needs a list of names, such as ["gpt-4o-mini"], not {value!r}')
        return tuple(part.strip() for part in parts)

    def _seconds(self, name: str, value: object) -> float | None:
        try:
            return kept_s(KEEP_ALIVE.validate_python(value))
        except ValidationError:
            self._refuse(
                name, "keep_alive", f'keep_alive needs seconds, or a time such as "10m" (-1: for good), not {value!r}'
            )

    def _check_names(self, by_name: Mapping[str, Preset]) -> None:
        """Raises BadSetting if a name means two models."""
        owners = {name.casefold(): name for name in by_name}
        if len(owners) < len(by_name):
            raise BadSetting(f"{self.path}: two tables differ only in capitals; names of models do not")
        for name, preset in by_name.items():
            for alias in preset.aliases:
                owner = owners.setdefault(alias.casefold(), name)
                if owner != name:
                    self._refuse(name, "aliases", f"the alias {alias!r} means [{owner}] already")

    def _placed(self, text: str) -> str:
        """A path from the file's own folder, where there is such a file; otherwise the text."""
        for whole in (text, text.rpartition(":")[0]):
            if whole and not Path(whole).is_absolute() and (self.path.parent / whole).exists():
                return str((self.path.parent / text).absolute())
        return text

    def _refuse(self, table: str | None, key: str | None, said: str) -> NoReturn:
        """Raise BadSetting with the place of a mistake."""
        line = self._line(table, key)
        place = f"{self.path}{'' if line is None else f', line {line}'}{'' if table is None else f', [{table}]'}"
        raise BadSetting(f"{place}: {said}")

    def _lines(self) -> list[tuple[str | None, str]]:
        """Each line with the table it is in."""
        table, found = None, []
        for line in self.text.splitlines():
            if header := re.match(r"\s*\[\s*(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\]\"']+?)\s*\]", line):
                table = header[1].strip("\"'")
            found.append((table, line))
        return found

    def _line(self, table: str | None, key: str | None) -> int | None:
        """The number of the line of a key in a table, or of the table."""
        first = None
        for number, (inside, line) in enumerate(self._lines(), 1):
            if inside != table and not (inside or "").startswith(f"{table}."):
                continue
            first = first or number
            if key is not None and re.match(rf"\s*[\"']?{re.escape(key).replace('_', '[_-]')}[\"']?\s*=", line):
                return number
        return first if table is not None else None
