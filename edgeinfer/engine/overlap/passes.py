"""Passes over in-flight batches on two open devices, as schedules order them: in step, in two halves, or when ready.

In: devices, a model, limits: a `Pair` has the accelerator's lanes, the host's lane with its thread, the rows they
exchange, and the memories of both KV partitions. In-flight batches. Out: the same batches further along, or with their
logits. The calling thread drives the accelerator; the host's attention runs in its own thread. Chooses nothing and
knows no sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.backends.base import Device, Limits
from edgeinfer.engine.overlap.accelerator import Accelerator
from edgeinfer.engine.overlap.attending import AttentionJob, HostAttention
from edgeinfer.engine.overlap.micro_batches import InFlightBatch, MicroBatches, RowStore
from edgeinfer.engine.overlap.parts import ModelParts, parts_of
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


class OverlapPasses:
    """Runs passes on an accelerator and the host. `limits`: the most the host takes at once."""

    def __init__(
        self, parts: ModelParts, accelerator: Accelerator, host: HostAttention, store: RowStore, limits: Limits
    ) -> None:
        self._parts, self._accelerator, self._host, self._store = parts, accelerator, host, store
        self._leaving = MicroBatches(limits)
        self.n_joins = 0
        """In-flight batches that returned from the host and joined a pass that had not waited for them."""

    @property
    def n_stages(self) -> int:
        """Number of matmul parts an in-flight batch goes through."""
        return self._parts.n_layers + 1

    def lockstep(self, groups: Sequence[Sequence[InFlightBatch]]) -> None:
        """Run each group to its end, layer by layer in turns; a batch that is ahead joins its group at its own stage.

        While the accelerator runs one group's matmuls, the host runs attention for another. Raises DeviceFailed.
        """
        for stage in range(self.n_stages):
            for group in groups:
                entering = [flight for flight in group if flight.stage == stage and not flight.ended]
                self._await(entering)
                self._enter(entering)

    def overlapping(self, flights: Sequence[InFlightBatch]) -> None:
        """Go once through all layers with the in-flight batches that are ready at each layer; waits for no others.

        Waits for the first one only if none at all is ready. Raises DeviceFailed.
        """
        self._collect()
        while flights and all(flight.awaited for flight in flights):
            self._host.wait()
            self._collect()
        for stage in range(self.n_stages):
            self._collect()
            entering = [flight for flight in flights if flight.stage == stage and not flight.awaited]
            self.n_joins += sum(stage > 0 and not flight.is_resident for flight in entering)
            self._enter(entering)

    def forget(self) -> None:
        """Drop all of the host's jobs and release references to in-flight batches."""
        self._leaving.forget()
        self._accelerator.forget()
        self._host.drop()

    def _enter(self, flights: Sequence[InFlightBatch]) -> None:
        """Run in-flight batches of one stage through its matmuls and on to the attention that follows."""
        if not flights:
            return
        layer = flights[0].stage
        self._accelerator.products(flights)
        if layer == self._parts.n_layers:
            return
        offloaded = [flight for flight in flights if not flight.is_resident]
        if offloaded:
            self._send(layer, offloaded)
        resident = [flight for flight in flights if flight.is_resident]
        if resident:
            self._accelerator.attention(layer, resident)

    def _send(self, layer: int, flights: Sequence[InFlightBatch]) -> None:
        for micro_batch in self._leaving.of(flights):
            inputs = self._store.gather(self._parts.exchanges[layer].reads, micro_batch.rows)
            for flight in micro_batch.flights:
                flight.awaited = True
            self._host.send(AttentionJob(layer, micro_batch, micro_batch.attending(), inputs))

    def _await(self, flights: Sequence[InFlightBatch]) -> None:
        self._collect()
        while any(flight.awaited for flight in flights):
            self._host.wait()
            self._collect()

    def _collect(self) -> None:
        """Collect finished host jobs, except those of batches that were cancelled meanwhile."""
        for job in self._host.take_done():
            assert job.made is not None
            rows, made = job.micro_batch.rows, job.made
            if any(flight.ended for flight in job.micro_batch.flights):
                stays = np.repeat(
                    [not f.ended for f in job.micro_batch.flights], [f.n_tokens for f in job.micro_batch.flights]
                )
                rows, made = rows[stays], made[stays]
            self._store.scatter({self._parts.exchanges[job.layer].makes: made}, rows)
            for flight in job.micro_batch.flights:
                flight.awaited = False
