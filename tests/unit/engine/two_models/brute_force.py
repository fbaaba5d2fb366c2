"""Answers of two models as the papers' algorithms give them, one token at a time, each text read anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.requests.sampling import Sampler, SamplingSettings
from edgeinfer.hand_over import HandOver
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.several.hesitation import ends_step

CONTEXT = 512
"""Of the tiny models."""
Rows = Callable[[Sequence[int]], np.ndarray]
"""The logits after a text, float64[V]."""


def rows_of(llm: LLM) -> Rows:
    """What a model gives after a text, read from its beginning on a sequence of its own."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def row(text: Sequence[int]) -> np.ndarray:
        if tuple(text) not in known:
            cached = llm._pool.open()
            with llm._pool.lock:
                for first in range(0, len(text), cached.max_tokens):
                    batch = cached.chain(text[first : first + cached.max_tokens], wants_logits=True)
                    found = cached.evaluate(batch)[0].copy()
                    cached.commit(batch, np.arange(len(batch.tokens), dtype=np.int32))
            cached.close()
            known[tuple(text)] = found
        return known[tuple(text)]

    return row


def probabilities(row: np.ndarray) -> np.ndarray:
    """Softmax in float64."""
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


class TwoRows:
    """Two models that write an answer to a prompt, up to `n` tokens, chosen by these settings."""

    def __init__(self, small: Rows, large: Rows, prompt: Sequence[int], n: int, settings: SamplingSettings) -> None:
        self.small, self.large, self.prompt, self.n = small, large, list(prompt), n
        self._sampler = Sampler(settings)

    def chosen(self, rows: Rows, text: list[int]) -> int:
        """The token that a model chooses after a text of the answer."""
        whole = self.prompt + text
        return self._sampler.choose(rows(whole), whole, len(text))

    def hesitates(self, rule: HandOver, text: list[int]) -> bool:
        chances = probabilities(self.small(self.prompt + text))
        if rule.kind == "bild":
            return bool(chances.max() < rule.limit)
        positive = chances[chances > 0]
        return float(-(positive * np.log(positive)).sum()) > rule.limit

    def surprise(self, text: list[int], token: int) -> float:
        return -float(np.log(probabilities(self.large(self.prompt + text))[token]))

    def by_token(self, rule: HandOver, ends: frozenset[int]) -> tuple[list[int], list[bool]]:
        """BiLD's algorithm 1, with a check of what is left at the end; and which tokens are the small model's."""
        text, by_small, n_checked = list[int](), list[bool](), 0
        while True:
            is_over = len(text) == self.n or (bool(text) and text[-1] in ends)
            if not is_over and not self.hesitates(rule, text):
                text.append(self.chosen(self.small, text))
                by_small.append(True)
                continue
            wrong = (m for m in range(n_checked, len(text)) if self.surprise(text[:m], text[m]) > rule.rollback)
            m = next(wrong, len(text))
            if m == len(text) and is_over:
                return [token for token in text if token not in ends], by_small
            text = [*text[:m], self.chosen(self.large, text[:m])]
            by_small, n_checked = [*by_small[:m], False], m + 1

    def by_step(self, tokenizer: Tokenizer, question: Sequence[int], digits: Sequence[int], limit: float) -> list[int]:
        """SpecReason: the small model's steps, but those that the large one rates below a limit, or has no room to."""
        text = list[int]()
        while len(text) < self.n:
            step = self._step(self.small, text, tokenizer)
            asked = [*self.prompt, *text, *step, *question]
            if len(asked) > CONTEXT or int(np.argmax(self.large(asked)[list(digits)])) < limit:
                step = self._step(self.large, text, tokenizer)
            text += step
        return text[: self.n]

    def _step(self, rows: Rows, text: list[int], tokenizer: Tokenizer) -> list[int]:
        step = list[int]()
        while not (step and ends_step(tokenizer.decode(step), len(step))):
            step.append(self.chosen(rows, text + step))
        return step


def write_relative(model: Path, path: Path, noise: float, seed: int = 1) -> Path:
    """A model like another one: its matrices with some noise."""
    shutil.copyfile(model, path)
    chance = np.random.default_rng(seed)
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.data.ndim == 2 and tensor.data.dtype == np.float32:
            tensor.data[:] += chance.normal(0, noise * tensor.data.std(), tensor.data.shape).astype(np.float32)
    reader.data.flush()
    del reader
    return path
