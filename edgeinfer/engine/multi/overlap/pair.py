"""A model on two open devices: the accelerator's lanes, the host's lane with its thread, and the rows they exchange.

In: devices, a model, limits. Out: `OverlapPasses` over in-flight batches, and the memories of both KV partitions. Knows
no sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgeinfer.backends.base import Device, Limits
from edgeinfer.engine.multi.overlap.accelerator import Accelerator
from edgeinfer.engine.multi.overlap.attending import HostAttention
from edgeinfer.engine.multi.overlap.parts import parts_of
from edgeinfer.engine.multi.overlap.passes import OverlapPasses
from edgeinfer.engine.multi.overlap.rows import RowStore
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress, no_progress


@dataclass(frozen=True, slots=True)
class Pair:
    """Owns both devices and everything compiled for them. `resident` and `offloaded` differ only in their pages."""

    host_device: Device
    device: Device
    host: HostAttention
    accelerator: Accelerator
    store: RowStore
    passes: OverlapPasses
    resident: Limits
    offloaded: Limits
    n_vocab: int

    @property
    def name(self) -> str:
        return f"{self.host_device.name}+{self.device.name}"

    @property
    def resident_bytes(self) -> int:
        return self.accelerator.resident_bytes + self.host.resident_bytes + self.store.nbytes

    def close(self) -> None:
        """End the thread, close all lanes and both devices."""
        self.host.close()
        self.accelerator.close()
        self.device.close()
        self.host_device.close()


def paired(
    spec: ModelSpec,
    file: GGUFFile,
    host: Device,
    device: Device,
    limits: Limits,
    pages: Callable[[int], tuple[int, int]],
    progress: Progress = no_progress,
) -> Pair:
    """Compile a model for both. If that fails, the caller still owns the devices.

    `pages`: the numbers of resident and offloaded pages, given the bytes that all matmuls take on the accelerator.
    Raises DeviceUnavailable for devices that do not run parts of a model, UnsupportedModel, MemoryError, and what
    devices and `pages` raise.
    """
    sections = host.capabilities.sections
    if sections is None:
        raise DeviceUnavailable(f"the device {host.name} cannot attend beside an accelerator; cpu can")
    parts = parts_of(spec)
    store = RowStore(parts.widths)
    accelerator = Accelerator(device, parts, file, limits, store, progress)
    try:
        resident, offloaded = (replace(limits, n_pages=n) for n in pages(accelerator.resident_bytes))
        accelerator.keep(resident.n_pages, progress)
        lane = sections.compile_sections(parts.host.spec, parts.host.exposed, file, offloaded, progress)
    except BaseException:
        accelerator.close()
        raise
    attention = HostAttention(lane, parts.exchanges)
    passes = OverlapPasses(parts, accelerator, attention, store, offloaded)
    return Pair(host, device, attention, accelerator, store, passes, resident, offloaded, spec.n_vocab)
