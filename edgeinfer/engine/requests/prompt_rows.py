"""Prompts that mix token ids with rows of numbers, the output of an image or sound encoder.

In: ids and `PromptRows`, in order. Out: a `MixedPrompt`: the text in the form in which it is compared with the cache,
where every row has a negative number as its name, and the rows and positions of any part of it. A name is made of a
hash of all the numbers that came with the row, so equal names mean equal rows. Knows no encoder, no cache and no
device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.graph.step import AXES, Batch, Floats, InputRows, Inputs, Int32s, causal_spans, check_axes, same_axes

ROW = -1
"""Stands in batches for a token that is given as a row."""
NUMBER_BITS = 32
"""Bits of a name that say which of the rows it is; HASH_BITS more are the hash."""
HASH_BITS = 128


@dataclass(frozen=True, slots=True, eq=False, init=False)
class PromptRows:
    """Rows in a prompt: values float32[N, D], as wide as the model, in place of N tokens.

    `axes`, int32[N, 3]: temporal, height and width position of each row, counted from where the rows begin; None: the
    rows follow one another like tokens. What comes after the rows continues after the largest position. Models with one
    position per token accept only None. `whole`: the rows see each other, as those of an image do in some models
    (`Inputs.most_whole`), and are read in one pass.
    """

    values: Floats
    axes: Int32s | None
    whole: bool
    first_name: int = field(repr=False)

    def __init__(
        self, values: ArrayLike, axes: ArrayLike | None = None, *, whole: bool = False, first_name: int | None = None
    ) -> None:
        """`first_name`: the name of the first row, below 0; the others count down. None: it is made of a hash of all.

        Raises BadSetting for numbers that cannot be rows.
        """
        rows = _rows(values)
        if rows.ndim != 2 or not len(rows):
            raise BadSetting(f"rows of shape {rows.shape} are none: give one row of numbers for each token")
        if not np.isfinite(rows).all():
            raise BadSetting("rows have numbers that are not finite")
        positions = None if axes is None else _axes(axes, len(rows))
        if first_name is None:
            digest = hashlib.blake2b(rows.tobytes(), digest_size=16, key=str(rows.shape).encode())
            if positions is not None:
                digest.update(positions.tobytes())
            if whole:
                digest.update(b"whole")
            first_name = -1 - (int.from_bytes(digest.digest(), "little") << NUMBER_BITS)
        for name, value in (("values", rows), ("axes", positions), ("whole", whole), ("first_name", first_name)):
            object.__setattr__(self, name, value)

    @property
    def names(self) -> range:
        """The name of each row, a negative number."""
        return range(self.first_name, self.first_name - len(self.values), -1)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True)
class LateRows:
    """Rows that are computed when they are read, if they are: `made` returns float32[N, width].

    `names`: N numbers below zero, counting down, that say what the rows are made of. The rest is as for `PromptRows`.
    """

    names: range
    width: int
    made: Callable[[], Floats]
    axes: Int32s | None = None
    whole: bool = False

    @property
    def values(self) -> Floats:
        """The rows."""
        return self.made()


def _rows(values: ArrayLike) -> Floats:
    given = _array(values, "rows")
    if given.dtype.kind not in "fiu":
        raise BadSetting(f"rows of {given.dtype} are none: give numbers")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite here, and are refused
        return np.ascontiguousarray(given, np.float32)


def _array(given: ArrayLike, what: str) -> NDArray[Any]:
    try:
        return np.ascontiguousarray(given)
    except ValueError:
        raise BadSetting(f"{what} of different lengths are no array: give as many numbers for each token") from None


def _axes(axes: ArrayLike, n_rows: int) -> Int32s:
    found = _array(axes, "axes")
    if found.shape != (n_rows, AXES) or not np.issubdtype(found.dtype, np.integer):
        raise BadSetting(f"axes of shape {found.shape} and type {found.dtype}: give three whole numbers for each row")
    if found.min() < 0 or found.max() >= 1 << 31:
        raise BadSetting(f"axes from {found.min()} to {found.max()}: they count from 0, where the rows begin")
    return found.astype(np.int32)


Piece = int | PromptRows
"""A part of a prompt: a token id, or rows."""


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """A prompt with rows.

    tokens  ids, and names of rows
    rows    the rows, in order, each with the position of its first one
    axes    int32[T, 3]    positions of the tokens, for models with three per token; None for others
    shift   added to the position of a token after the prompt to give its axes, which are all the same
    whole   positions of rows that see each other, and so must be read in one pass
    """

    tokens: tuple[int, ...]
    rows: tuple[tuple[int, PromptRows | LateRows], ...]
    axes: Int32s | None
    shift: int
    whole: tuple[range, ...] = ()

    @classmethod
    def of(cls, pieces: Sequence[Piece | LateRows], inputs: Inputs, n_context: int) -> MixedPrompt:
        """Build a prompt for a model.

        Raises BadSetting, UnsupportedModel or ContextOverflow if the model cannot take it.
        """
        tokens: list[int] = []
        axes: list[Int32s] = []
        whole: list[range] = []
        rows: list[tuple[int, PromptRows | LateRows]] = []
        following = 0
        for piece in pieces:
            if isinstance(piece, PromptRows | LateRows):
                own = _checked(piece, inputs)
                if piece.whole:
                    whole.append(range(len(tokens), len(tokens) + len(piece.names)))
                rows.append((len(tokens), piece))
                tokens += piece.names
                axes.append(own + np.int32(following))
                following += int(own.max()) + 1
            else:
                tokens.append(piece)
                axes.append(np.full((1, AXES), following, np.int32))
                following += 1
        found = np.concatenate(axes)
        check_axes(0, int(found.max()), n_context)
        axes_of_all = found if inputs.axes else None
        return cls(tuple(tokens), tuple(rows), axes_of_all, following - len(tokens), tuple(whole))

    @property
    def ids(self) -> list[int]:
        """The token ids of the prompt, without its rows."""
        return [token for token in self.tokens if token >= 0]

    def completed(self, batch: Batch, named: Sequence[int], stopped: StopFlag | None = None) -> Batch:
        """Add rows, axes and spans to a batch of this text's tokens. `named`: the batch's tokens as ids and names.

        Raises Interrupted if `stopped` is set before rows that come late are computed, each time.
        """
        if self.axes is not None:
            batch = replace(batch, axes=self._axes_at(batch.positions))
        names = tuple(token for token in named if token < 0)
        if not names:
            return batch
        batch = replace(batch, spans=self._spans_at(batch.positions))
        values = self._values(int(batch.positions[0]), len(batch.tokens), stopped)
        return replace(batch, rows=InputRows(values, names))

    def _values(self, first: int, n_tokens: int, stopped: StopFlag | None) -> Floats:
        """The rows among so many tokens from position `first` on, which are computed now if they come late."""
        stop, found = first + n_tokens, []
        for start, piece in self.rows:
            if start < stop and start + len(piece.names) > first:
                if stopped is not None and stopped.is_set():
                    raise Interrupted
                found.append(piece.values[max(0, first - start) : stop - start])
        return np.concatenate(found)

    def least_together(self, first: int) -> int:
        """How many tokens from position `first` on must be read in one pass: the rest of such rows, or one."""
        return next((rows.stop - first for rows in self.whole if first in rows), 1)

    def n_together(self, first: int, n_tokens: int) -> int:
        """How many of `n_tokens` from position `first` on a pass should read: not a part of rows that see each other.

        More than that if such rows begin at `first`.
        """
        stop = first + max(n_tokens, self.least_together(first))
        return next((rows.start for rows in self.whole if rows.start < stop < rows.stop), stop) - first

    def _spans_at(self, positions: Int32s) -> Int32s | None:
        found, first, stop = causal_spans(positions), int(positions[0]), int(positions[-1]) + 1
        for rows in self.whole:
            found[max(0, rows.start - first) : max(0, rows.stop - first), 1] = rows.stop - 1
        return found if any(rows.start < stop and rows.stop > first for rows in self.whole) else None

    def _axes_at(self, positions: Int32s) -> Int32s:
        assert self.axes is not None
        found = same_axes(positions + np.int32(self.shift))
        inside = np.flatnonzero(positions < len(self.axes))
        found[inside] = self.axes[positions[inside]]
        return found


def _checked(piece: PromptRows | LateRows, inputs: Inputs) -> Int32s:
    """The axes of rows, counted from where the rows begin. Raises as `MixedPrompt.of`."""
    n_rows, width = len(piece.names), piece.width
    if not inputs.row_width:
        raise UnsupportedModel(
            "this model was loaded for token ids alone and cannot be given rows of numbers; load it with rows=True, "
            "on the cpu"
        )
    if width != inputs.row_width:
        raise BadSetting(f"rows of {width} numbers: this model's have {inputs.row_width}")
    if piece.whole and not inputs.spans:
        raise UnsupportedModel("this model's rows see only what comes before them: leave whole out")
    if piece.whole and n_rows > inputs.most_whole:
        raise BadSetting(f"{n_rows} rows that see each other: this model reads at most {inputs.most_whole} in one pass")
    if piece.axes is not None and not inputs.axes:
        raise UnsupportedModel("this model has one position a token and cannot be given three: leave axes out")
    return same_axes(np.arange(n_rows, dtype=np.int32)) if piece.axes is None else piece.axes


def n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two lists or two tuples; compares slices for speed."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
