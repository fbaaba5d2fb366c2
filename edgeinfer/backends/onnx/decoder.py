"""The Evaluator of decoder folders: another program's graph, run by ONNX Runtime over our own KV cache.

In: batches of tokens whose positions and pages the caller tracks. Out: logits. The graph's mask is one row for all
tokens, so each of its passes is a chain of one sequence: for a tree, each path from root to leaf is run by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.backends.onnx.decoder_ports import DecoderCache, NamedPort, Numbers, ports_of
from edgeinfer.backends.onnx.device import seats_of
from edgeinfer.backends.onnx.session import GraphSession
from edgeinfer.errors import BadSetting, DeviceFailed, DoesNotFit, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.models.decoder_folder import open_folder
from edgeinfer.models.text.tokenizer_file import FolderText
from edgeinfer.steps import Progress

LOGITS_BYTES = 64 << 20
"""Most bytes for the logits of a pass; the graph computes those of every token."""
LEAST_TOKENS = 32
"""Tokens of a long pass, however large the vocabulary."""
LONG_PASS = 8
"""Tokens of a pass that can be aborted while it runs."""
LOOK_S = 0.05
"""How often a thread waiting for a stop checks whether the pass has ended."""


@dataclass(frozen=True, slots=True)
class _PendingChain:
    """A pending chain: its tokens in the batch, and copies of its rows, or none if the cache still has them."""

    sequence: int
    path: tuple[int, ...]
    rows: list[Numbers] | None


class FolderEvaluator:
    """One decoder folder with the keys and values of its sequences. Must be closed."""

    batch_invariant = False
    notices: tuple[str, ...] = ()

    def __init__(self, path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> None:
        """Raises DeviceUnavailable, ModelNotFound, UnsupportedModel, BadSetting, DoesNotFit."""
        seats = seats_of(options)
        if not path.is_dir():
            raise UnsupportedModel(f"{path} is no folder with an ONNX decoder, and no other model runs beside one")
        folder = open_folder(path)
        if limits.kv != "f16":
            raise BadSetting(f"{path} keeps keys and values as its graph has them; --kv {limits.kv} is for .gguf files")
        if folder.most_context is not None and limits.n_context > folder.most_context:
            raise BadSetting(
                f"{path} was made for {folder.most_context} tokens of context, not {limits.n_context}; "
                f"use --ctx {folder.most_context} or less"
            )
        self._text = FolderText(path)
        progress("loading weights", 0, 1)
        try:
            self._session = GraphSession.of_file(folder.graph, seats.providers, seats.n_workers, seats.pinned_to)
        except MemoryError as reason:
            raise DoesNotFit(f"{folder.graph} does not fit into memory: {str(reason)[:200]}") from None
        except DeviceFailed as reason:
            raise UnsupportedModel(f"{folder.graph}: {reason}") from None
        progress("loading weights", 1, 1)
        self._ports = ports = ports_of(folder, self._session.inputs, self._session.outputs)
        self.name, self.n_workers, self.version = seats.name, seats.n_workers, onnxruntime.__version__
        self.n_vocab, self._n_context_trained = ports.n_vocab, folder.n_context
        row_bytes = ports.n_vocab * ports.logits.dtype.itemsize
        max_tokens = min(limits.max_tokens, max(LEAST_TOKENS, LOGITS_BYTES // row_bytes))
        self.limits = limits = replace(limits, max_tokens=max_tokens, branches=False)
        self._in_place = folder.shares_cache
        self._weight_bytes = sum(info.nbytes for info in folder.tensors.values())
        self._tokens = np.zeros(max_tokens, ports.tokens.dtype)
        self._positions = np.zeros(max_tokens, np.int64 if ports.positions is None else ports.positions.dtype)
        self._ones = np.ones(limits.n_context + max_tokens, np.int64 if ports.mask is None else ports.mask.dtype)
        self._branch = np.zeros(1, np.bool_)
        self._made = np.zeros(max_tokens * ports.n_vocab, ports.logits.dtype)
        self._caches: dict[int, DecoderCache] = {}
        self._pending: list[_PendingChain] = []
        self._flag: StopFlag | None = None
        self._closed = False

    @property
    def n_context_trained(self) -> int:
        return self._n_context_trained or self.limits.n_context

    @property
    def resident_bytes(self) -> int:
        """Bytes of the graph's files, of what is cached, and of the logits of a pass."""
        if self._closed:
            return 0
        return self._weight_bytes + self._made.nbytes + sum(cache.nbytes for cache in self._caches.values())

    @property
    def text(self) -> FolderText:
        """The folder's tokenizer."""
        return self._text

    def use(self, most_workers: int) -> None:
        """Has no effect: ONNX Runtime keeps the threads it was opened with."""

    def heed(self, stopped: StopFlag | None) -> None:
        """Abort later passes as soon as this flag is set."""
        self._flag = stopped

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call. The tokens stay pending.

        Raises DoesNotFit if memory runs out, DeviceFailed, Interrupted. Nothing is pending then.
        """
        self._pending = []
        paths = paths_of(batch)
        firsts = [int(batch.sequences[path[0]]) for path in paths]
        logits = np.empty((len(batch.outputs), self.n_vocab), np.float32)
        pending = []
        for sequence, path in zip(firsts, paths, strict=True):
            cache = self._cache(sequence)
            made = self._run(cache, batch.tokens[list(path)])
            places = np.searchsorted(batch.outputs, path)
            for row, (node, place) in enumerate(zip(path, places.tolist(), strict=True)):
                if place < len(batch.outputs) and batch.outputs[place] == node:
                    logits[place] = made[row]
            is_tree = firsts.count(sequence) > 1
            pending.append(_PendingChain(sequence, path, cache.fresh(len(path)) if is_tree else None))
        self._pending = pending
        return logits

    def commit(self, sequence: int, path: Int32s) -> None:
        """Accept the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        wanted = tuple(path.tolist())
        found = next(run for run in self._pending if run.sequence == sequence and run.path[: len(wanted)] == wanted)
        self._pending = [run for run in self._pending if run.sequence != sequence]
        cache = self._cache(sequence)
        if found.rows is None:
            cache.keep(len(found.path), len(wanted))
        elif wanted:
            cache.append([rows[:, : len(wanted)] for rows in found.rows])

    def truncate(self, sequence: int, n_cached: int) -> None:
        """Drop a sequence's cached tokens from position n_cached on."""
        self._discard(sequence)
        if not n_cached:
            self._caches.pop(sequence, None)
        elif (cache := self._caches.get(sequence)) is not None:
            cache.truncate(n_cached)

    def branch(self, sequence: int, twin: int) -> None:
        """Start an empty sequence with the tokens of another one."""
        self._discard(sequence)
        if (cache := self._caches.get(sequence)) is not None:
            self._caches[twin] = cache.twin()

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading them: their keys and values are zeros."""
        self.truncate(sequence, 0)
        if n_tokens:
            shapes = [(port.heads, n_tokens, port.width, port.dtype) for port in self._ports.cache]
            self._cache(sequence).append([np.zeros(shape, dtype) for *shape, dtype in shapes])

    def save(self, sequence: int) -> bytes:
        """The cached state of a sequence: keys and values, layer by layer."""
        self._discard(sequence)
        cache = self._caches.get(sequence)
        return b"" if cache is None else b"".join(rows.tobytes() for rows in cache.rows())

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace the cached state of a sequence. Raises DeviceFailed if the state is not a whole number of tokens."""
        self.truncate(sequence, 0)
        ports = self._ports.cache
        n_tokens, over = divmod(len(state), sum(port.numbers(1) * port.dtype.itemsize for port in ports))
        if over:
            raise DeviceFailed(f"the saved state has {len(state)} bytes, which are no whole tokens of this graph")
        if not n_tokens:
            return
        rows, start = [], 0
        for port in ports:
            count = port.numbers(n_tokens)
            numbers = np.frombuffer(state, port.dtype, count, start)
            rows.append(numbers.reshape(port.heads, n_tokens, port.width))
            start += numbers.nbytes
        self._cache(sequence).append(rows)

    def close(self) -> None:
        """Free the session and the cache; may be called twice."""
        if not self._closed:
            self._closed = True
            self._caches.clear()
            self._pending = []
            self._session.close()

    def _cache(self, sequence: int) -> DecoderCache:
        found = self._caches.get(sequence)
        if found is None:
            found = DecoderCache(self._ports.cache, in_place=self._in_place, most_rows=self.limits.n_context)
            self._caches[sequence] = found
        return found

    def _discard(self, sequence: int) -> None:
        self._pending = [run for run in self._pending if run.sequence != sequence]

    def _run(self, cache: DecoderCache, tokens: Int32s) -> NDArray[Any]:
        """Evaluate a chain after the cached tokens: logits number[T, V], valid until the next call."""
        ports, n_new, before = self._ports, len(tokens), cache.n_tokens
        self._tokens[:n_new] = tokens
        self._positions[:n_new] = np.arange(before, before + n_new)
        self._branch[0] = before > 0
        self._give(ports.tokens, self._tokens, (1, n_new))
        self._give(ports.mask, self._ones, (1, before + n_new))
        self._give(ports.positions, self._positions, (1, n_new))
        self._give(ports.branch, self._branch, (1,))
        self._session.bind_output(ports.logits.name, self._made, (1, n_new, self.n_vocab))
        try:
            cache.bind(self._session, n_new)
            with self._stoppable(n_new) as options:
                self._session.run(options)
        except MemoryError as reason:
            raise DoesNotFit(
                f"memory ran out in a pass of {n_new} tokens behind {before}: {str(reason)[:200]}"
            ) from None
        return self._made[: n_new * self.n_vocab].reshape(n_new, self.n_vocab)

    def _give(self, port: NamedPort | None, array: NDArray[Any], shape: tuple[int, ...]) -> None:
        if port is not None:
            self._session.bind_input(port.name, array, shape)

    @contextlib.contextmanager
    def _stoppable(self, n_new: int) -> Iterator[onnxruntime.RunOptions | None]:
        """Run options that end a pass, as Interrupted, when the flag is set: the runtime checks them between operators.

        The flag is checked before every pass, and by a separate thread during a long one.
        """
        flag = self._flag
        if flag is not None and flag.is_set():
            raise Interrupted
        if flag is None or n_new < LONG_PASS:
            yield None
            return
        options, over = onnxruntime.RunOptions(), threading.Event()
        options.log_severity_level = 4
        watch = threading.Thread(target=_end_when_set, args=(flag, over, options), daemon=True)
        watch.start()
        try:
            yield options
        except DeviceFailed:
            if flag.is_set():
                raise Interrupted from None
            raise
        finally:
            over.set()


def open_evaluator(path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> FolderEvaluator:
    """The evaluator of a folder. Disables telemetry that ONNX Runtime sends on some systems."""
    onnxruntime.disable_telemetry_events()
    return FolderEvaluator(path, limits, options, progress)


def _end_when_set(flag: StopFlag, over: threading.Event, options: onnxruntime.RunOptions) -> None:
    """End a pass once the flag is set; returns soon after the pass has ended."""
    while not over.is_set():
        if flag.wait(LOOK_S):
            options.terminate = True
            return


def paths_of(batch: Batch) -> list[tuple[int, ...]]:
    """Indices of the tokens on the path from the root to each leaf, in the order of the leaves."""
    parents: list[int] = batch.parents.tolist()
    inner = set(parents)
    found = []
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        found.append(tuple(reversed(path)))
    return found
