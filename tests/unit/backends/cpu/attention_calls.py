"""Running the attention kernels on pages of random keys and values, and what they should give.

In: steps (chains, trees, several sequences). Out: float32[T, heads, width] by either way of sharing the work, and the
same by plain softmax in float64. Slots that no token may look at hold not-a-number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.padding import CHUNK, padded
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, attention_scratch_bytes
from edgeinfer.backends.cpu.layout.step_records import STEP
from edgeinfer.backends.cpu.layout.summaries import summarised_layers
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.meanings import FORMS, rotated, round_cached, round_numbers, round_queries
from edgeinfer.graph.block_choice import SAMPLED, n_chosen
from edgeinfer.graph.budget import recent_and_best, unseen_chunks
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, UNTOUCHED, call, same_bits

N_PAGES = 34
"""More than one bank, in each half."""
LONGEST = 8 * PAGE
MOST_TOKENS = 64
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an attention op."""

    heads: int
    kv_heads: int
    width: int
    window: int | None = None
    cap: float = 0.0
    has_sinks: bool = False
    values: int | None = None
    """Width of values, where it is another one than that of queries and keys."""
    chunked: bool = False

    @property
    def value_width(self) -> int:
        return self.width if self.values is None else self.values

    @property
    def sinks(self) -> Floats | None:
        """A score for each head, some of them above all others."""
        return np.linspace(-4, 12, self.heads).astype(np.float32) if self.has_sinks else None

    @property
    def repeats(self) -> int:
        return self.heads // self.kv_heads

    @property
    def tile_tokens(self) -> int:
        return max(1, 16 // self.repeats)


@cache
def numbers(heads: int, kv_heads: int, width: int, value_width: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Random keys and values of all slots, and queries of all positions: not to be written to, for many share them."""
    random, n_slots = np.random.default_rng(seed), N_PAGES * PAGE
    keys, values = (random.standard_normal((n_slots, kv_heads, each), np.float32) for each in (width, value_width))
    found = keys, values, random.standard_normal((LONGEST, heads, width), np.float32) * 3
    for each in found:
        each.flags.writeable = False
    return found


class Pages:
    """Keys and values of all slots, in the kernels' layout; queries are a function of the position alone."""

    def __init__(self, library: KernelLibrary, shape: Shape, kind: KVKind = "f16", seed: int = 0) -> None:
        self._library, self.shape = library, shape
        self.pool = KVPool(PageLayout(kind, shape.width, shape.value_width), N_PAGES, shape.kv_heads)
        keys, values, self._queries = numbers(shape.heads, shape.kv_heads, shape.width, shape.value_width, seed)
        self.fill(keys, values)

    def queries(self, step: Step) -> Floats:
        """float32[T, heads, width]."""
        return self._queries[step.batch.positions]

    def fill(self, keys: Floats, values: Floats) -> None:
        """Store keys and values [slots, kv_heads, width of each] in all slots, by the store kernel."""
        self.keys, self.values = keys.astype(np.float32), values.astype(np.float32)
        slots, rows = np.arange(len(keys), dtype=np.int32), []
        for given in (self.keys, self.values):
            row = aligned((*given.shape[:2], padded(given.shape[2])), np.float32)
            row[..., : given.shape[2]] = given
            rows.append(row)
        step = np.zeros(1, STEP)
        step["n_tokens"], step["slots"] = len(slots), address(slots)
        call(
            self._library,
            catalogue.store_kv(self.pool.layout),
            key=rows[0],
            key_stride=rows[0].strides[0],
            key_head_stride=rows[0].strides[1],
            value=rows[1],
            value_stride=rows[1].strides[0],
            value_head_stride=rows[1].strides[1],
            kv_heads=self.shape.kv_heads,
            key_width=self.shape.width,
            value_width=self.shape.value_width,
            keys=self.pool.keys,
            values=self.pool.values,
            bank_pages=self.pool.bank_pages,
            bank_bytes=self.pool.bank_bytes,
            places=self.pool.places,
            key_bytes=self.pool.layout.key_bytes,
            value_bytes=self.pool.layout.value_bytes,
            step=step,
        )

    def copy_slot(self, source: int, target: int) -> None:
        """Copy a key and a value."""
        self.pool.copy_slots(np.array([source], np.int32), np.array([target], np.int32))
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def blank_others(self, step: Step) -> None:
        """Put not-a-number into every slot that no token of the step attends to."""
        unseen = np.ones(N_PAGES * PAGE, bool)
        for token in range(len(step.batch.tokens)):
            unseen[step.context_slots(token)] = False
        slots = np.flatnonzero(unseen)
        for part in self.pool.parts():
            part[self.pool.place(slots)] = np.nan if part.dtype == np.float16 else 77

    def compared(self, step: Step) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values as pages make them; queries times the scale of scores."""
        shape, queries = self.shape, self.queries(step) * scale(self.shape)
        all_keys, all_values = self.keys, self.values
        forms = FORMS[self.pool.layout.kind]
        if forms is not None:
            queries = round_queries(queries.reshape(-1, shape.width)).reshape(queries.shape)
            all_keys, all_values = round_cached(all_keys, forms[0]), round_cached(all_values, forms[1])
        else:
            all_keys, all_values = all_keys.astype(np.float16), all_values.astype(np.float16)
        return queries, all_keys, all_values

    def expected(self, step: Step, unseen: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Plain softmax in float64 over each token's context, of queries, keys and values as pages make them.

        `unseen`: chunks that KV heads do not see, bool[G, chunks].
        """
        shape, (queries, all_keys, all_values) = self.shape, self.compared(step)
        out = np.zeros((len(queries), shape.heads, shape.value_width))
        for token in range(len(queries)):
            n_seen = shape.window or LONGEST
            if shape.chunked:
                n_seen = int(step.batch.positions[token]) % n_seen + 1
            slots = step.context_slots(token)[-n_seen:]
            if step.batch.spans is not None:
                first, last = step.batch.spans[token].tolist()
                n_before = int(step.batch.positions[token]) + 1 - n_seen
                slots = step.context_slots(token + last - int(step.batch.positions[token]))[max(first, n_before, 0) :]
            all_slots, hidden = slots, self.unseen(step, token) if unseen is None else unseen
            for head in range(shape.heads):
                if hidden is not None:
                    slots = all_slots[~np.repeat(hidden[head // shape.repeats], PAGE)[: len(all_slots)]]
                keys, values = all_keys[slots].astype(np.float64), all_values[slots].astype(np.float64)
                scores = keys[:, head // shape.repeats] @ queries[token, head].astype(np.float64)
                scores = shape.cap * np.tanh(scores / shape.cap) if shape.cap else scores
                sink = -np.inf if shape.sinks is None else float(shape.sinks[head])
                largest = max(scores.max(), sink)
                shares = np.exp(scores - largest)
                out[token, head] = shares @ values[:, head // shape.repeats] / (shares.sum() + np.exp(sink - largest))
        return out

    def unseen(self, step: Step, token: int) -> NDArray[np.bool_] | None:
        """Which chunks a token with a budget does not see: bool[kv_heads, chunks]."""
        shape, forms = self.shape, FORMS[self.pool.layout.kind]
        firsts, counts = recent_and_best(step.batch, step.starts)
        if step.batch.budgets is None or not firsts[token]:
            return None
        query = self.queries(step)[token].reshape(shape.kv_heads, -1, shape.width) * scale(shape)
        keys = self.keys[step.context_slots(token)]
        if forms is None:
            keys = keys.astype(np.float16).astype(np.float32)
        else:
            query, keys = rotated(query), round_numbers(rotated(keys), forms[0])
        return unseen_chunks(query, keys, int(firsts[token]), int(counts[token]))

    def _within(self, step: Step, workers: int) -> dict[str, NDArray[np.generic] | float]:
        """Fields for budgets: summaries of all pages, made by their kernel, and room for the choice."""
        shape, head = self.shape, padded(self.shape.width)
        summaries = aligned((shape.kv_heads, N_PAGES, 2, head), np.float16)
        layers, pages = summarised_layers([self.pool], [summaries]), np.arange(N_PAGES, dtype=np.int32)
        kernel = catalogue.summarise_pages(self.pool.layout.kind)
        call(self._library, kernel, workers, layers=layers, n_layers=1, pages=pages, n_pages=N_PAGES)
        room = shape.repeats * 2 * head * 4 + 8 * (LONGEST // CHUNK)
        scratch = aligned((workers, padded(room, 64)), np.uint8)
        scratch[:] = 0xFF
        n_chunks, n_tokens = LONGEST // CHUNK, len(step.batch.tokens)
        ranks, lists = (aligned((n_tokens, shape.kv_heads, n), np.int32) for n in (n_chunks, 1 + n_chunks))
        ranks[:], lists[:], self.ranks = 99, 99, ranks
        choice = {"choice": scratch, "choice_stride": scratch.shape[1], "summary_stride": summaries.strides[0]}
        return {"summaries": summaries, "ranks": ranks, "lists": lists, **choice}

    def run(
        self,
        step: Step,
        split: bool,
        workers: int = 1,
        isa: str | None = None,
        budget: int | None = None,
        most_tokens: int = MOST_TOKENS,
        *,
        heeds: bool = True,
    ) -> Floats:
        """float32[T, heads, value width] by the kernels; `split` cuts by chunks as small passes do, else by tiles.

        `budget`: of blocks. `most_tokens`: of a pass. `heeds`: spans, where the step has any.
        """
        shape, layout, n_tokens = self.shape, self.pool.layout, len(step.batch.tokens)
        head, value = padded(shape.width), padded(shape.value_width)
        within = step.batch.budgets is not None
        limits = Limits(LONGEST, N_PAGES, most_tokens, most_tokens, layout.kind, budgets=within)
        record = StepRecord(limits, shape.tile_tokens, spans=True, chooses=budget is not None)
        record.fill(step)
        record.record["split"] = split
        query = aligned((n_tokens, shape.heads, head), np.float32)
        query[..., : shape.width] = self.queries(step)
        out = aligned((n_tokens + 1, shape.heads * shape.value_width + 16), np.float32)
        out[:] = UNTOUCHED
        tile_rows = max(shape.tile_tokens, SAMPLED if budget is not None else 0) * shape.repeats
        size = attention_scratch_bytes(tile_rows, layout)
        sinks = None if shape.sinks is None else aligned((padded(shape.heads),), np.float32)
        if sinks is not None:
            sinks[: shape.heads] = shape.sinks
        scratch = aligned((workers, padded(size, 64)), np.uint8)
        scratch[:] = 0xFF  # not-a-number wherever it is read before it is written
        partials = aligned((n_tokens, shape.heads, LONGEST // CHUNK, 16 + value), np.float32)
        partials[:] = np.nan
        fields = {
            "query": query,
            "query_stride": query.strides[0],
            "out": out,
            "out_stride": out.strides[0],
            **self.sizes(),
            "scratch": scratch,
            "scratch_stride": scratch.shape[1],
            "tile_rows": tile_rows,
            "partials": partials,
            "max_chunks": LONGEST // CHUNK,
            "step": record.record,
            "sinks": 0 if sinks is None else sinks,
            "spans": heeds,
            **(self._within(step, workers) if within else {}),
        }
        kernels = catalogue.attention(layout, isa or RUNNABLE[0], chosen=within)
        first = [*catalogue.choose_chunks(layout)] if within else []
        if budget is not None:
            fields |= self._choice(budget, workers)
            first.append(catalogue.choose_for_blocks(layout, isa or RUNNABLE[0]))
        for kernel in (*first, kernels.by_tile, kernels.by_chunk, kernels.join):
            call(self._library, kernel, workers, **fields)
        width = shape.heads * shape.value_width
        assert np.all(out[n_tokens] == UNTOUCHED)
        assert np.all(out[:, width:] == UNTOUCHED)
        return out[:n_tokens, :width].reshape(n_tokens, shape.heads, shape.value_width).copy()

    def sizes(self) -> dict[str, object]:
        """The record's fields for pages and sizes."""
        shape, layout = self.shape, self.pool.layout
        return {
            "keys": self.pool.keys,
            "values": self.pool.values,
            "bank_pages": self.pool.bank_pages,
            "bank_bytes": self.pool.bank_bytes,
            "places": self.pool.places,
            "key_bytes": layout.key_bytes,
            "value_bytes": layout.value_bytes,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "key_width": shape.width,
            "key_padded": padded(shape.width),
            "value_width": shape.value_width,
            "value_padded": padded(shape.value_width),
            "window": shape.window or 1 << 30,
            "chunked": shape.chunked,
            "scale": scale(shape),
            "cap": shape.cap,
        }

    def _choice(self, budget: int, workers: int) -> dict[str, object]:
        """The record's fields for what blocks choose."""
        chosen = aligned((MOST_TOKENS // PAGE * self.shape.kv_heads, padded(LONGEST // PAGE + 2)), np.int32)
        attention = aligned((workers, 1 + 2 * SAMPLED * self.shape.repeats, padded(LONGEST // PAGE)), np.float32)
        chosen[:], attention[:] = -1, np.nan
        self.chosen = chosen
        return {
            "block_lists": chosen,
            "block_list_bytes": chosen.strides[0],
            "block_chunks": n_chosen(budget),
            "block_attention": attention,
            "block_attention_stride": attention.strides[0],
            "block_attention_row": attention.strides[1],
        }


def scale(shape: Shape) -> np.float32:
    """The usual scale, as the kernel takes it."""
    return np.float32(shape.width**-0.5)


def tables_of(n_sequences: int, seed: int = 5) -> NDArray[np.int32]:
    """Page tables over half of the pages, in no order; the other half is for siblings."""
    order = np.random.default_rng(seed).permutation(N_PAGES // 2).astype(np.int32)
    return order[: len(order) // n_sequences * n_sequences].reshape(n_sequences, -1)


def chain(n_cached: int, n_tokens: int, tables: NDArray[np.int32] | None = None) -> Step:
    """The next tokens of one sequence."""
    return tree([n_cached], [list(range(-1, n_tokens - 1))], tables_of(1) if tables is None else tables)


def tree(n_cached: list[int], parents: list[list[int]], tables: NDArray[np.int32]) -> Step:
    """Trees of tokens after several sequences, one after the other; siblings lie in spare pages."""
    rows, positions, slots, above = [], [], [], []
    spare = N_PAGES // 2 * PAGE
    for row, (start, own) in enumerate(zip(n_cached, parents, strict=True)):
        first, taken = len(rows), set()
        for parent in own:
            position = start if parent < 0 else positions[first + parent] + 1
            slot = int(tables[row, position // PAGE]) * PAGE + position % PAGE
            if slot in taken:
                slot, spare = spare, spare + 1
            taken.add(slot)
            rows.append(row)
            positions.append(position)
            slots.append(slot)
            above.append(-1 if parent < 0 else first + parent)
    starts = [n_cached[row] for row in rows]
    as_ints = [np.array(values, np.int32) for values in (rows, positions, above, slots, starts)]
    zeros = np.zeros(len(rows), np.int32)
    batch = Batch(zeros, as_ints[0], as_ints[1], as_ints[2], zeros[:1])
    return Step(batch, as_ints[0], as_ints[3], as_ints[4], tables)


def both_ways(pages: Pages, step: Step) -> np.ndarray:
    """The result, after asserting that both ways of sharing the work and all worker pools give the same bits."""
    result = pages.run(step, split=False)
    for split, workers in ((True, 1), (False, 3), (True, 2), (True, 5)):
        assert same_bits(pages.run(step, split, workers), result)
    return result
