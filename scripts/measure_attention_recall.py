"""Measures how much of the softmax's mass the chunks of a budget hold, layer by layer, against a window of its size.

Run from the repository root: `python scripts/measure_attention_recall.py MODEL QUESTIONS [--tokens 8192] [--texts 2]
[--scored 32] [--sizes 50%,20%,10%] [--json]`. QUESTIONS is Spec-Bench's file; its articles are the text. The CPU reads
each text, the reference device (NumPy) evaluates its last tokens over the same keys, and the rule of budgets
(`edgeinfer.graph.budget`) chooses chunks for each of them by its own query, as if it were decoded alone. Mass is the
share of the softmax over all positions, a mean over heads and tokens. "window" has as many chunks: the first and the
latest; "ideal" has those that hold most for the heads of a group together, besides the first and the recent ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, write_pages
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.budget import recent_and_best, unseen_chunks
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import PAGE, Batch, Floats, Int32s
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.text import Tokenizer
from scripts.long_context.modes import COMPARED, Mode
from scripts.long_context.passes import PASS_TOKENS, step_of
from scripts.long_context.texts import article_text, encoded, pieces
from scripts.measure_parity import log_probabilities

WAYS = ("budget", "window", "ideal")
Mass = dict[str, list[float]]
"""By way: the mass of each token."""


@dataclass(frozen=True, slots=True)
class Recall:
    """The mean mass that the ways of a size hold in a layer."""

    layer: int
    size: str
    n_seen: int
    mass: dict[str, float]


class Queries:
    """Notes the queries of each layer in a pass of the reference device, and leaves all rows as they are."""

    def __init__(self) -> None:
        self.by_layer: dict[int, tuple[Attention, Floats]] = {}

    def __call__(self, op: Op, name: str, rows: Floats) -> Floats:
        if isinstance(op, Attention) and name == op.query and op.window is None:
            self.by_layer[op.layer] = op, rows.copy()
        return rows


def cached(model: Model, tokens: Sequence[int], limits: Limits, n_workers: int | None) -> list[tuple[Floats, Floats]]:
    """Keys and values of a text that the CPU read, by layer: each [S, G, K], at least as many positions as tokens."""
    pages = np.arange(limits.n_pages, dtype=np.int32)
    device = CpuDevice(DeviceOptions(n_workers=n_workers))
    with closing(device), closing(device.compile(model.spec, model.file, limits)) as lane:
        for first in range(0, len(tokens), PASS_TOKENS):
            lane.run(step_of(tokens[first : first + PASS_TOKENS], first, limits.n_pages))
        contents = lane.read_pages(pages)
    pools = [KVPool(PageLayout.of(limits.kv, layer), limits.n_pages, layer.kv_heads) for layer in model.spec.kv]
    write_pages(pools, pages, contents)
    slots = np.arange(limits.n_pages * PAGE, dtype=np.int32)
    found = []
    for pool, layer in zip(pools, model.spec.kv, strict=True):
        keys, values = (part[pool.place(slots)] for part in pool.parts())
        found.append((keys, values[..., : layer.value_width]))
    return found


def masses(op: Attention, queries: Floats, keys: Floats, positions: Int32s, budget: int) -> Mass:
    """The mass that each way holds for each token of a layer. queries float32[T, H * K], keys [S, G, K]."""
    rows = (queries * np.float32(op.scale)).reshape(len(queries), op.kv_heads, -1, op.key_width)
    order = np.zeros_like(positions)
    alone = Batch(order, order, positions, order - 1, order[:0], budgets=np.full_like(positions, budget))
    firsts, bests = recent_and_best(alone, positions)
    found: Mass = {way: [] for way in WAYS}
    for row, position, first, n_best in zip(rows, positions.tolist(), firsts.tolist(), bests.tolist(), strict=True):
        seen = keys[: position + 1].astype(np.float32)
        by_chunk = chunk_masses(op, row, seen)
        left_out = {
            "budget": unseen_chunks(row, seen, first, n_best),
            "window": between(by_chunk, first - n_best),
            "ideal": lightest(by_chunk, first, n_best),
        }
        for way, unseen in left_out.items():
            lost = (by_chunk * unseen[:, None]).sum(axis=2)
            found[way].append(float(1 - lost.mean()))
    return found


def chunk_masses(op: Attention, query: Floats, keys: Floats) -> Floats:
    """The softmax's mass of each chunk: float32[G, H / G, chunks]."""
    scores = np.einsum("grk,sgk->grs", query, keys)
    if op.soft_cap is not None:
        scores = np.float32(op.soft_cap) * np.tanh(scores / np.float32(op.soft_cap))
    summed: Floats = np.add.reduceat(np.exp(log_probabilities(scores)), np.arange(0, len(keys), PAGE), axis=2)
    return summed


