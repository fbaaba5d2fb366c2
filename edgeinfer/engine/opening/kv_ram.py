"""Whether a part of the KV cache may be on disk, as `--kv-ram` asks: what it needs, and what stands in its way.

In: load options, limits of a model. Out: nothing, or a refusal that says what would work.
"""

from __future__ import annotations

import sys

from edgeinfer.backends.base import Limits
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.errors import BadSetting
from edgeinfer.load_options import LoadOptions


def require_kv_ram(load: LoadOptions) -> None:
    """Raises BadSetting where options ask for a part of the KV cache on disk, and that cannot be."""
    if load.kv_ram is None:
        return
    if load.approximation.kv is None:
        raise BadSetting(
            "--kv-ram needs a budget of attention, for without one each token reads all of the cache from disk: use it "
            "with --approx kv=N, such as kv=1024, or leave it out"
        )
    if load.device not in ("auto", AUTO_DEVICE):
        raise BadSetting(f"{load.device} has all of its KV cache in memory: use --device cpu with --kv-ram, or neither")
    if load.isolate:
        raise BadSetting("--kv-ram is for a device in this process: leave out --isolate, or --kv-ram")
    if sys.platform != "linux":
        raise BadSetting("--kv-ram needs Linux: leave it out; --kv q8q4 takes two fifths of the memory instead")


def require_weights_in_memory(name: str, limits: Limits) -> None:
    """Raises BadSetting if both weights and keys and values were to come from disk."""
    if limits.kv_ram and limits.stored is not None:
        raise BadSetting(
            f"{name} has no room in memory for all of its weights, which --kv-ram needs there: leave --kv-ram out, "
            "give more memory (--ram), or use a smaller quant"
        )
