"""Golden texts with rows of numbers among their tokens, and evaluating them by batches on any executor.

In: files of `data/rows`, made by `scripts/make_row_goldens.py`. Out: open executors, logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, Limits
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import Batch, InputRows, causal_spans
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, Known

NAMES = sorted(path.stem for path in (DATA / "rows").glob("*.npz"))
AXED = [name for name in NAMES if not name.startswith("gemma")]
WHOLE = [name for name in NAMES if name.endswith("-whole")]
"""Texts whose images are read in one pass, as their rows see each other."""
LIMITS = Limits(n_context=128, n_pages=12, max_tokens=96, max_outputs=96)


@dataclass(frozen=True, slots=True)
class RowText:
    """Tokens, -1 where a row is, the rows, and axes int32[T, 3] of models that have several.

    `images`: the first token and the one after the last of each image whose rows see each other.
    """

    tokens: NDArray[np.int32]
    rows: NDArray[np.float32]
    axes: NDArray[np.int32] | None
    images: tuple[tuple[int, int], ...] = ()

    def part(self, first: int, stop: int) -> RowText:
        """The tokens from one to before another."""
        before, after = (int((self.tokens[:end] < 0).sum()) for end in (first, stop))
        axes = None if self.axes is None else self.axes[first:stop]
        images = tuple(
            (max(0, begin - first), end - first) for begin, end in self.images if begin < stop and end > first
        )
        return RowText(self.tokens[first:stop], self.rows[before:after], axes, images)

    def batch(self, sequence: int, n_cached: int) -> Batch:
        """A batch of all of it, with all logits."""
        order = np.arange(len(self.tokens), dtype=np.int32)
        rows = InputRows(self.rows) if len(self.rows) else None
        positions, spans = order + np.int32(n_cached), None
        if self.images:
            spans = causal_spans(positions)
            for first, stop in self.images:
                spans[first:stop, 1] = positions[stop - 1]
        own = np.full(len(order), sequence, np.int32), positions, order - 1
        return Batch(self.tokens, *own, order, rows, self.axes, spans=spans)

    def between(self, cuts: Sequence[int]) -> list[int]:
        """Those of places to cut the text at that are not within an image which must be read in one pass."""
        return [cut for cut in cuts if not any(first < cut < stop for first, stop in self.images)]


@dataclass(frozen=True, slots=True)
class RowGolden(Known):
    """A model file and what transformers computes for a text."""

    name: str
    model: Path
    text: RowText
    columns: NDArray[np.int32]
    logits: NDArray[np.float32]
    last: NDArray[np.float32]

    @classmethod
    def read(cls, name: str) -> RowGolden:
        with np.load(DATA / "rows" / f"{name}.npz") as held:
            axes = held["axes"] if len(held["axes"]) else None
            images = tuple((int(first), int(stop)) for first, stop in held["images"]) if "images" in held else ()
            text = RowText(held["tokens"], held["rows"], axes, images)
            return cls(name, DATA / str(held["model"]), text, held["columns"], held["logits"], held["last"])


@contextmanager
def executor(device: Device, path: Path, *, rows: bool = True, limits: Limits = LIMITS) -> Iterator[Executor]:
    """A model on a device, which stays open."""
    with open_model(path, limits.n_context, rows=rows) as model:
        lane = device.compile(model.spec, model.file, limits)
        with Executor(device, lane, limits, "golden", is_guest=True, inputs=model.spec.inputs) as found:
            yield found


def feed(evaluator: SequenceEvaluator, sequence: int, text: RowText) -> NDArray[np.float32]:
    """Logits float32[T, V] of the next tokens of a sequence, which are kept."""
    batch = text.batch(sequence, evaluator.n_cached(sequence))
    logits = evaluator.evaluate(batch).copy()
    evaluator.commit(sequence, batch.outputs)
    return logits


def read(evaluator: SequenceEvaluator, text: RowText, cuts: Sequence[int] = ()) -> NDArray[np.float32]:
    """Logits of a text in parts, in a sequence of its own."""
    sequence, ends = evaluator.create(), [0, *text.between(cuts), len(text.tokens)]
    parts = [feed(evaluator, sequence, text.part(*each)) for each in pairwise(ends)]
    evaluator.free(sequence)
    return np.concatenate(parts)
