"""Measures `--approx prefill=N`: how far predictions move, and how much faster a long prompt is read.

Run: `python scripts/measure_block_budgets.py MODEL QUESTIONS.jsonl [--budgets 512,1024,2048] [--tokens 8192]`. Reads
the articles of a file of Spec-Bench one after the other, exactly and with each budget, in passes of 256 tokens. Printed
for each budget: perplexity, and KL(exact || budget) of the distributions of next tokens, after tokens of blocks that
leave something out, and of answers: the 63 tokens that follow each 1,024th, which attend to everything. With --time,
only processor seconds of one worker: of passes at some depths, and so of a prompt of --tokens; and what part of the
exact passes is attention. Keys and values are zeros there, which changes no speed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.graph.step import PAGE, Floats
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from scripts.long_context.figures import Figures, table
from scripts.long_context.passes import PASS_TOKENS, step_of
from scripts.long_context.texts import article_text
from scripts.measure_parity import log_probabilities

N_ANSWER, APART = PAGE - 1, 1024
"""Tokens of an answer, and tokens from one to the next."""


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
        tokenizer = Tokenizer.from_metadata(self.models[0].file.metadata)
        return np.array(tokenizer.encode(text, add_special=True, parse_special=False)[:count], np.int32)

    def logs(self, tokens: np.ndarray, first: int, n_tokens: int, *, blocks: bool) -> list[Floats]:
        """Log probabilities of each lane after some tokens: float32[T, V]."""
        step = step_of(tokens[first : first + n_tokens], first, self.n_pages, n_tokens, blocks=blocks)
        return [log_probabilities(lane.run(step)) for lane in self.lanes]

    def close(self) -> None:
        for lane, model in zip(self.lanes, self.models, strict=True):
            lane.close()
            model.close()


def compared(readers: Readers, tokens: np.ndarray, budgets: list[int]) -> list[Figures]:
    """How far predictions move, of blocks that leave something out and of answers."""
    blocks = [Figures(f"prefill={budget}, blocks", len(tokens), budget) for budget in budgets]
    answers = [Figures(f"prefill={budget}, answers", len(tokens), budget) for budget in budgets]
    for start in range(0, len(tokens) - PASS_TOKENS, PASS_TOKENS):
        exact, *others = readers.logs(tokens, start, PASS_TOKENS, blocks=True)
        end = start + PASS_TOKENS
        for figures, budget, logs in zip(blocks, budgets, others, strict=True):
            first = max(0, min(PASS_TOKENS, budget - start))
            figures.score(exact[first:], logs[first:], tokens[start + first + 1 : end + 1])
        if end % APART == 0 and end + N_ANSWER < len(tokens):
            exact, *others = readers.logs(tokens, end, N_ANSWER, blocks=False)
            for figures, logs in zip(answers, others, strict=True):
                figures.score(exact, logs, tokens[end + 1 : end + N_ANSWER + 1])
    return [figures for pair in zip(blocks, answers, strict=True) for figures in pair if figures.kl]


def timed(readers: Readers, tokens: np.ndarray, budgets: list[int]) -> None:
    """Print processor seconds of passes at some depths, by turns, and of the whole prompt, linear between them."""
    names, depths = ["exact", *(f"prefill={budget}" for budget in budgets)], []
    for start in np.linspace(0, len(tokens) - PASS_TOKENS, 6).astype(int) // PASS_TOKENS * PASS_TOKENS:
        step = step_of(tokens[start : start + PASS_TOKENS], int(start), readers.n_pages, 1, blocks=True)
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
    tokens = readers.tokens(article_text(given.questions), given.tokens)
    if given.time:
        timed(readers, np.resize(tokens, given.tokens), budgets)
    else:
        print(table(compared(readers, tokens, budgets)))
    readers.close()


if __name__ == "__main__":
    main()
