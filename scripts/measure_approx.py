"""Measures how much of a model `--approx T` leaves out and how that changes its predictions, for several T.

Run: `python scripts/measure_approx.py MODEL TEXT [--approx 0.01,0.03,0.1] [--tokens 512]`. Evaluates the first tokens
of a text, in independent pieces of 256, exactly and with each threshold, and prints for each threshold: the share of
neurons left out, the mean Kullback-Leibler divergence of the next token's distribution from the exact one in nats, the
share of positions with another most likely token, and the perplexity of the text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.engine.requests.texts import own_texts
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.load import open_model
from edgeinfer.models.text import vocabulary_of

CONTEXT, PASS_TOKENS = 256, 64


@dataclass(frozen=True, slots=True)
class Found:
    """Log-probabilities float64[T, V] after each token, and the share of neurons left out."""

    logs: np.ndarray
    skipped: float | None


def evaluated(path: Path, text: str, n_tokens: int, approx: float | None) -> tuple[np.ndarray, Found]:
    """The tokens of a text int32[T], and the model's predictions after each."""
    with open_model(path, CONTEXT, approx) as model:
        metadata = model.file.metadata
        tokenizer = own_texts(metadata, vocabulary_of(metadata))[0]
        tokens = np.array(tokenizer.encode(text, add_special=True, parse_special=False)[:n_tokens], np.int32)
        limits = Limits(CONTEXT, CONTEXT // PAGE, max_tokens=PASS_TOKENS, max_outputs=PASS_TOKENS)
        lane = CpuDevice(DeviceOptions()).compile(model.spec, model.file, limits)
        logs = []
        for first in range(0, len(tokens), PASS_TOKENS):
            logits = lane.run(step_of(tokens[first : first + PASS_TOKENS], first % CONTEXT)).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            logs.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        n_all, n_kept = lane.activations
        lane.close()
    return tokens, Found(np.concatenate(logs), 1 - n_kept / n_all if n_all else None)


def step_of(tokens: np.ndarray, start: int) -> Step:
    """A step of one sequence whose pages are in order, with all logits."""
    order = np.arange(len(tokens), dtype=np.int32)
    zeros = np.zeros(len(tokens), np.int32)
    batch = Batch(tokens, zeros, start + order, order - 1, order)
    pages = np.arange(CONTEXT // PAGE, dtype=np.int32)[None]
    return Step(batch, zeros, start + order, np.full(len(tokens), start, np.int32), pages)


def perplexity(tokens: np.ndarray, logs: np.ndarray) -> float:
    """Perplexity over the tokens after the first of each piece."""
    places = np.array([place for place in range(len(tokens) - 1) if (place + 1) % CONTEXT])
    return float(np.exp(-logs[places, tokens[places + 1]].mean()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--approx", default="0.01,0.03,0.1", help="thresholds with commas between them")
    parser.add_argument("--tokens", type=int, default=512)
    given = parser.parse_args()
    text = given.text.read_text(encoding="utf-8")
    tokens, plain = evaluated(given.model, text, given.tokens, None)
    print(f"{len(tokens)} tokens, perplexity {perplexity(tokens, plain.logs):.2f}")
    for threshold in map(float, given.approx.split(",")):
        _, found = evaluated(given.model, text, given.tokens, threshold)
        divergence = (np.exp(plain.logs) * (plain.logs - found.logs)).sum(axis=1).mean()
        others = np.mean(found.logs.argmax(axis=1) != plain.logs.argmax(axis=1))
        print(
            f"{threshold:g}: {100 * (found.skipped or 0.0):.1f} % left out, KL {divergence:.4f} nats, "
            f"{100 * others:.1f} % other tokens, perplexity {perplexity(tokens, found.logs):.2f}"
        )


if __name__ == "__main__":
    main()
