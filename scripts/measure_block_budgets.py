"""Measures `--approx prefill=N`: how far predictions move, and how much faster a long prompt is read.

Run: `python scripts/measure_block_budgets.py MODEL QUESTIONS.jsonl [--budgets 512,1024,2048] [--tokens 8192]`. Reads
the articles of a file of Spec-Bench one after the other, exactly and with each budget, in passes of 256 tokens. Printed
for each budget, a mean over tokens: the Kullback-Leibler divergence of the next token's distribution from the exact one
in nats, the share of tokens after which another one is likeliest, and perplexities of the text, exact and not;
of tokens in blocks that leave something out, and of answers: the 63 tokens that follow each 1,024th, which attend to
everything. With --time, only processor seconds of one worker: of passes at some depths, and so of a prompt of --tokens;
and what part of the exact passes is attention. Keys and values are zeros there, which changes no speed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from measure_chunk_choice import PASS_TOKENS, articles

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.engine.requests.texts import own_texts
from edgeinfer.graph.step import PAGE, Batch, Step, whole_blocks
from edgeinfer.models.load import open_model
from edgeinfer.models.text import vocabulary_of

N_ANSWER, APART = PAGE - 1, 1024
"""Tokens of an answer, and tokens from one to the next."""


def step_of(tokens: np.ndarray, start: int, n_pages: int, *, blocks: bool = True, outputs: bool = True) -> Step:
    """A step of one sequence whose pages are in order."""
    order, count = np.arange(len(tokens), dtype=np.int32), len(tokens)
    zeros, wanted = np.zeros(count, np.int32), order if outputs else order[-1:]
    firsts = whole_blocks(start, count) if blocks else None
    batch = Batch(tokens, zeros, start + order, order - 1, wanted, blocks=firsts)
    pages = np.arange(n_pages, dtype=np.int32)[None]
    return Step(batch, zeros, start + order, np.full(count, start, np.int32), pages)


class Readers:
    """The same text in several lanes; the first one is exact."""

    def __init__(self, path: Path, n_tokens: int, budgets: list[int], n_workers: int | None = None) -> None:
        self.n_pages = -(-n_tokens // PAGE) + 1
        limits = Limits(self.n_pages * PAGE, self.n_pages, max_tokens=PASS_TOKENS, max_outputs=PASS_TOKENS)
        self.models = [open_model(path, self.n_pages * PAGE, block_budget=each) for each in (None, *budgets)]
        self.lanes: list[CpuLane] = []
        for model in self.models:
            self.lanes.append(CpuDevice(DeviceOptions(n_workers=n_workers)).compile(model.spec, model.file, limits))

    def tokens(self, text: str, count: int) -> np.ndarray:
        """The first tokens of a text."""
        metadata = self.models[0].file.metadata
        tokenizer = own_texts(metadata, vocabulary_of(metadata))[0]
        return np.array(tokenizer.encode(text, add_special=True, parse_special=False)[:count], np.int32)

    def logs(self, lane: CpuLane, step: Step) -> np.ndarray:
        """Log-probabilities after each token."""
        logits = lane.run(step).astype(np.float32)
        logits = logits - logits.max(axis=1, keepdims=True)
        found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return found

    def close(self) -> None:
        for lane, model in zip(self.lanes, self.models, strict=True):
            lane.close()
            model.close()


class Figures:
    """Sums over tokens."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, bool, float, float]] = []

    def add(self, exact: np.ndarray, found: np.ndarray, following: np.ndarray) -> None:
        """Compare predictions of some tokens; the last ones may have no following token."""
        for row, token in enumerate(following.tolist()):
            divergence = float((np.exp(exact[row]) * (exact[row] - found[row])).sum())
            self._rows.append(
                (
                    divergence,
                    exact[row].argmax() != found[row].argmax(),
                    float(exact[row, token]),
                    float(found[row, token]),
                )
            )

    def __str__(self) -> str:
        if not self._rows:
            return "nothing"
        divergence, others, log, own = np.array(self._rows, np.float64).mean(axis=0)
        kl, n = f"KL {divergence:.4f}, {100 * others:.1f} % others", len(self._rows)
        return f"{kl}, perplexity {np.exp(-log):.3f} and {np.exp(-own):.3f} ({n} tokens)"


