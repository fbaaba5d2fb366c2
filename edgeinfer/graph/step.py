"""What one pass evaluates, and where it is stored in the KV cache; what a model accepts besides token ids.

KV memory is divided into pages of PAGE positions; a slot is page * PAGE + offset. A token below zero stands for a row
of numbers in place of an id, such as an image encoder produces; models with multi-axis rotary embedding have three
positions per token: temporal, height and width. Independent of encoders and of how texts are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import ContextOverflow, UnsupportedModel

PAGE = 64
"""Positions per KV page; also the fixed chunk of attention, so that sums never depend on the batch."""

AXES = 3
"""Temporal, height and width."""

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows that replace token ids of a batch: the n-th row belongs to the batch's n-th token below zero.

    values  float32[N, D]
    names   N numbers below zero that identify rows when texts are compared; () if they are not compared
    """

    values: Floats
    names: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens to evaluate in one pass; parents come before children.

    tokens     int32[T]  ids; below zero where `rows` has a row of numbers instead
    sequences  int32[T]  id of the sequence each token continues
    positions  int32[T]  position of each token in its sequence
    parents    int32[T]  index in this batch of the preceding token, or -1: the last cached token of its sequence
    outputs    int32[O]  indices of the tokens whose logits are requested, increasing
    rows       rows of the tokens below zero, in order; None if all are ids
    axes       int32[T, 3]  temporal, height and width of each token for a multi-axis rotary embedding; None: its
               position along each axis
    scales     float32[T, A]  how much each LoRA adapter adds to each token; None: as the model was loaded
    hidden     float32[T, W]  hidden rows of another model that come with the tokens, for heads that read them
    budgets    int32[T]  about how many cached positions each token sees in layers without a window (`graph.budget`), 0:
               all; None: all
    turn_starts  int32[T]  where the turn of each token's chat begins, 0: unknown; None: unknown
    blocks     int32[N]     the first token of each whole block of a prompt: PAGE tokens of one sequence, in a chain, at
               positions from a multiple of PAGE on; None: no blocks
    spans      int32[T, 2]  the first and the last position each token sees in attention that heeds it, so that rows of
               an image see each other; None: none stated. Along a chain neither falls; what is after a token's own
               position is in this pass
    """

    tokens: Int32s
    sequences: Int32s
    positions: Int32s
    parents: Int32s
    outputs: Int32s
    rows: InputRows | None = None
    axes: Int32s | None = None
    scales: Floats | None = None
    hidden: Floats | None = None
    budgets: Int32s | None = None
    turn_starts: Int32s | None = None
    blocks: Int32s | None = None
    spans: Int32s | None = None

    def named_tokens(self) -> list[int]:
        """The tokens in the form used to compare texts: ids, and the names of rows."""
        tokens: list[int] = self.tokens.tolist()
        if self.rows is not None:
            names = iter(self.rows.names)
            return [next(names) if token < 0 else token for token in tokens]
        return tokens

    def within(self, budget: int, n_full: int = 0, turn_start: int = 0) -> Batch:
        """The same batch with a budget, unless it is 0, for all tokens but the first `n_full`.

        Tokens that see everything within it have none: a pass of such tokens is one without budgets.
        """
        n_tokens, n_covered = len(self.tokens), -(-budget // PAGE) * PAGE
        if not budget or n_full >= n_tokens or int(self.positions[n_full:].max()) < n_covered:
            return self
        budgets = np.where(self.positions < n_covered, 0, budget).astype(np.int32)
        budgets[:n_full] = 0
        starts = np.full(n_tokens, turn_start, np.int32) if turn_start else None
        return replace(self, budgets=budgets, turn_starts=starts)

    def rows_of(self, members: NDArray[np.integer[Any]]) -> InputRows | None:
        """The rows of the tokens at these increasing indices; None if they have none."""
        if self.rows is None:
            return None
        numbers = np.cumsum(self.tokens < 0) - 1
        chosen = numbers[members[self.tokens[members] < 0]]
        names = tuple(self.rows.names[number] for number in chosen.tolist()) if self.rows.names else ()
        return InputRows(self.rows.values[chosen], names) if len(chosen) else None


def joined_rows(batches: Sequence[Batch]) -> InputRows | None:
    """The rows of several batches, concatenated; None if no batch has any."""
    found = [batch.rows for batch in batches if batch.rows is not None]
    if not found:
        return None
    return InputRows(
        np.concatenate([rows.values for rows in found]), tuple(name for rows in found for name in rows.names)
    )


def joined_axes(batches: Sequence[Batch]) -> Int32s | None:
    """The axes of several batches, concatenated; None if no batch has any."""
    if all(batch.axes is None for batch in batches):
        return None
    return np.concatenate([same_axes(batch.positions) if batch.axes is None else batch.axes for batch in batches])


def joined_scales(batches: Sequence[Batch]) -> Floats | None:
    """The scales of several batches, concatenated; None if no batch states any. Raises ValueError if only some do."""
    stated = [batch.scales for batch in batches if batch.scales is not None]
    if stated and len(stated) < len(batches):
        raise ValueError("some batches of a pass state scales of LoRA adapters and others do not")
    return np.concatenate(stated) if stated else None


def joined_hidden(batches: Sequence[Batch]) -> Floats | None:
    """The hidden rows of several batches, concatenated; None if no batch has any."""
    found = [batch.hidden for batch in batches if batch.hidden is not None]
    return np.concatenate(found) if found else None


def joined_numbers(batches: Sequence[Batch], of: Callable[[Batch], Int32s | None]) -> Int32s | None:
    """What some of several batches state of each token, concatenated, 0 for the others; None if no batch states it."""
    stated = [of(batch) for batch in batches]
    if all(each is None for each in stated):
        return None
    parts = zip(batches, stated, strict=True)
    return np.concatenate([np.zeros_like(batch.positions) if each is None else each for batch, each in parts])


def joined_spans(batches: Sequence[Batch]) -> Int32s | None:
    """The spans of several batches, concatenated, all up to a token itself for the others; None if none has any."""
    if all(batch.spans is None for batch in batches):
        return None
    return np.concatenate([causal_spans(batch.positions) if batch.spans is None else batch.spans for batch in batches])


def causal_spans(positions: Int32s) -> Int32s:
    """Spans of tokens that see all positions up to their own: int32[T, 2]."""
    return np.stack([np.zeros_like(positions), positions], axis=1)


def joined_blocks(batches: Sequence[Batch]) -> Int32s | None:
    """The blocks of several batches that are evaluated one after the other; None if no batch has any."""
    firsts = np.cumsum([0, *(len(batch.tokens) for batch in batches)], dtype=np.int32)
    found = [batch.blocks + first for batch, first in zip(batches, firsts, strict=False) if batch.blocks is not None]
    return np.concatenate(found) if found else None


def whole_blocks(first_position: int, n_tokens: int) -> Int32s | None:
    """`Batch.blocks` of a chain of tokens from a position on; None if it has no whole block."""
    found = np.arange(-first_position % PAGE, n_tokens - PAGE + 1, PAGE, dtype=np.int32)
    return found if len(found) else None


def same_axes(positions: Int32s) -> Int32s:
    """Each position repeated for all axes: int32[T, 3]."""
    return np.repeat(positions[:, None], AXES, axis=1)


@dataclass(frozen=True, slots=True)
class StateStep:
    """Where the states of a pass's sequences are stored; rows are those of `Step.tables`.

    firsts    int32[B]     the first token of each row; the row's other tokens follow it
    loads     int32[B]     slot of the state each row starts from, -1: zeros
    settled   int32[B]     how many leading tokens of each row are a chain and belong to the text
    saves     int32[N, 3]  (row, n, slot): the state after the first n settled tokens of a row is written to a slot
    """

    firsts: Int32s
    loads: Int32s
    settled: Int32s
    saves: Int32s


@dataclass(frozen=True, slots=True)
class Step:
    """A batch with its place in KV memory.

    rows    int32[T]     row of `tables` for each token's sequence
    slots   int32[T]     KV slot each token's key and value are written to
    starts  int32[T]     positions below it are read through `tables`; from it on come the token's ancestors in the
            batch and the token itself
    tables  int32[B, P]  page of each PAGE positions of a sequence; -1 where none is needed
    states  where states are stored, for models that have them
    new_pages  int32[N]: complete pages that a budget may choose among and whose keys were not summarised yet
    """

    batch: Batch
    rows: Int32s
    slots: Int32s
    starts: Int32s
    tables: Int32s
    states: StateStep | None = None
    new_pages: Int32s | None = None

    def with_states(self, states: StateStep) -> Step:
        """The same step with this place for states."""
        return replace(self, states=states)

    def with_new_pages(self, pages: Int32s) -> Step:
        """The same step with these pages to summarise."""
        return replace(self, new_pages=pages)

    def context_slots(self, token: int) -> NDArray[np.int64]:
        """KV slots a token attends to, by position: cached ones through the table, then its ancestors and itself."""
        start = int(self.starts[token])
        positions = np.arange(start)
        cached = self.tables[self.rows[token]].astype(np.int64)[positions // PAGE] * PAGE + positions % PAGE
        path: list[int] = []
        while token >= 0:
            path.append(int(self.slots[token]))
            token = int(self.batch.parents[token])
        return np.concatenate([cached, np.array(path[::-1], np.int64)])


def join(batches: Sequence[Batch]) -> Batch:
    """The batches of several sequences as one batch, one after the other."""
    if len(batches) == 1:
        return batches[0]
    firsts = np.cumsum([0, *(len(batch.tokens) for batch in batches)], dtype=np.int32)
    places = list(zip(batches, firsts, strict=False))
    return Batch(
        tokens=np.concatenate([batch.tokens for batch in batches]),
        sequences=np.concatenate([batch.sequences for batch in batches]),
        positions=np.concatenate([batch.positions for batch in batches]),
        parents=np.concatenate([np.where(batch.parents < 0, -1, batch.parents + first) for batch, first in places]),
        outputs=np.concatenate([batch.outputs + first for batch, first in places]),
        rows=joined_rows(batches),
        axes=joined_axes(batches),
        scales=joined_scales(batches),
        hidden=joined_hidden(batches),
        budgets=joined_numbers(batches, attrgetter("budgets")),
        turn_starts=joined_numbers(batches, attrgetter("turn_starts")),
        blocks=joined_blocks(batches),
        spans=joined_spans(batches),
    )


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model was opened for besides token ids.

    `row_width`: width of input rows, 0 for token ids only. `axes`: whether it reads three positions per token.
    `scales`: of its LoRA adapters, in passes that state none; () if passes cannot state any. `hidden_width`: width of
    the hidden rows that come with its tokens, 0 if it reads none. `budgets`: whether passes may state budgets. `spans`:
    whether they may state spans. `most_whole`: most rows of an image that see each other, 0 if none do.
    """

    row_width: int = 0
    axes: bool = False
    scales: tuple[float, ...] = ()
    hidden_width: int = 0
    budgets: bool = False
    spans: bool = False
    most_whole: int = 0

    def check(self, batch: Batch, n_context: int) -> None:
        """Raises UnsupportedModel, ContextOverflow or ValueError if a batch has invalid rows, axes, scales or spans."""
        if batch.rows is not None:
            if not self.row_width:
                raise UnsupportedModel(
                    "this model was opened for token ids alone and cannot be given rows of numbers; load it on the "
                    "cpu with rows=True"
                )
            shape = int(np.count_nonzero(batch.tokens < 0)), self.row_width
            if batch.rows.values.shape != shape:
                raise ValueError(f"rows of shape {batch.rows.values.shape} for {shape[0]} tokens of width {shape[1]}")
        if batch.axes is not None:
            if not self.axes:
                raise UnsupportedModel("this model, as it was opened, has one position a token and cannot read three")
            if batch.axes.shape != (len(batch.tokens), AXES):
                raise ValueError(f"axes of shape {batch.axes.shape} for {len(batch.tokens)} tokens")
            check_axes(int(batch.axes.min(initial=0)), int(batch.axes.max(initial=0)), n_context)
        if batch.scales is not None:
            if not self.scales:
                raise UnsupportedModel("this model, as it was opened, adds its LoRA adapters at one scale alone")
            if batch.scales.shape != (len(batch.tokens), len(self.scales)):
                raise ValueError(f"scales of shape {batch.scales.shape} for {len(batch.tokens)} tokens")
        if batch.budgets is not None:
            if not self.budgets:
                raise UnsupportedModel(
                    "this model, as it was opened, attends to all that is cached; load it on the cpu with approx kv=N"
                )
            if batch.budgets.shape != batch.tokens.shape:
                raise ValueError(f"budgets of shape {batch.budgets.shape} for {len(batch.tokens)} tokens")
        if batch.spans is not None:
            if not self.spans:
                raise UnsupportedModel("this model, as it was opened, has no attention that sees later positions")
            check_spans(batch)
        hidden = () if batch.hidden is None else batch.hidden.shape
        if hidden != ((len(batch.tokens), self.hidden_width) if self.hidden_width else ()):
            raise ValueError(f"hidden rows of shape {hidden} for {len(batch.tokens)} tokens, {self.hidden_width} wide")


