"""The models that requests may name: presets, the default model, and those in the store; which one a name means.

In: names. Out: `LocalModel`s, whose names are those of the API, and their presets. Opens no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError
from edgeinfer.models.file_names import model_name, without_quant
from edgeinfer.models.local_model import LATEST

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.app.server.presets import Preset, Presets
    from edgeinfer.load_options import LoadOptions
    from edgeinfer.models.store import LocalModel

Key = tuple[str, "Path"]
"""What tells two models apart: presets with different settings may share a file."""


def key_of(model: LocalModel) -> Key:
    """The key of a model."""
    return model.name, model.path


class ModelList:
    """Names of models. `given`: the default model; None: the presets say. `reread`: reads the presets' file again."""

    def __init__(
        self,
        listed: Callable[[], Sequence[LocalModel]],
        given: LocalModel | None,
        aliases: Sequence[str] = (),
        presets: Presets | None = None,
        reread: Callable[[], Presets] | None = None,
    ) -> None:
        """`aliases`: further names of the default model."""
        self._listed, self._given = listed, given
        self._aliases, self.presets, self._reread = tuple(aliases), presets, reread

    @property
    def default(self) -> LocalModel:
        """The model of requests that name none."""
        if self._given is not None:
            return self._given
        assert self.presets is not None
        return self.presets.by_name[self.presets.default].model

    def reread(self) -> None:
        """Read the presets' file again. Raises BadSetting, and keeps the presets as they are."""
        if self._reread is not None:
            self.presets = self._reread()

    def preset_of(self, model: LocalModel) -> Preset | None:
        """The preset of a model."""
        return None if self.presets is None else self.presets.of(model)

    def load_of(self, model: LocalModel, load: LoadOptions) -> LoadOptions:
        """How a model is loaded: as its preset says, else as `load`, whose projector file is the default model's."""
        preset = self.preset_of(model)
        if preset is not None:
            return preset.settings.load
        load = load if self.presets is None else self.presets.settings.load
        return load if model.path == self.default.path else load.for_others

    def aliases_of(self, model: LocalModel) -> tuple[str, ...]:
        """Further names of a model."""
        preset = self.preset_of(model)
        if preset is not None:
            return preset.aliases
        return self._aliases if key_of(model) == key_of(self.default) else ()

    def is_configured(self, model: LocalModel) -> bool:
        """Whether the server was started with a model or with a preset of it, so that its file stays."""
        own = [self.default, *(() if self.presets is None else (each.model for each in self.presets.by_name.values()))]
        return any(model.path == each.path for each in own)

    def models(self) -> list[LocalModel]:
        """All models: the default one first, then presets, then the store's that these do not hide."""
        return self._own_and_others()[0]

    def _own_and_others(self) -> tuple[list[LocalModel], list[LocalModel]]:
        """The models that are listed, and the store's that are hidden."""
        own = {key_of(self.default): self.default}
        hidden = set() if self.preset_of(self.default) else {self.default.path}
        for preset in () if self.presets is None else self.presets.by_name.values():
            own[key_of(preset.model)] = preset.model
            hidden.update(preset.hidden)
        names = {model.name.casefold() for model in own.values()}
        others = [each for each in self._listed() if each.name.casefold() not in names]
        shown = [each for each in others if each.path not in hidden]
        return [*own.values(), *shown], [each for each in others if each.path in hidden]

    def first_models(self) -> list[LocalModel]:
        """The models to open when the server starts."""
        presets = () if self.presets is None else self.presets.by_name.values()
        preset = self.preset_of(self.default)
        first = [self.default] if preset is None or preset.opens_at_start is not False else []
        return first + [each.model for each in presets if each.opens_at_start and each is not preset]

    def find(self, name: str | None) -> LocalModel:
        """Look up a model by name. Raises APIError."""
        if self.is_default(name):
            return self.default
        assert name is not None
        plain = name.removesuffix(f":{LATEST}")
        names = {each.casefold() for each in (model_name(plain), plain, name, f"{name}:{LATEST}", f"hf:{plain}")}
        models, hidden = self._own_and_others()
        for among in (models, hidden):
            for key in (_name, self._alias(names), _without_quant, _source, _file):
                for model in among:
                    if key(model).casefold() in names:
                        return model
        known = ", ".join(model.name for model in models[:10])
        raise APIError(404, f"there is no model {name!r}; there are: {known}", "model_not_found", "model")

    def _alias(self, names: set[str]) -> Callable[[LocalModel], str]:
        """A function that tells the alias of a model among `names`."""
        return lambda model: next((each for each in self.aliases_of(model) if each.casefold() in names), "")

    def is_default(self, name: str | None) -> bool:
        """Whether a name means the default model, as far as can be said without a list of the others."""
        if name is None:
            return True
        default = self.default
        own = "", "default", default.name, *self.aliases_of(default)
        plain = name.removesuffix(f":{LATEST}")
        return plain in own or (self.presets is None and plain == default.path.name)


def _name(model: LocalModel) -> str:
    return model.name


def _without_quant(model: LocalModel) -> str:
    return without_quant(model.name)


def _source(model: LocalModel) -> str:
    return model.source


def _file(model: LocalModel) -> str:
    """The name that a preset's file has by itself."""
    return model_name(model.path.name)