def compare(readers: Readers, tokens: np.ndarray, budgets: list[int]) -> None:
    """Print how far predictions move."""
    names = [f"prefill={budget}" for budget in budgets]
    blocks, answers = {name: Figures() for name in names}, {name: Figures() for name in names}
    for start in range(0, len(tokens) - PASS_TOKENS, PASS_TOKENS):
        part = tokens[start : start + PASS_TOKENS]
        exact = readers.logs(readers.lanes[0], step_of(part, start, readers.n_pages))
        for name, lane, budget in zip(names, readers.lanes[1:], budgets, strict=True):
            found = readers.logs(lane, step_of(part, start, readers.n_pages))
            first = max(0, min(PASS_TOKENS, budget - start))
            blocks[name].add(exact[first:], found[first:], tokens[start + first + 1 : start + PASS_TOKENS + 1])
        end = start + PASS_TOKENS
        if end % APART == 0 and end + N_ANSWER < len(tokens):
            given = step_of(tokens[end : end + N_ANSWER], end, readers.n_pages, blocks=False)
            after = tokens[end + 1 : end + N_ANSWER + 1]
            exact = readers.logs(readers.lanes[0], given)
            for name, lane in zip(names, readers.lanes[1:], strict=True):
                answers[name].add(exact, readers.logs(lane, given), after)
    for name in names:
        print(f"{name:14} blocks: {blocks[name]}; answers: {answers[name]}", flush=True)


def timed(readers: Readers, tokens: np.ndarray, budgets: list[int]) -> None:
    """Print processor seconds of passes at some depths, by turns, and of the whole prompt, linear between them."""
    names, depths = ["exact", *(f"prefill={budget}" for budget in budgets)], []
    for start in np.linspace(0, len(tokens) - PASS_TOKENS, 6).astype(int) // PASS_TOKENS * PASS_TOKENS:
        step = step_of(tokens[start : start + PASS_TOKENS], int(start), readers.n_pages, outputs=False)
        seconds = np.full((3, len(names)), np.inf)
        for turn in seconds:
            for number, lane in enumerate(readers.lanes):
                began = time.process_time()
                lane.run(step)
                turn[number] = time.process_time() - began
        times = readers.lanes[0].profile(step)
        share = sum(each.busy_s for each in times if each.op == "Attention") / sum(each.busy_s for each in times)
        depths.append((int(start), *seconds.min(axis=0)))
        told = ", ".join(f"{name} {1000 * each:.0f} ms" for name, each in zip(names, depths[-1][1:], strict=True))
        print(f"a pass after {start}: {told}; attention {share:.0%} of the exact one", flush=True)
    table, passes = np.array(depths), np.arange(0, len(tokens), PASS_TOKENS)
    whole = [float(np.interp(passes, table[:, 0], column).sum()) for column in table[:, 1:].T]
    told = ", ".join(f"{name} {each:.1f} s (x{whole[0] / each:.2f})" for name, each in zip(names, whole, strict=True))
    print(f"{len(tokens)} tokens: {told}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--budgets", default="512,1024,2048")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--time", action="store_true")
    given = parser.parse_args()
    budgets = [int(each) for each in given.budgets.split(",")]
    readers = Readers(given.model, given.tokens, budgets, 1 if given.time else None)
    tokens = readers.tokens(articles(given.questions), given.tokens)
    if given.time:
        timed(readers, np.resize(tokens, given.tokens), budgets)
    else:
        compare(readers, tokens, budgets)
    readers.close()


if __name__ == "__main__":
    main()
