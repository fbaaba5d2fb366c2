"""Lanes of the ONNX device: a fragment as one session with its cache, and a whole model as such a fragment.

In: steps, rows of input buffers. Out: rows of output buffers. The session reads and writes all buffers in place; only
the mask, positions and embedded tokens are created per step. Independent of plans.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import PATIENCE_S, Limits
from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.backends.onnx.attention import (
    LAST,
    OUTPUTS,
    POSITIONS,
    TOTAL,
    cache_names,
    fits_grouped,
    mask_name,
    surroundings,
)
from edgeinfer.backends.onnx.cache import OnnxCache
from edgeinfer.backends.onnx.footprint import RowCounts, windows
from edgeinfer.backends.onnx.graph import FLOAT, OnnxGraph
from edgeinfer.backends.onnx.lowering import OnnxLowering, input_name, output_name
from edgeinfer.backends.onnx.session import CPU, GraphSession, RunWatch
from edgeinfer.errors import DeviceFailed, EngineClosed
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import Rows, Weight
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import decode_rows, format_of
from edgeinfer.steps import Progress

Threads = tuple[int, tuple[int, ...]]
"""The number of threads of a session, and the cores they are pinned to, () for none."""


class OnnxFragmentLane:
    """A compiled fragment. Runs one step at a time: each `submit` is followed by a `wait`."""

    def __init__(
        self,
        fragment: Fragment,
        file: GGUFFile,
        limits: Limits,
        providers: tuple[str, ...],
        threads: Threads,
        progress: Progress,
    ) -> None:
        spec = fragment.spec
        self._fragment, self._sizes = fragment, RowCounts.of(limits)
        grouped = providers[0] == CPU and fits_grouped(spec)
        graph = OnnxGraph()
        lowering = OnnxLowering(graph, file, surroundings(graph, grouped=grouped), self._sizes.table_rows)
        for name, tensor in lowering.lower(fragment, progress).items():
            graph.node("Identity", (tensor,), out=output_name(name))
            graph.output(output_name(name), FLOAT, ("rows out." + name, spec.buffer(name).width))
        file.release()
        self._weight_bytes = lowering.packed_bytes + sum(array.nbytes for array in graph.large.values())
        self._inputs = frozenset(graph.input_names)
        self._session = GraphSession.of_graph(graph, providers, *threads)
        self._cache = OnnxCache(spec.kv, self._sizes, grouped=grouped)
        self._grouped = grouped
        learned = {op.out: op.weight for op in spec.ops() if isinstance(op, PositionEmbed)}
        self._embeds = [
            _Embedding(file, op, learned.get(op.out), self._sizes.max_tokens)
            for op in spec.ops()
            if isinstance(op, Embed)
        ]
        self._masks = {
            window: np.empty(self._sizes.max_tokens * self._sizes.cache_rows, np.float32) for window in windows(spec)
        }
        self._positions = np.zeros(self._sizes.max_tokens, np.int64)
        self._wanted = np.zeros(self._sizes.max_outputs, np.int64)
        self._outs = {name: self._buffer(name) for name in fragment.outputs}
        self._last, self._total = np.zeros(1, np.int32), np.zeros(1, np.int32)
        if grouped:
            self._bind_cache()
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[Mapping[str, Floats]] | None = None
        self._ran = (0.0, 0.0)
        self._closed = False
        self.patience_s = PATIENCE_S

    def _buffer(self, name: str) -> Floats:
        buffer = self._fragment.spec.buffer(name)
        n_rows = self._sizes.max_tokens if buffer.rows is Rows.TOKENS else self._sizes.max_outputs
        return np.zeros((n_rows, buffer.width), np.float32)

    def _bind_cache(self) -> None:
        """The cache is written in the memory it is read from."""
        for layer, arrays in enumerate(self._cache.arrays):
            inputs, outputs = cache_names(layer)
            for read, written, array in zip(inputs, outputs, arrays, strict=True):
                if read in self._inputs:
                    self._session.bind_input(read, array, array.shape)
                    self._session.bind_output(written, array, array.shape)

    @property
    def resident_bytes(self) -> int:
        """Bytes of initialisers, cache rows and bound buffers."""
        bound = sum(array.nbytes for array in (*self._masks.values(), *self._outs.values()))
        bound += sum(embedding.rows.nbytes for embedding in self._embeds)
        bound += self._positions.nbytes if POSITIONS in self._inputs else 0
        bound += self._wanted.nbytes if OUTPUTS in self._inputs else 0
        return 0 if self._closed else self._weight_bytes + self._cache.nbytes + bound

    @property
    def ran(self) -> tuple[float, float]:
        """Start and end of the last step, by time.perf_counter."""
        return self._ran

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step on the lane's own thread. Raises EngineClosed."""
        self._check_open()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "onnx lane")
        self._running = self._thread.submit(self.evaluate, step, inputs)

    def wait(self) -> Mapping[str, Floats]:
        """The output buffers of the step, views that the next one overwrites. Raises DeviceFailed, MemoryError."""
        running = self._running
        if running is None:
            raise DeviceFailed("no step was submitted to the onnx device")
        try:
            found = running.result(self.patience_s)
            self._running = None
            return found
        except TimeoutError:
            raise DeviceFailed(f"the onnx device did not finish a step in {self.patience_s:.0f} s") from None

    def evaluate(
        self, step: Step, inputs: Mapping[str, Floats], options: onnxruntime.RunOptions | None = None
    ) -> Mapping[str, Floats]:
        """Run a step on the calling thread; returns what `wait` does. `options` may end it early."""
        self._check_open()
        started = time.perf_counter()
        batch, cache = step.batch, self._cache
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        cache.make_room(n_tokens)
        for embedding in self._embeds:
            embedding.fill(batch.tokens, batch.positions)
            self._bind(input_name(embedding.out), embedding.rows, (n_tokens, embedding.rows.shape[1]))
        for name in self._fragment.inputs:
            rows = np.ascontiguousarray(inputs[name], np.float32)
            if not len(rows):  # no logits are requested: graphs compute at least one row
                rows = np.zeros((1, rows.shape[1]), np.float32)
            self._bind(input_name(name), rows, rows.shape)
        self._bind_places(step)
        self._wanted[: max(1, n_outputs)] = batch.outputs if n_outputs else 0
        self._bind(OUTPUTS, self._wanted, (max(1, n_outputs),))
        counts = {Rows.TOKENS: n_tokens, Rows.OUTPUTS: n_outputs}
        found = {}
        for name, buffer in self._outs.items():
            count = counts[self._fragment.spec.buffer(name).rows]
            self._session.bind_output(output_name(name), buffer, (max(1, count), buffer.shape[1]))
            found[name] = buffer[:count]
        self._session.run(options)
        cache.append(step.slots)
        self._ran = started, time.perf_counter()
        return found

    def _bind_places(self, step: Step) -> None:
        """Positions, masks, and the cache as it is before the step."""
        n_tokens, n_cached = len(step.batch.tokens), self._cache.n_cached
        n_rows = n_cached + n_tokens
        self._positions[:n_tokens] = step.batch.positions
        self._bind(POSITIONS, self._positions, (1, n_tokens))
        for window, mask in self._masks.items():
            self._cache.write_mask(step, window, mask)
            self._bind(mask_name(window), mask, (1, 1, n_tokens, n_rows))
        self._last[0], self._total[0] = n_rows - 1, n_rows
        self._bind(LAST, self._last, (1,))
        self._bind(TOTAL, self._total, ())
        if self._grouped:
            return
        for layer, arrays in enumerate(self._cache.arrays):
            for read, written, array in zip(*cache_names(layer), arrays, strict=True):
                self._bind(read, array, (n_cached, *array.shape[1:]))
                self._session.bind_output(written, array[n_cached:], (n_tokens, *array.shape[1:]))

    def _bind(self, name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
        """Bind an input that the graph may lack."""
        if name in self._inputs:
            self._session.bind_input(name, array, shape)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the model is closed; load it again")

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots: from now on they share the same rows."""
        self._cache.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes], float32 keys and values."""
        return self._cache.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        self._cache.write_pages(pages, contents)

    def close(self) -> None:
        """End the thread and free the session and its memory. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            stuck = self._running is not None and not self._running.done()
            self._thread.shutdown(wait=not stuck)
            if stuck:  # the thread keeps what it works on
                return
        self._cache.close()
        self._masks, self._outs, self._embeds = {}, {}, []
        self._session.close()


class _Embedding:
    """Embedding rows, decoded from the file as tokens come; `learned` positions are added to them."""

    def __init__(self, file: GGUFFile, op: Embed, learned: Weight | None, max_tokens: int) -> None:
        tensor = file.tensors[op.weight.tensor]
        self.out, self._file, self._tensor = op.out, file, op.weight.tensor
        self._format, self._scale = format_of(tensor.ggml_type), np.float32(op.scale)
        self._raw = file.raw(op.weight.tensor).reshape(tensor.shape[0], -1)
        self.rows: Floats = np.zeros((max_tokens, op.weight.columns), np.float32)

        self._learned = None
        if learned is not None:
            self._learned = weights.raw_rows(file, learned), format_of(file.tensors[learned.tensor].ggml_type)

    def fill(self, tokens: Int32s, positions: Int32s) -> None:
        """Fill in the rows of these tokens at these positions. Raises BadGGUF if the file was cut short."""
        self._file.check_whole(self._tensor)
        np.multiply(decode_rows(self._raw[tokens], self._format), self._scale, out=self.rows[: len(tokens)])
        if self._learned is not None:
            raw, form = self._learned
            self.rows[: len(tokens)] += decode_rows(raw[positions], form)


class OnnxLane:
    """A whole model. `apart`: steps run on the lane's own thread, which can be abandoned if the runtime stalls."""

    capabilities = LaneCapabilities()

    def __init__(self, part: OnnxFragmentLane, logits: str, *, apart: bool) -> None:
        self._part, self._logits = part, logits
        self._watch = None if apart else RunWatch(part.patience_s)

    @property
    def resident_bytes(self) -> int:
        return self._part.resident_bytes

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites. Raises EngineClosed, DeviceFailed."""
        if self._watch is None:
            self._part.submit(step, {})
            return self._part.wait()[self._logits]
        with self._watch.run() as options:
            return self._part.evaluate(step, {}, options)[self._logits]

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """As for a fragment."""
        self._part.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """As for a fragment."""
        return self._part.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """As for a fragment."""
        self._part.write_pages(pages, contents)

    def close(self) -> None:
        """May be called twice."""
        if self._watch is not None:
            self._watch.close()
        self._part.close()
