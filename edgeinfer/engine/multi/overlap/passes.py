"""Passes over in-flight batches as schedules order them: all in step, in two halves, or whichever are ready.

In: in-flight batches. Out: the same batches further along, or with their logits. The calling thread drives the
accelerator; the host's attention runs in its own thread. Chooses nothing.
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