def between(by_chunk: Floats, first_seen: int) -> NDArray[np.bool_]:
    """The chunks between the first one and those that a window sees: bool[G, chunks]."""
    unseen = np.zeros((len(by_chunk), by_chunk.shape[2]), bool)
    unseen[:, 1 : max(1, first_seen)] = True
    return unseen


def lightest(by_chunk: Floats, first_recent: int, n_best: int) -> NDArray[np.bool_]:
    """All chunks between the first and the recent ones but those with the most mass: bool[G, chunks]."""
    unseen = np.zeros((len(by_chunk), by_chunk.shape[2]), bool)
    if first_recent > 1:
        order = np.argsort(by_chunk[:, :, 1:first_recent].sum(axis=1), axis=1, kind="stable")
        np.put_along_axis(unseen, order[:, : order.shape[1] - n_best] + 1, values=True, axis=1)
    return unseen


def measured(given: argparse.Namespace) -> list[Recall]:
    """The recall of each layer and size."""
    n_pages = -(-given.tokens // PAGE)
    limits = Limits(given.tokens, n_pages, PASS_TOKENS, 1)
    sizes = {size: Mode.parse(f"kv={size}").budget(given.tokens) for size in given.sizes.split(",")}
    found: dict[tuple[int, str], Mass] = {}
    with open_model(given.model, given.tokens) as model:
        text = encoded(Tokenizer.from_metadata(model.file.metadata), article_text(given.questions))
        queries = Queries()
        lane = ReferenceDevice(kv="f16", rounding=queries).compile(model.spec, model.file, limits)
        for tokens in pieces(text, given.tokens, given.texts):
            first = len(tokens) - given.scored
            for layer, (keys, values) in enumerate(cached(model, tokens[:first], limits, given.threads)):
                lane.keys[layer][:], lane.cached_values[layer][:] = keys, values
            step = step_of(tokens[first:], first, n_pages)
            lane.run(step)
            for layer, (op, rows) in queries.by_layer.items():
                for size, budget in sizes.items():
                    mass = found.setdefault((layer, size), {way: [] for way in WAYS})
                    for way, parts in masses(op, rows, lane.keys[layer], step.batch.positions, budget).items():
                        mass[way] += parts
    return [
        Recall(layer, size, sizes[size], {way: float(np.mean(parts)) for way, parts in mass.items()})
        for (layer, size), mass in sorted(found.items(), key=lambda each: each[0][0])
    ]


def table(found: Sequence[Recall]) -> str:
    """A row for each layer, and the mean and the lowest of all; columns by size."""
    sizes = list(dict.fromkeys(each.size for each in found))
    headings = [f"{size} {way}" for size in sizes for way in WAYS]
    lines = [f"{'layer':<8}" + "".join(f"{heading:>13}" for heading in headings)]
    by_layer: dict[int, list[float]] = {}
    for each in found:
        by_layer.setdefault(each.layer, []).extend(each.mass[way] for way in WAYS)
    rows = {str(layer): cells for layer, cells in by_layer.items()}
    cells = np.array(list(by_layer.values()))
    for name, row in {**rows, "mean": cells.mean(axis=0), "lowest": cells.min(axis=0)}.items():
        lines.append(f"{name:<8}" + "".join(f"{cell:>13.3f}" for cell in row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--tokens", type=int, default=8192, help="length of a text")
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--scored", type=int, default=32, help="last tokens of a text whose queries choose")
    parser.add_argument("--sizes", default=",".join(COMPARED), help="budgets, tokens or shares, with commas between")
    parser.add_argument("--threads", type=int, help="worker threads; default: one per usable core")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given)
    if given.json:
        records = [{"layer": each.layer, "size": each.size, "n_seen": each.n_seen, **each.mass} for each in found]
        print(json.dumps(records))
    else:
        print(f"{given.model.name}, {given.tokens} tokens, {given.texts * given.scored} queries\n{table(found)}")


if __name__ == "__main__":
    main()
