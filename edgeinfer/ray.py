"""edgeinfer on Ray Serve: `serve run edgeinfer.ray:app`, or `serve.run(edgeinfer.ray.app)` in a program.

In: the settings of `edgeinfer serve` from EDGEINFER_… variables and configuration files. Out: an application, made when
it is asked for: to import this needs neither Ray nor a model. `build` takes options of the command line by name too:
`serve run edgeinfer.ray:build model=qwen3-8b parallel=4`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    app: Any

__all__ = ["app", "build"]


def build(args: Mapping[str, object]) -> Any:
    """The application with options of `edgeinfer serve`: {"model": "qwen3-8b", "strict_names": True}.

    Joins Ray as the setting `ray` or RAY_ADDRESS says, or starts it on this computer, unless it is connected; how many
    replicas there are follows from the computers there. Raises BadSetting, ModelNotFound.
    """
    from edgeinfer.app.cluster.ray_session import connect, require_ray

    require_ray()
    import ray

    from edgeinfer.app.cluster.application import behind_door, require_servable
    from edgeinfer.app.cluster.cluster_plan import laid_out, node_cpus
    from edgeinfer.app.commands.serve import parsed_options
    from edgeinfer.app.server.served_models import served_models

    settings, options, flags = parsed_options(args)
    require_servable(options)
    names, _ = served_models(settings, options, flags.presets)
    model = None if names.presets is not None else names.default
    connect(settings.cluster.ray or "auto")
    serving, counts = laid_out(settings, options, model, node_cpus(ray.nodes()), flags.replicas, flags.presets)
    return behind_door(serving, counts)


def __getattr__(name: str) -> Any:
    if name == "app":
        return build({})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
