"""Compiling a model for a device, with a readable error if memory is short.

In: an open device, a spec and its file, limits. Out: a lane. Knows how to explain a shortage of memory to a person.
"""

from __future__ import annotations

from edgeinfer.backends.base import Device, Lane, Limits
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


def compiled(device: Device, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress) -> Lane:
    """Compile a model for a device. Raises DoesNotFit if memory is short."""
    try:
        return device.compile(spec, file, limits, progress)
    except MemoryError:
        kv_bytes = spec.kv_bytes_per_token() * limits.n_pages * PAGE
        raise DoesNotFit(
            f"{file.path} does not fit in memory: {file.nbytes} bytes of weights and {kv_bytes} bytes for "
            f"{limits.n_context} tokens of context; close other programs or use a smaller context or model"
        ) from None
