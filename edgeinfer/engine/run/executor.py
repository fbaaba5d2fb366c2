"""The executor: compiles a model for a `Device`, runs it, and accounts for the pages of its KV cache.

In: batches of tokens. Out: logits. Applies the decisions of `kvcache` and knows nothing of text, sampling or sessions.
One call at a time (callers hold a lock), with batches no larger than the lane's limits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeinfer.backends.base import Device, DeviceOptions, Lane, Limits
from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.engine.kv import saved_state
from edgeinfer.engine.kv.cached_pages import CachedPages
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.saved_state import Value, check_same, seal, unseal
from edgeinfer.engine.kv.shifted import ShiftedTokens
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.offload.record_plans import keep_use
from edgeinfer.engine.offload.streaming import Pressure
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities
from edgeinfer.engine.run.observed import Observed
from edgeinfer.engine.run.workers import Adaptation
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.errors import DeviceFailed, DoesNotFit, EngineClosed, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import IDS_ONLY, PAGE, Batch, Floats, Inputs, Int32s
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress, no_progress

MAGIC = b"EDGEINFER KV 3\n"
AUTO_DEVICE = "cpu"
"""The device that "auto" falls back to: it runs on every machine."""
AUTO_SCHEDULE = "auto"
"""The schedule with the lowest predicted time."""


class Executor(Observed):
    """Runs one model on one device and owns both. Use it with `with` or call `close()`."""

    def __init__(
        self,
        device: Device,
        lane: Lane,
        limits: Limits,
        fingerprint: str,
        options: DeviceOptions | None = None,
        *,
        is_guest: bool = False,
        power_limiter: PowerLimiter | None = None,
        notices: tuple[str, ...] = (),
        inputs: Inputs = IDS_ONLY,
        read: KVCache | None = None,
    ) -> None:
        """`is_guest`: the device belongs to another executor. `power_limiter`: what may be used; None: everything.

        `read`: the cache of the model whose keys and values this one attends to, if it has none of its own.
        """
        self._of_lane = has = lane.capabilities
        self._inputs = replace(inputs, scales=inputs.scales if has.scales else (), budgets=has.budgets)
        self.notices, self._device, self._options, self._is_guest = notices, device, options, is_guest
        self._lane: Lane | None = lane
        self._limits, self._fingerprint = limits if has.windows else replace(limits, windows=None), fingerprint
        n_states, windows = 0 if has.states is None else has.states.n_slots, self._limits.windows
        self._cache = KVCache(limits.n_pages, limits.n_context, n_states, windows) if read is None else read
        options = options or DeviceOptions()
        self._n_workers = 1 if has.workers is None else has.workers.n_workers
        self.power_limiter = PowerLimiter.free(self._n_workers) if power_limiter is None else power_limiter
        self._adaptation = Adaptation(has.workers, options) if options.adapts and has.workers is not None else None
        self._pressure = None if has.streaming is None else Pressure(has.streaming)
        self._reads, showing = read is not None, None if has.buffers is None else self
        pages = CachedPages(self._cache, lane, self._identity) if read is None and device.batch_invariant else None
        moved = None if has.turning is None or self._reads else ShiftedTokens(self._cache, lane, has.turning)
        found = EvaluatorCapabilities(showing=showing, step_times=self, shared=self.shared, scales=self._inputs.scales)
        self.capabilities = replace(found, pages=pages, shifted=moved, scratch=has.scratch)

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> Executor:
        """Another model that takes turns on the same device and workers. Close it too. Raises DoesNotFit.

        One that reads keys and values evaluates tokens of this model's sequences, by their numbers here, each at the
        position of a cached token; it keeps nothing of them, and has no sequences of its own.
        """
        lane = compiled(self._device, spec, file, limits, progress)
        own, read = (self._device, lane, limits, fingerprint, self._options), self._cache if spec.reads_kv else None
        return Executor(*own, is_guest=True, power_limiter=self.power_limiter, inputs=spec.inputs, read=read)

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the lane's memory and the device's threads. Safe to call twice."""
        lane, streaming = self._lane, self._of_lane.streaming
        self._lane, self._of_lane, self._pressure = None, LaneCapabilities(), None
        self.capabilities = EvaluatorCapabilities(step_times=self)
        if lane is not None:
            if streaming is not None:
                keep_use(self._fingerprint, streaming)
            lane.close()
            if not self._is_guest:
                self._device.close()

    @property
    def batch_invariant(self) -> bool:
        return self._device.batch_invariant

    @property
    def device(self) -> str:
        """The device's name."""
        return self._device.name

    @property
    def n_workers(self) -> int:
        """Workers that may currently share a step; 1 without a worker pool."""
        return min(self._n_workers, self.power_limiter.policy.most_workers)

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def n_free_pages(self) -> int:
        return self._cache.n_free_pages

    def create(self) -> int:
        """A new empty sequence."""
        return self._cache.create()

    def branch(self, sequence: int) -> int:
        """A new sequence with the same cached tokens, sharing their memory."""
        return self._cache.branch(sequence)

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        self._cache.free(sequence)

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop cached tokens from a position on, or from a checkpoint before it; returns how many are left."""
        return self._cache.truncate(sequence, n_cached)

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        return self._cache.n_cached(sequence)

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call; the tokens stay pending.

        Raises ContextOverflow or DoesNotFit (no free pages) before anything is computed, and as `Inputs.check`.
        """
        lane = self._open_lane()
        self._inputs.check(batch, self._limits.n_context)
        if len(batch.tokens) > self._limits.max_tokens or len(batch.outputs) > self._limits.max_outputs:
            raise ValueError(f"a pass takes {self._limits.max_tokens} tokens and {self._limits.max_outputs} outputs")
        self.power_limiter.look()
        if self._pressure is not None:
            self._pressure.look()
        placement = self._place(lane, batch)
        if self._adaptation is None and isinstance(lane, SharedLane):
            lane.use(self.power_limiter.policy.most_workers)
        if self._adaptation is not None:
            self._adaptation.limit(self.power_limiter.policy)
            self._adaptation.before(batch)
        logits = lane.run(placement.step)
        if self._adaptation is not None:
            self._adaptation.after()
        if len(logits) != len(batch.outputs):
            raise DeviceFailed(f"{self.device} gave {len(logits)} rows of logits for {len(batch.outputs)} tokens")
        self._cache.summaries.note(placement.step)
        return logits

    @property
    def peaks(self) -> Floats | None:
        """Peaks of the last call's logits, as `base.Peaked`, if the device reports them; valid as long as these."""
        peaked = self._of_lane.peaks
        return None if peaked is None else peaked.peaks

    def show(self, name: str) -> Floats:
        """The rows of a buffer after the last pass: float32[T or O, width]. Raises UnsupportedModel."""
        self._open_lane()
        if self._of_lane.buffers is None:
            raise UnsupportedModel(f"{self.device} does not show what its buffers hold; --device cpu does")
        return self._of_lane.buffers.value(name)

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        lane = self._open_lane()
        self._cache.commit(sequence, path).apply(lane, self._of_lane.states)

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached, with zeros for keys and values; for measurements. Raises as `KVCache.refill`."""
        saved_state.fill_with_zeros(self._cache, self._open_lane(), sequence, n_tokens)

    def save(self, sequence: int) -> bytes:
        """The cached keys and values of a sequence; `restore` needs the same model, device and kv."""
        told, body = saved_state.saved(self._cache, self._open_lane(), sequence)
        return seal(MAGIC, {**self._identity(), **told}, body)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence's cached tokens by a saved state.

        Raises EdgeInferError if the state is damaged or from another model, device kind or kv; the sequence is
        unchanged. Raises ContextOverflow or DoesNotFit if it has no room; the sequence is then empty.
        """
        lane = self._open_lane()
        header, body = unseal(MAGIC, state, "the saved state")
        check_same(header, self._identity())
        saved_state.put_back(self._cache, lane, sequence, header, body)

    def _identity(self) -> dict[str, Value]:
        """What a saved state and this executor must agree on."""
        page_bytes = self._open_lane().read_pages(np.zeros(1, np.int32)).shape[1]
        states = self._of_lane.states
        return {
            "model": self._fingerprint,
            "device": self._device.name,
            "kv": self._limits.kv,
            "page_tokens": PAGE,
            "page_bytes": page_bytes,
            **({} if self.shared is None else {"layout": self.shared.layout}),
            **({} if states is None else {"state_bytes": states.slot_bytes}),
            **({} if self._limits.windows is None else {"window": self._limits.windows.tokens}),
            **({} if not self._limits.kv_budget else {"kv_budget": self._limits.kv_budget}),
        }

    def _open_lane(self) -> Lane:
        if self._lane is None:
            raise EngineClosed("the model is closed; load it again")
        return self._lane


def compiled(device: Device, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress) -> Lane:
    """Compile a model for a device. Raises DoesNotFit if memory is short."""
    reading = device.capabilities.reading if spec.reads_kv else None
    try:
        return (
            device.compile(spec, file, limits, progress)
            if reading is None
            else reading.compile_reader(spec, file, limits, progress)
        )
    except MemoryError:
        kv_bytes = spec.kv_bytes_per_token() * limits.n_pages * PAGE
        raise DoesNotFit(
            f"{file.path} does not fit in memory: {file.nbytes} bytes of weights and {kv_bytes} bytes for "
            f"{limits.n_context} tokens of context; close other programs or use a smaller context or model"
        ) from None
