"""The models of a server: which names requests may use, and how each model opens.

In: settings, the server's options, a file of presets. Out: a `ModelList`, and what opens its models, shown on standard
error. Opens none itself; the default model is pulled if it is not on this computer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.opening.loading import load_model
from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import OpenModel
from edgeinfer.app.server.presets import Presets, read_presets
from edgeinfer.errors import BadSetting
from edgeinfer.models.store import LocalModel, ModelStore
from edgeinfer.settings import COMMAND_LINE, Settings

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.steps import Progress


def served_models(
    settings: Settings, server: ServerOptions, presets_path: Path | None = None, given: LocalModel | None = None
) -> tuple[ModelList, OpenModel]:
    """The models, and what opens them. `given`: the default one, if it has been chosen.

    Raises BadSetting, ModelNotFound and what pulling raises.
    """
    listed = ModelStore().models
    if presets_path is None:
        default = given or choose_model(settings)
        if server.aliases:
            default = replace(default, name=server.aliases[0])
        names = ModelList(listed, default, server.aliases)
    else:
        presets = read_presets(presets_path, settings)
        chosen = _chosen(presets, settings, server)
        names = ModelList(listed, chosen, (), presets, lambda: read_presets(presets_path, settings))

    def opening(model: LocalModel, progress: Progress) -> LLM:
        own = settings if names.presets is None else names.presets.settings_of(model)
        own = replace(own, load=names.load_of(model, own.load))
        face, n_sessions = TerminalFace(), server.contexts
        return load_model(model, own, face, n_sessions=n_sessions, parallel=server.parallel, listening=progress)

    return names, opening


def _chosen(presets: Presets, settings: Settings, server: ServerOptions) -> LocalModel | None:
    """The default model if the command line names one that is no preset. Raises BadSetting."""
    if server.aliases:
        raise BadSetting("--alias goes with a single model; with --presets, each model has `aliases` in its table")
    wanted = settings.model.model
    if wanted is None or settings.origins["model"] != COMMAND_LINE:
        return None
    return presets.by_name[wanted].model if wanted in presets.by_name else choose_model(settings)
