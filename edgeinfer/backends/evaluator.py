"""The seam of programs that run whole models by themselves: another way than devices to evaluate a `Batch`.

`Evaluator`: tokens in, logits out, against a KV memory of its own; `EvaluatorKind`: its entry in the registry of
devices. Knows no text and no model; accounting of positions and pages is the engine's (`engine.run.foreign`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeinfer.backends.base import DeviceOptions, Footprint, Limits
from edgeinfer.backends.stopping import StopFlag
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.text import Vocabulary
from edgeinfer.steps import Progress


class ProgramText(Protocol):
    """The tokenizer of a program, for models whose tokenizer edgeinfer does not have."""

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
    """A program that runs whole models by itself, with a KV memory of its own: tokens in, logits out.

    Sequences are numbers that its user gives; one that was not heard of is empty. Its user counts positions and pages
    and gives batches that fit `limits`. One call at a time.
    """

    @property
    def name(self) -> str:
        """The device's name: the key, with its target."""
        ...

    @property
    def version(self) -> str:
        """Of the program; saved states are for the same one."""
        ...

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def limits(self) -> Limits:
        """What it was opened for, or less where it can do less."""
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
        """What its user should know."""
        ...

    @property
    def text(self) -> ProgramText:
        """The program's own tokenizer."""
        ...

    def use(self, most_workers: int) -> None:
        """Use no more workers from the next pass on."""
        ...

    def heed(self, stopped: StopFlag | None) -> None:
        """Break off passes to come as soon as this is set."""
        ...

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call; the tokens stay pending.

        Raises DoesNotFit for too many sequences, DeviceFailed, Interrupted. Nothing is pending then.
        """
        ...

    def commit(self, sequence: int, path: Int32s) -> None:
        """Keep the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        ...

    def truncate(self, sequence: int, n_cached: int) -> None:
        """Forget everything of a sequence from position n_cached on."""
        ...

    def branch(self, sequence: int, twin: int) -> None:
        """Let an empty sequence begin with the same tokens. Raises DoesNotFit for too many sequences."""
        ...

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached that nobody read, so that passes behind them cost what they would."""
        ...

    def save(self, sequence: int) -> bytes:
        """What is cached of a sequence, for `restore` by the same version with the same model and kv."""
        ...

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace what is cached of a sequence. Raises DeviceFailed where the state is not accepted."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EvaluatorKind:
    """A registry entry: how to open a model's file with a program that runs whole models.

    `open` raises DeviceUnavailable where the program cannot run, UnsupportedModel for a file that it cannot read.
    `module`: what must be importable, and `install`: how to get it.
    """

    key: str
    summary: str
    module: str
    install: str
    open: Callable[[Path, Limits, DeviceOptions, Progress], Evaluator]
    footprint: Callable[[ModelSpec, Mapping[str, TensorInfo], Limits], Footprint]

    @property
    def installed(self) -> bool:
        """Whether its package can be imported; imports nothing."""
        return importlib.util.find_spec(self.module) is not None
