"""What /props and lists tell of an open model; kept, so that nobody wakes a model up by asking.

In: an open model, the server's options. Out: a record. Opens nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import edgeinfer
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.prompt_images import MARK
from edgeinfer.app.server.request_media import MediaRead, media_read
from edgeinfer.engine.requests.sampling import SamplingSettings

if TYPE_CHECKING:
    from edgeinfer.app.server.listening import ServerOptions
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.requests.request import Options

USUAL = MappingProxyType(
    {name: getattr(SamplingSettings(), name) for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")}
)
"""Sampling parameters of requests that say nothing, for models whose authors say nothing."""


def properties(model: PooledModel, options: ServerOptions, defaults: Options) -> Record:
    """The properties of an open model and of its server, in llama-server's words."""
    facts, prompts = model.llm.info, model.llm.prompts
    given = {name: value for name, value in defaults.items() if isinstance(value, int | float | str)}
    params = {**USUAL, **prompts.sampling, **given}
    return {
        "default_generation_settings": {"n_ctx": facts.n_context, "params": params},
        "total_slots": options.parallel,
        **router_record(options),
        "modalities": modalities(media_read(model)),
        "media_marker": MARK,
        "model_alias": model.name,
        "model_path": model.path.name,
        "chat_template": next(iter(prompts.template.sources.values()), ""),
        "device": model.llm.telemetry.device,
        "notices": list(facts.notices),
        "author_sampling": dict(prompts.sampling),
        "is_sleeping": False,
    }


def router_record(options: ServerOptions) -> Record:
    """What /props tells of the server itself."""
    return {
        "role": "router",
        "max_instances": options.most_models,
        "models_autoload": options.loads_on_demand,
        "build_info": f"edgeinfer {edgeinfer.__version__}",
    }


def modalities(read: MediaRead) -> Record:
    """What a model reads besides text, in llama-server's words."""
    return {"vision": read.images, "video": False, "audio": read.sound}


def unopened_record(model: str, options: ServerOptions, read: MediaRead) -> Record:
    """The properties of a server whose default model was not open yet. `read`: as far as is known."""
    unknown = {"n_ctx": 0, "params": {}}
    told = {"model_alias": model, "default_generation_settings": unknown, "is_sleeping": True}
    return {**router_record(options), **told, "modalities": modalities(read)}


def open_record(model: PooledModel) -> Record:
    """What lists of models say of one that is open."""
    facts = model.llm.info
    found = {"n_ctx": facts.n_context, "n_ctx_train": facts.n_context_trained, "arch": facts.architecture}
    return found if facts.approximation.is_exact else {**found, "approx": str(facts.approximation)}
