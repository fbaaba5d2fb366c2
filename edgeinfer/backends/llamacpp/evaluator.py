"""The llama.cpp Evaluator: batches and trees evaluated against llama.cpp's own KV memory.

In: batches of tokens whose positions and pages the caller tracks. Out: logits. If llama.cpp cannot truncate a memory
(recurrent models), the sequence's tokens are evaluated again before its next pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.backends.llamacpp.library import INSTALL, KEY, check_target, library, open_context, open_model, threads
from edgeinfer.backends.llamacpp.passes import Arrays, is_chain, members_of
from edgeinfer.backends.llamacpp.text import LlamaText
from edgeinfer.errors import DeviceFailed, DoesNotFit
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.process import allowed_cpus
from edgeinfer.steps import Progress

NO_ROOM, ABORTED = 1, 2
"""Return values of llama_decode if no cells are free, and if it was aborted."""
PRETENDED = 64
"""Tokens that are evaluated for a `pretend`; copies of them stand for the rest."""


@dataclass(slots=True)
class _LlamaSequence:
    """A sequence that has tokens: llama.cpp's number for it, and how many tokens its memory holds.

    `shift`: how much lower positions are there, because of pretended tokens.
    """

    member: int
    tokens: list[int] = field(default_factory=list)
    n_held: int = 0
    shift: int = 0


@dataclass(slots=True)
class _Branches:
    """A pending tree: llama.cpp sequences borrowed for further leaves, and the llama.cpp sequences of each token."""

    borrowed: dict[int, list[int]]
    members: list[list[int]] = field(default_factory=list)


class LlamaEvaluator:
    """One llama.cpp model with its context. Must be closed."""

    batch_invariant = False

    def __init__(self, path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> None:
        """Raises DeviceUnavailable, BadSetting for another target, UnsupportedModel, DoesNotFit."""
        self._library = library(INSTALL)
        api = self._api = self._library.api
        check_target(self._library, options.target)
        self.name = f"{KEY}:{options.target}" if options.target else KEY
        self.version = self._library.version
        model = open_model(self._library, path, options.target, progress)
        try:
            self._opened = opened = open_context(self._library, model, limits, options)
        except BaseException:
            api.llama_model_free(model)
            raise
        self.limits = opened.limits
        self._text = LlamaText(api, model)
        self._threads = threads(options)
        wanted = set(options.cores or ())
        self._cores = wanted if sys.platform == "linux" and wanted < set(allowed_cpus()) else set()
        self._most_workers = max(self._threads)
        self._arrays = Arrays(api, self.limits.max_tokens, opened.n_sequences)
        self._free = list(range(opened.n_sequences - 1, -1, -1))
        self._sequences: dict[int, _LlamaSequence] = {}
        self._pending: tuple[Batch, _Branches | None] | None = None
        self._views: dict[tuple[int, int], Floats] = {}
        self._flag: StopFlag | None = None
        self._strlen = ctypes.cast(_c_library().strlen, api.ggml_abort_callback)
        self._closed = False

    @property
    def n_vocab(self) -> int:
        return self._text.n_tokens

    @property
    def n_context_trained(self) -> int:
        return int(self._api.llama_model_n_ctx_train(self._opened.model))

    @property
    def n_workers(self) -> int:
        return min(self._threads[0], self._most_workers)

    @property
    def resident_bytes(self) -> int:
        """Bytes that llama.cpp reports as allocated, mapped weights included."""
        return 0 if self._closed else self._opened.resident_bytes

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should be told about this model."""
        if self._opened.is_recurrent:
            return ("this model's memory cannot be cut back: nothing is drafted, and changed texts are read again",)
        return ()

    @property
    def text(self) -> LlamaText:
        """The model's tokenizer."""
        return self._text

    def use(self, most_workers: int) -> None:
        """Use at most this many threads from the next pass on."""
        if most_workers != self._most_workers:
            self._most_workers = most_workers
            decode, prefill = (max(1, min(most_workers, n_threads)) for n_threads in self._threads)
            self._api.llama_set_n_threads(self._opened.context, decode, prefill)

    def heed(self, stopped: StopFlag | None) -> None:
        """Abort later passes as soon as this flag is set.

        llama.cpp polls between any two operations. Its callback is strlen of the flag's text, which is 0 until the flag
        is set: native code that takes nanoseconds and does not need the interpreter lock.
        """
        if stopped is self._flag:
            return
        self._flag = stopped
        callback = self._api.ggml_abort_callback() if stopped is None else self._strlen
        self._api.llama_set_abort_callback(self._opened.context, callback, stopped.address if stopped else None)

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call. The tokens stay pending.

        Raises DoesNotFit for too many sequences, DeviceFailed, Interrupted. Nothing is pending then.
        """
        self._discard()
        chain = is_chain(batch)
        names = [int(batch.sequences[0])] if chain else np.unique(batch.sequences).tolist()
        found = {name: self._ready(name) for name in names}
        shifts = {sequence.shift for sequence in found.values()}
        positions = batch.positions if shifts == {0} else batch.positions - self._shifts(batch)
        self._arrays.fill(batch.tokens, positions, batch.outputs)
        if chain:
            self._arrays.give_all(found[names[0]].member)
            self._pending = batch, None
        else:
            branches = _Branches({name: [] for name in names})
            self._pending = batch, branches
            own = {name: one.member for name, one in found.items()}
            branches.members = members_of(batch, own, partial(self._borrow, branches))
            self._arrays.give(branches.members)
        self._decode()
        return self._logits(len(batch.outputs))

    def commit(self, sequence: int, path: Int32s) -> None:
        """Accept the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        assert self._pending is not None
        batch, branches = self._pending
        found = self._sequences[sequence]
        n_before, n_after = len(found.tokens), len(found.tokens) + len(path)
        found.tokens.extend(batch.tokens[path].tolist())
        found.n_held = n_after
        if branches is None:
            if len(path) < len(batch.tokens):
                self._cut(found, n_after)
            self._pending = None
            return
        members = branches.members[path[-1]] if len(path) else [found.member]
        if found.member not in members:
            self._remove(found.member, n_before - found.shift)
            first, last = n_before - found.shift, n_after - found.shift
            self._api.llama_memory_seq_cp(self._opened.memory, members[0], found.member, first, last)
        else:
            self._cut(found, n_after)
        for member in branches.borrowed.pop(sequence):
            self._give_back(member)
        if not branches.borrowed:
            self._pending = None

    def truncate(self, sequence: int, n_cached: int) -> None:
        """Drop a sequence's cached tokens from position n_cached on."""
        self._discard(sequence)
        if (found := self._sequences.get(sequence)) is None:
            return
        del found.tokens[n_cached:]
        if not n_cached:
            self._forget(sequence)
        elif found.n_held > n_cached:
            self._cut(found, n_cached)

    def branch(self, sequence: int, twin: int) -> None:
        """Start an empty sequence with the tokens of another one. Raises DoesNotFit for too many sequences."""
        self._discard(sequence)
        if (found := self._sequences.get(sequence)) is None:
            return
        member = self._take()
        self._api.llama_memory_seq_cp(self._opened.memory, found.member, member, -1, -1)
        self._sequences[twin] = _LlamaSequence(member, list(found.tokens), found.n_held, found.shift)

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading them: copies of a few real ones, at the same positions.

        The cost of a pass depends on the number of cells, not on what they hold.
        """
        self.truncate(sequence, 0)
        if not n_tokens:
            return
        n_read = min(PRETENDED, n_tokens) if not self._opened.is_recurrent else n_tokens
        found = self._ready(sequence)
        found.tokens = [0] * n_read
        self._ready(sequence)
        state = self._state(found.member)
        while len(found.tokens) < n_tokens:
            member = self._take()
            self._set_state(member, state)
            n_new = min(n_read, n_tokens - len(found.tokens))
            self._api.llama_memory_seq_cp(self._opened.memory, member, found.member, 0, n_new)
            self._give_back(member)
            found.tokens += [0] * n_new
        found.shift, found.n_held = n_tokens - n_read, n_tokens

    def save(self, sequence: int) -> bytes:
        """The cached state of a sequence: the number of tokens, the tokens, and llama.cpp's state."""
        self._discard()
        if (found := self._sequences.get(sequence)) is None:
            return b""
        self._ready(sequence)
        tokens = np.array([len(found.tokens), *found.tokens], np.int32)
        return tokens.tobytes() + self._state(found.member)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace the cached state of a sequence. Raises DeviceFailed if llama.cpp does not accept it."""
        self.truncate(sequence, 0)
        if not state:
            return
        n_tokens = int.from_bytes(state[:4], sys.byteorder)
        start = 4 * (1 + n_tokens)
        found = self._ready(sequence)
        try:
            self._set_state(found.member, state[start:])
        except DeviceFailed:
            self.truncate(sequence, 0)
            raise
        found.tokens = np.frombuffer(state[4:start], np.int32).tolist()
        found.n_held = n_tokens

    def close(self) -> None:
        """Free the context and the model; may be called twice."""
        if not self._closed:
            self._closed = True
            self._sequences.clear()
            self._views.clear()
            self._opened.close(self._api)

    def _ready(self, name: int) -> _LlamaSequence:
        """A sequence with all of its tokens in llama.cpp's memory."""
        found = self._sequences.get(name)
        if found is None:
            found = self._sequences[name] = _LlamaSequence(self._take())
        while found.n_held < len(found.tokens):
            part = found.tokens[found.n_held : found.n_held + self.limits.max_tokens]
            order = np.arange(found.n_held, found.n_held + len(part), dtype=np.int32)
            self._arrays.fill(np.array(part, np.int32), order - np.int32(found.shift), order[:0])
            self._arrays.give_all(found.member)
            self._pending = Batch(order, np.full(len(part), name, np.int32), order, order, order[:0]), None
            self._decode()
            self._pending = None
            found.n_held += len(part)
        return found

    def _shifts(self, batch: Batch) -> Int32s:
        return np.array([self._sequences[name].shift for name in batch.sequences.tolist()], np.int32)

    def _borrow(self, branches: _Branches, name: int) -> int:
        """Another llama.cpp sequence, with the contents of one of our sequences."""
        member = self._take()
        branches.borrowed[name].append(member)
        self._api.llama_memory_seq_cp(self._opened.memory, self._sequences[name].member, member, -1, -1)
        return member

    def _decode(self) -> None:
        """Run the arrays' contents on the chosen cores."""
        with self._on_cores():
            failed = self._api.llama_decode(self._opened.context, self._arrays.batch)
        if not failed:
            return
        reason = self._library.errors
        self._library.forget()
        self._discard()
        if failed == ABORTED:
            raise Interrupted
        if failed == NO_ROOM:
            raise DoesNotFit("llama.cpp finds no room in its cache; close other sessions or use a larger context")
        raise DeviceFailed(f"llama.cpp failed in a pass of {self._arrays.batch.n_tokens} tokens ({failed}): {reason}")

    @contextlib.contextmanager
    def _on_cores(self) -> Iterator[None]:
        """Pin the threads that llama.cpp starts to the cores of the calling thread."""
        if sys.platform != "linux" or not self._cores:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _logits(self, n_outputs: int) -> Floats:
        if not n_outputs:
            return np.zeros((0, self.n_vocab), np.float32)
        address = ctypes.addressof(self._api.llama_get_logits(self._opened.context).contents)
        view = self._views.get((address, n_outputs))
        if view is None:
            if len(self._views) > 2 * self.limits.max_outputs:  # llama.cpp moved its buffer
                self._views.clear()
            numbers = (ctypes.c_float * (n_outputs * self.n_vocab)).from_address(address)
            view = np.ctypeslib.as_array(numbers).reshape(n_outputs, self.n_vocab)
            self._views[address, n_outputs] = view
        return view

    def _discard(self, only: int | None = None) -> None:
        """Drop all pending tokens, or those of one sequence."""
        if self._pending is None:
            return
        batch, branches = self._pending
        waiting = {int(batch.sequences[0]): []} if branches is None else branches.borrowed
        for name in list(waiting) if only is None else [only] if only in waiting else []:
            for member in waiting.pop(name):
                self._give_back(member)
            found = self._sequences[name]
            self._cut(found, found.n_held)
            if not found.tokens:
                self._forget(name)
        if not waiting:
            self._pending = None

    def _forget(self, name: int) -> None:
        self._give_back(self._sequences.pop(name).member)

    def _cut(self, found: _LlamaSequence, n_held: int) -> None:
        """Keep the first tokens in llama.cpp's memory, or none if it cannot truncate."""
        found.n_held = n_held
        within = n_held > found.shift or not n_held
        if not within or not self._remove(found.member, n_held - found.shift):
            self._remove(found.member, 0)
            found.n_held = found.shift = 0

    def _remove(self, member: int, first: int) -> bool:
        return bool(self._api.llama_memory_seq_rm(self._opened.memory, member, first or -1, -1))

    def _take(self) -> int:
        if not self._free:
            most = self._opened.n_sequences
            raise DoesNotFit(f"llama.cpp keeps {most} sequences at a time, and all are in use; close other sessions")
        return self._free.pop()

    def _give_back(self, member: int) -> None:
        self._remove(member, 0)
        self._free.append(member)

    def _state(self, member: int) -> bytes:
        api, context = self._api, self._opened.context
        n_bytes = int(api.llama_state_seq_get_size(context, member))
        state = (ctypes.c_uint8 * n_bytes)()
        return bytes(memoryview(state)[: api.llama_state_seq_get_data(context, state, n_bytes, member)])

    def _set_state(self, member: int, state: bytes) -> None:
        numbers = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        self._library.forget()
        if not self._api.llama_state_seq_set_data(self._opened.context, numbers, len(state), member):
            raise DeviceFailed(f"llama.cpp does not accept the saved state: {self._library.errors}")


def _c_library() -> Any:
    return ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
