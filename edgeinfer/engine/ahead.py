"""Compiling for the cpu while a model is still being fetched, so that the first answer waits for one of the two.

In: the kind of keys and values, and the types of the weights. Out: kernels in the cache; opening the model waits
for those that are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from edgeinfer.settings import KVKind


def compile_ahead(kv: KVKind, ggml_types: Sequence[int]) -> threading.Thread:
    """Compile what a Llama of these types needs and what is not in the cache, in a thread of its own."""
    thread = threading.Thread(target=_compile, args=(kv, ggml_types), name="edgeinfer-ahead", daemon=True)
    thread.start()
    return thread


def _compile(kv: KVKind, ggml_types: Sequence[int]) -> None:
    from edgeinfer.backends.base import DeviceOptions
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.cpu.needs import usual_kernels
    from edgeinfer.errors import EdgeInferError
    from edgeinfer.steps import no_progress

    try:
        device = CpuDevice(DeviceOptions())
        device.library.prepare(usual_kernels(kv, device.isa, ggml_types), len(device.cores), no_progress)
    except (EdgeInferError, OSError):  # which the opening of the model will say
        return
