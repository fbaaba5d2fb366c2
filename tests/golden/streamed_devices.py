"""The cpu device with weights that come from a bundle file in part, which is packed first: how much stays is chosen.

In: where the file lies, a share of the weights or of the neurons. Out: devices for `Player`. Knows no expected results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, Lane, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.offload import sizes_of
from edgeinfer.engine.offload.weight_placement import placement_of, record_loads
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.weights import OffloadedWeights
from edgeinfer.scheduling.offload.reads import SMALL_READERS
from edgeinfer.steps import Progress, no_progress

GAP_BYTES = 4096


@dataclass(slots=True)
class Streamer:
    """A share of what there is between the least memory for weights and all of it. `path`: the bundle file."""

    path: Path
    share: float
    n_workers: int = 2
    name: str = "cpu"
    batch_invariant: bool = True

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities()

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        device, held_in = CpuDevice(DeviceOptions(n_workers=self.n_workers)), contents_of(spec, file.tensors)
        if not self.path.exists():
            pack_bundles(self.path, file, held_in, fingerprint(file), device.library, 2, progress)
        return device.compile(spec, file, self.limits(spec, file, limits), progress)

    def limits(self, spec: ModelSpec, file: GGUFFile, limits: Limits) -> Limits:
        """Limits with the place of weights."""
        place = self._place(spec, contents_of(spec, file.tensors), fingerprint(file))
        return replace(limits, stored=place)

    def _place(self, spec: ModelSpec, held_in: Contents, identity: str) -> OffloadedWeights:
        """What stays."""
        dense = [bundle.padded_bytes for bundle in held_in.bundles if bundle.is_dense]
        runs = [bundle.padded_bytes for bundle in held_in.bundles if bundle.run and bundle.run.count]
        slot = max((bundle.padded_bytes for bundle in held_in.experts), default=0)
        least = 2 * max(dense) + (8 * slot if slot else 0)
        least += sum(bundle.padded_bytes for bundle in held_in.bundles if bundle.stays)
        budget = int(least + self.share * (held_in.data_bytes - sum(runs) - least))
        sizes = sizes_of(held_in)
        if sizes.records is not None:
            budget += sizes.records.least_bytes
            budget += max(sizes.records.run_bytes, SMALL_READERS * sizes.records.read_bytes)
        found = placement_of(sizes, spec, budget, None, "it", record_loads(sizes, spec))
        held = sum(held_in.bundles[number].padded_bytes for number in found.pinned)
        parts = held, found.window_bytes, found.n_readers, found.n_experts * slot, found.record_bytes
        return OffloadedWeights(self.path, identity, found.pinned, *parts, SMALL_READERS, GAP_BYTES)

    def close(self) -> None:
        """Lanes own the threads."""
