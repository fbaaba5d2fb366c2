"""Passes over in-flight batches, as schedules order them: all in step, in two halves, or with those that are ready.

In: in-flight batches. Out: the same further on, or with their logits. The accelerator is driven by the calling thread,
the host's attention runs on its own. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.multi.overlap.accelerator import Accelerator
from edgeinfer.engine.multi.overlap.attending import AttentionJob, HostAttention
from edgeinfer.engine.multi.overlap.micro_batches import InFlightBatch, MicroBatches
from edgeinfer.engine.multi.overlap.parts import ModelParts
from edgeinfer.engine.multi.overlap.rows import RowStore


class OverlapPasses:
    """Runs passes on an accelerator and the host. `limits`: what the host takes at once."""

    def __init__(
        self, parts: ModelParts, accelerator: Accelerator, host: HostAttention, store: RowStore, limits: Limits
    ) -> None:
        self._parts, self._accelerator, self._host, self._store = parts, accelerator, host, store
        self._leaving = MicroBatches(limits)
        self.n_joins = 0
        """In-flight batches that came back from the host and joined a pass, in passes that do not wait for them."""

    @property
    def n_stages(self) -> int:
        """Parts with products that an in-flight batch goes through."""
        return self._parts.n_layers + 1

    def lockstep(self, groups: Sequence[Sequence[InFlightBatch]]) -> None:
        """Each group to its end, layer by layer in turns; who is further on joins its group where it stands.

        While the accelerator has one group's products, the host attends for another. Raises DeviceFailed.
        """
        for stage in range(self.n_stages):
            for group in groups:
                entering = [flight for flight in group if flight.stage == stage and not flight.ended]
                self._await(entering)
                self._enter(entering)

    def overlapping(self, flights: Sequence[InFlightBatch]) -> None:
        """Once through all layers with the in-flight batches that are ready when a layer comes; none is waited for.

        Only if none at all is there it waits for the first. Raises DeviceFailed.
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
        """Drop all jobs of the host, and hold on to no in-flight batches."""
        self._leaving.forget()
        self._accelerator.forget()
        self._host.drop()

    def _enter(self, flights: Sequence[InFlightBatch]) -> None:
        """In-flight batches of one stage through its products, and on to the attention that follows."""
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
        """Take over what the host has done, but for in-flight batches that were broken off meanwhile."""
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
