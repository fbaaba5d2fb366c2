"""Compares ways to choose the chunks that a block of a prompt's tokens attends to, by recall of attention mass.

Run: `python scripts/measure_chunk_choice.py MODEL QUESTIONS.jsonl [--tokens 8192] [--layers 6]`. Reads the articles of
a file of Spec-Bench one after the other and takes queries and keys, as attention has them, from the CPU device. A block
is 64 positions; it always attends to itself, to the first chunk and to the chunks before it (a quarter of the budget),
and to as many others as the budget holds, chosen by scores. Printed for each way to score: the share of the whole
attention that lies on the chosen chunks, a mean over tokens, heads, layers and blocks.

  window        no others: all of the budget is local
  quest-max     per KV head, the highest bound that any query of the block and the group has by the keys' minima and
                maxima (Quest, arXiv 2406.10774)
  quest-mean    the same bound of the mean query
  quest-soft    a softmax of the bounds of each query over chunks, summed
  pooled        mean query times mean key, a softmax over chunks (MInference's block pattern, arXiv 2407.02490)
  last-64       attention of the last block of a pass of 256 tokens, summed (MInference's vertical lines)
  sampled-N     attention of N queries of the block, evenly spaced, summed
  tiles-N       the same for each tile of 16 tokens, with N queries of each
  best          attention of all queries of the block, summed: what no choice can exceed
Ways that end in "/head" choose for each query head, others for each group of heads with the same keys.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import PAGE, Floats
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from scripts.long_context.passes import PASS_TOKENS, step_of
from scripts.long_context.texts import article_text
from scripts.measure_parity import log_probabilities

SHARES = (0.1, 0.2, 0.3, 0.5)
POSITIONS = (512, 1024, 2048)


class Recorder:
    """Queries and keys of some layers: float32[T, H, K] scaled, float32[T, G, K]."""

    def __init__(self, layers: set[int]) -> None:
        self._layers = layers
        self._queries: dict[int, list[Floats]] = defaultdict(list)
        self._keys: dict[int, list[Floats]] = defaultdict(list)

    def see(self, op: Op, lane: object) -> None:
        """Note what an op has just read."""
        if isinstance(op, StoreKV) and op.layer in self._layers:
            keys = lane.value(op.key)  # type: ignore[attr-defined]
            self._keys[op.layer].append(keys.reshape(len(keys), op.kv_heads, -1).astype(np.float16))
        elif isinstance(op, Attention) and op.layer in self._layers:
            queries = lane.value(op.query) * np.float32(op.scale)  # type: ignore[attr-defined]
            self._queries[op.layer].append(queries.reshape(len(queries), op.heads, -1))

    def layers(self) -> Iterator[tuple[int, Floats, Floats]]:
        """Layer, queries, keys."""
        for layer, keys in sorted(self._keys.items()):
            yield layer, np.concatenate(self._queries[layer]), np.concatenate(keys).astype(np.float32)


def softmax(scores: Floats) -> Floats:
    """Over the last axis."""
    found: Floats = np.exp(log_probabilities(scores))
    return found


class Block:
    """One block of queries, and all keys up to its end. `mass`: float32[H, tokens, chunks]."""

    def __init__(self, queries: Floats, keys: Floats, number: int, later: Floats) -> None:
        """`later`: queries of the block that ends the pass."""
        self.n_chunks, (n_tokens, heads, _) = number + 1, queries.shape
        self.repeats, first = heads // keys.shape[1], number * PAGE
        grouped = np.repeat(keys[: first + PAGE], self.repeats, axis=1)
        scores = np.einsum("thk,shk->hts", queries, grouped)
        scores[:, np.arange(n_tokens)[:, None] + first < np.arange(first + PAGE)[None]] = -np.inf
        self.mass = softmax(scores).reshape(heads, n_tokens, -1, PAGE).sum(axis=-1)
        before = grouped[:first].transpose(1, 0, 2)
        paged = before.reshape(heads, number, PAGE, -1)
        self._low, self._high, self._mean = paged.min(axis=2), paged.max(axis=2), paged.mean(axis=2)
        self._queries = queries.transpose(1, 0, 2)  # [H, T, K]
        ahead = np.einsum("thk,hsk->hts", later, before)
        self._ahead = softmax(ahead).reshape(heads, PAGE, -1, PAGE).sum(axis=(1, 3))

    def scores(self) -> Iterator[tuple[str, Floats]]:
        """Scores of each way by head, [H, chunks before], or by tile, [H, tiles, chunks before]."""
        bounds = self._bounds(self._queries)
        yield "quest-max", bounds.max(axis=1)
        yield "quest-mean", self._bounds(self._queries.mean(axis=1, keepdims=True))[:, 0]
        yield "quest-soft", softmax(bounds).sum(axis=1)
        yield "pooled", softmax(np.einsum("hk,hck->hc", self._queries.mean(axis=1), self._mean))
        yield "last-64", self._ahead
        before = self.mass[:, :, :-1]
        for count in (1, 2, 4, 8, 16):
            rows = np.arange(PAGE // count - 1, PAGE, PAGE // count)
            sampled = before[:, rows]
            yield f"sampled-{count}", (sampled / sampled.sum(axis=2, keepdims=True)).sum(axis=1)
        tiles = before.reshape(len(before), 4, 16, -1)
        for count in (1, 2):
            yield f"tiles-{count}", tiles[:, :, 16 // count - 1 :: 16 // count].sum(axis=2)
        yield "best", before.sum(axis=1)
        yield "best by tiles of 16", tiles.sum(axis=2)

    def _bounds(self, queries: Floats) -> Floats:
        """Quest's bound of each query and chunk: [H, T, chunks]."""
        above, below = np.maximum(queries, 0), np.minimum(queries, 0)
        found: Floats = np.einsum("htk,hck->htc", above, self._high) + np.einsum("htk,hck->htc", below, self._low)
        return found

    def recall(self, scores: Floats | None, n_chosen: int, local: float, *, by_head: bool) -> float:
        """The share of attention on `n_chosen` chunks, `local` of them the last ones. None: all of them."""
        last = self.n_chunks - 1
        n_near = n_chosen - 2 if scores is None else min(n_chosen - 2, max(1, int(local * n_chosen)))
        first_near = max(1, last - n_near)
        always = np.zeros(self.n_chunks, bool)
        always[[0, last]] = always[first_near:] = True
        n_more, total = n_chosen - int(always.sum()), self.mass[:, :, always].sum(axis=2)
        if scores is None or n_more <= 0:
            return float(total.mean())
        tiles = scores if scores.ndim == 3 else scores[:, None]
        if not by_head:
            summed = tiles.reshape(-1, self.repeats, *tiles.shape[1:]).sum(axis=1)
            tiles = np.repeat(summed, self.repeats, axis=0)
        tiles = np.where(always[:-1], -np.inf, tiles)
        chosen = np.argsort(-tiles, axis=2)[:, :, :n_more]
        size = self.mass.shape[1] // tiles.shape[1]
        of_tokens = np.repeat(chosen, size, axis=1)
        return float((total + np.take_along_axis(self.mass, of_tokens, axis=2).sum(axis=2)).mean())


