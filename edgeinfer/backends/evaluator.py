"""The interface of programs that run whole models themselves, and the flag that aborts a pass of any kind.

`Evaluator`: tokens in, logits out, with a KV memory of its own; `EvaluatorKind`: its entry in the device registry.
`StopFlag`: set by any thread, read by native code without calling Python. Independent of text and models; the engine
tracks positions and pages (`engine.run.foreign`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeinfer.backends.base import USUAL_KV, DeviceOptions, Footprint, Limits
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.text import Vocabulary
from edgeinfer.settings import KVKind
from edgeinfer.steps import Progress


class Interrupted(Exception):
    """A pass was aborted because its flag was set; none of its results are kept."""


class StopFlag(threading.Event):
    """An event for a single answer; it is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Request a stop, from any thread."""
        self._text[0] = b"\1"
        super().set()

    @property
    def address(self) -> int:
        """Address of a C string: empty until the flag is set, then one character long."""
        return ctypes.addressof(self._text)


class ProgramText(Protocol):
    """A program's own tokenizer, for models whose tokenizer edgeinfer does not support."""

    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary as the program reads it."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text by the program's own tokenizer, as `models.text.Tokenizer.encode`."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        ...


class Evaluator(Protocol):
    """A program that runs whole models itself, with its own KV memory: tokens in, logits out.

    The caller numbers the sequences; a new number is an empty sequence. The caller tracks positions and pages and
    passes batches that fit `limits`. One call at a time.
    """

    @property
    def name(self) -> str:
        """The device's name: the key, with its target."""
        ...

    @property
    def version(self) -> str:
        """The program's version; saved states are valid only for the same version."""
        ...

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def limits(self) -> Limits:
        """The limits it was opened with, reduced if it supports less."""
        ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_context_trained(self) -> int: ...

    @property
    def n_workers(self) -> int: ...

    @property
    def resident_bytes(self) -> int: ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should be told."""
        ...

    @property
    def text(self) -> ProgramText:
        """The program's own tokenizer."""
        ...

    def use(self, most_workers: int) -> None:
        """Use at most this many workers from the next pass on."""
        ...

    def heed(self, stopped: StopFlag | None) -> None:
        """Abort later passes as soon as this flag is set."""
        ...

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call. The tokens stay pending.

        Raises DoesNotFit for too many sequences, DeviceFailed, Interrupted. Nothing is pending then.
        """
        ...

    def commit(self, sequence: int, path: Int32s) -> None:
        """Accept the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        ...

    def truncate(self, sequence: int, n_cached: int) -> None:
        """Drop a sequence's cached tokens from position n_cached on."""
        ...

    def branch(self, sequence: int, twin: int) -> None:
        """Start an empty sequence with the tokens of another one. Raises DoesNotFit for too many sequences."""
        ...

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading them, so that later passes cost what they would after them."""
        ...

    def save(self, sequence: int) -> bytes:
        """The cached state of a sequence, for `restore` by the same version with the same model and kv."""
        ...

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace the cached state of a sequence. Raises DeviceFailed if the state is not accepted."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EvaluatorKind:
    """A registry entry: how to open a model file with a program that runs whole models.

    `open` raises DeviceUnavailable if the program cannot run, UnsupportedModel for a file it cannot read. `module`: the
    package that must be importable; `install`: how to get it; `kv_kinds`: the KV caches that it can have.
    """

    key: str
    summary: str
    module: str
    install: str
    open: Callable[[Path, Limits, DeviceOptions, Progress], Evaluator]
    footprint: Callable[[ModelSpec, Mapping[str, TensorInfo], Limits], Footprint]
    kv_kinds: tuple[KVKind, ...] = USUAL_KV

    @property
    def installed(self) -> bool:
        """Whether its package can be imported; imports nothing."""
        return importlib.util.find_spec(self.module) is not None