def check_axes(lowest: int, highest: int, n_context: int) -> None:
    """Raises ContextOverflow if a position is beyond the rotary tables."""
    if lowest < 0 or highest >= n_context:
        raise ContextOverflow(
            f"positions from {lowest} to {highest} along an axis are not all within the context of {n_context}; "
            "load the model with a larger context (--ctx, n_context)"
        )


def check_spans(batch: Batch) -> None:
    """Raises ValueError for spans that are not as `Batch.spans` says."""
    positions, n_tokens = batch.positions, len(batch.tokens)
    if batch.spans is None or batch.spans.shape != (n_tokens, 2):
        raise ValueError(f"spans of another shape than ({n_tokens}, 2)")
    first, last = batch.spans.T
    if np.any((first < 0) | (first > positions) | (last < positions)):
        raise ValueError("spans that do not begin at a position from 0 on and contain their token")
    follows = batch.parents[1:] == np.arange(n_tokens - 1)
    if np.any(follows & ((np.diff(first) < 0) | (np.diff(last) < 0))):
        raise ValueError("spans that fall along a chain of tokens")
    for sequence in np.unique(batch.sequences[last > positions]):
        own = np.flatnonzero(batch.sequences == sequence)
        if np.any(np.diff(own) != 1) or not follows[own[:-1]].all() or last[own].max() > positions[own[-1]]:
            raise ValueError("tokens that see later positions which are not all in a chain of this pass")


IDS_ONLY = Inputs()