def recorded(path: Path, text: str, n_tokens: int, n_layers: int) -> Recorder:
    """Read the text and record some layers, evenly spaced."""
    n_pages = -(-n_tokens // PAGE)
    with open_model(path, n_pages * PAGE) as model:
        tokenizer = Tokenizer.from_metadata(model.file.metadata)
        tokens = tokenizer.encode(text, add_special=True, parse_special=False)[:n_tokens]
        every = [kept.layer for kept in model.spec.ops() if isinstance(kept, Attention)]
        recorder = Recorder({every[place] for place in np.linspace(0, len(every) - 1, n_layers).astype(int)})
        limits = Limits(n_pages * PAGE, n_pages, max_tokens=PASS_TOKENS)
        lane = CpuDevice(DeviceOptions()).compile(model.spec, model.file, limits)
        for start in range(0, len(tokens), PASS_TOKENS):
            step = step_of(tokens[start : start + PASS_TOKENS], start, n_pages, 1)
            lane.watch(step, lambda op: recorder.see(op, lane))
        lane.close()
    return recorder


def compare(recorder: Recorder, n_tokens: int) -> dict[tuple[str, str], list[float]]:
    """Recall by way and budget, over layers and blocks."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    ends = [end for end in (2048, 4096, 6144, 8192, 16384) if end <= n_tokens]
    for _layer, queries, keys in recorder.layers():
        for end in ends:
            last = end // PAGE - 1
            later = queries[last * PAGE : end]
            for number in (last - 3, last - 2, last - 1):
                block = Block(queries[number * PAGE : (number + 1) * PAGE], keys, number, later)
                budgets = {f"{share:.0%}": max(4, int(share * block.n_chunks)) for share in SHARES}
                budgets |= {f"{count}@{end}": count // PAGE for count in POSITIONS if count < end}
                ways = list(block.scores())
                for name, n_chosen in budgets.items():
                    found["window", name].append(block.recall(None, n_chosen, 0.25, by_head=False))
                    for way, scores in ways:
                        found[way, name].append(block.recall(scores, n_chosen, 0.25, by_head=False))
                        found[f"{way}/head", name].append(block.recall(scores, n_chosen, 0.25, by_head=True))
                        if way in ("best", "sampled-4"):
                            for local in (0.0, 0.5):
                                key = f"{way}, {local:.0%} local", name
                                found[key].append(block.recall(scores, n_chosen, local, by_head=False))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=6)
    given = parser.parse_args()
    recorder = recorded(given.model, article_text(given.questions), given.tokens, given.layers)
    found = compare(recorder, given.tokens)
    names = list(dict.fromkeys(name for _, name in found))
    print(f"{'':24}" + "".join(f"{name:>11}" for name in names))
    for way in dict.fromkeys(way for way, _ in found):
        print(f"{way:24}" + "".join(f"{100 * float(np.mean(found[way, name])):10.1f}%" for name in names))


if __name__ == "__main__":
    main()
