"""The accelerator's share of a model: matmuls for all tokens, and attention for sequences resident on it.

In: in-flight batches that enter a part together. Out: their rows in the row store, or their logits. Each part is
submitted and awaited; what runs elsewhere meanwhile is none of its concern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, FragmentLane, Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.overlap.micro_batches import InFlightBatch, MicroBatch, MicroBatches, RowStore
from edgeinfer.engine.overlap.parts import ModelParts
from edgeinfer.engine.shared_lane.lane import compiled_fragments
from edgeinfer.engine.shared_lane.timeline import DeviceSpan
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


class Accelerator:
    """All parts of a model on one device. Owns its lanes, not the device."""

    def __init__(
        self,
        device: Device,
        parts: ModelParts,
        file: GGUFFile,
        limits: Limits,
        store: RowStore,
        progress: Progress,
    ) -> None:
        """Compile the matmuls. There is no room for a KV cache before `keep`. Raises as `compiled_fragments`."""
        self._device, self._parts, self._file, self._limits, self._store = device, parts, file, limits, store
        self._n_vocab = parts.products[-1].spec.buffer(parts.logits).width
        self._spans: list[DeviceSpan] = []
        self._products: list[FragmentLane] = []
        self._entering, self._attending = MicroBatches(limits), MicroBatches(limits)
        self.memory = ResidentMemory()
        try:
            self._products += compiled_fragments(device, parts.products, file, _without_cache(limits), progress)
        except BaseException:
            self.close()
            raise

    def keep(self, n_pages: int, progress: Progress) -> None:
        """Compile attention with room for this many pages; none if 0."""
        limits = replace(self._limits, n_pages=n_pages)
        try:
            fragments = self._parts.attentions if n_pages else ()
            self.memory.lanes += compiled_fragments(self._device, fragments, self._file, limits, progress)
        except BaseException:
            self.close()
            raise

    @property
    def resident_bytes(self) -> int:
        return self.memory.resident_bytes + sum(lane.resident_bytes for lane in self._products)

    def products(self, flights: Sequence[InFlightBatch]) -> None:
        """Run in-flight batches of one stage through its matmuls: they reach the next stage or get their logits.

        Raises DeviceFailed.
        """
        if flights[0].stage == self._parts.n_layers:
            self._head(flights)
        else:
            for micro_batch in self._entering.of(flights):
                self._store.scatter(self._through(micro_batch), micro_batch.rows)
        for flight in flights:
            flight.stage += 1

    def _head(self, flights: Sequence[InFlightBatch]) -> None:
        """Run the last part for the batches that need any logits."""
        wanted = [flight for flight in flights if flight.n_outputs]
        for micro_batch in self._entering.of(wanted):
            logits = self._through(micro_batch)[self._parts.logits]
            for flight, first, stop in micro_batch.outputs():
                flight.logits = logits[first:stop].copy()
        for flight in flights:
            if flight.logits is None:
                flight.logits = np.zeros((0, self._n_vocab), np.float32)

    def _through(self, micro_batch: MicroBatch) -> Mapping[str, Floats]:
        stage = micro_batch.flights[0].stage
        fragment, step = self._parts.products[stage], micro_batch.plain(self._limits.n_context)
        return self._run(self._products[stage], fragment, step, self._store.gather(fragment.inputs, micro_batch.rows))

    def attention(self, layer: int, flights: Sequence[InFlightBatch]) -> None:
        """Attention of a layer for resident in-flight batches. Raises DeviceFailed."""
        fragment, lane = self._parts.attentions[layer], self.memory.lanes[layer]
        for micro_batch in self._attending.of(flights):
            inputs = self._store.gather(fragment.inputs, micro_batch.rows)
            self._store.scatter(self._run(lane, fragment, micro_batch.attending(), inputs), micro_batch.rows)

    def _run(
        self, lane: FragmentLane, fragment: Fragment, step: Step, inputs: Mapping[str, Floats]
    ) -> Mapping[str, Floats]:
        lane.submit(step, inputs)
        outputs = lane.wait()
        stages = [stage.name for stage in fragment.spec.stages]
        name = stages[0] if len(stages) == 1 else f"{stages[0]} to {stages[-1]}"
        self._spans.append(DeviceSpan(self._device.name, name, *lane.ran))
        return outputs

    def take_spans(self) -> list[DeviceSpan]:
        """When the accelerator worked since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def forget(self) -> None:
        """Release all references to in-flight batches."""
        self._entering.forget()
        self._attending.forget()

    def close(self) -> None:
        """Close all lanes. Safe to call twice."""
        for lane in self._products:
            lane.close()
        self.memory.close()


class ResidentMemory:
    """The accelerator's KV cache, one lane for each layer, as one `KVMemory`."""

    def __init__(self) -> None:
        self.lanes: list[FragmentLane] = []

    @property
    def resident_bytes(self) -> int:
        return sum(lane.resident_bytes for lane in self.lanes)

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots in all layers."""
        for lane in self.lanes:
            lane.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        if not self.lanes:
            return np.zeros((len(pages), 0), np.uint8)
        return np.concatenate([lane.read_pages(pages) for lane in self.lanes], axis=1)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Write page contents that `read_pages` returned."""
        start, none = 0, np.zeros(1, np.int32)
        for lane in self.lanes:
            width = lane.read_pages(none).shape[1]
            lane.write_pages(pages, np.ascontiguousarray(contents[:, start : start + width]))
            start += width

    def close(self) -> None:
        """Close the lanes."""
        for lane in self.lanes:
            lane.close()


def _without_cache(limits: Limits) -> Limits:
    """Limits for parts without attention: as many slots as a pass has tokens."""
    return replace(limits, n_pages=pages_for(limits.max_tokens))
