"""openvino-genai on the same GGUF file, through its text-generation pipeline and its own token timings.

In: a GGUF file. Out: a `BenchSubject`. The pipeline only generates: single tokens are timed by the intervals between
its tokens, without the first interval (it is longer, so this favours the peer), and verification passes are not
possible. All settings except the threads are its defaults (its CPU device keeps keys and values in 8 bits).
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from edgeinfer.app.bench.peers import Peer
from edgeinfer.app.bench.subject import (
    BenchJob,
    BenchOpening,
    BenchReply,
    BenchSubject,
    NotMeasurable,
    answered,
    random_tokens,
)

UNTIMED_TOKENS = 2
"""The first token, which belongs to the prompt, and the interval after it."""


class Pipeline:
    """One text-generation pipeline."""

    def __init__(self, opening: BenchOpening) -> None:
        self._openvino: Any = importlib.import_module("openvino")
        self._api: Any = importlib.import_module("openvino_genai")
        model, n_threads = str(opening.conditions.model), opening.conditions.threads
        self._pipeline: Any = self._api.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=n_threads)
        vocabulary = self._pipeline.get_tokenizer().get_vocab()
        self._n_vocab = len(vocabulary)

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job and return its times. Raises NotMeasurable."""
        match job.test:
            case "prefill" if job.depth == 0:
                return BenchReply({job.n: self._generate(self._tokens(job.seed, job.n), 1)[0]})
            case "prefill":
                raise NotMeasurable("openvino-genai reads prompts from their start only, so none after cached tokens")
            case "decode":
                _, between = self._generate(self._tokens(job.seed, max(job.depth, 1)), job.n + UNTIMED_TOKENS)
                if len(between) != job.n + 1:
                    raise NotMeasurable(f"openvino-genai timed {len(between)} tokens where {job.n + 1} were expected")
                return BenchReply({job.n: sum(between[1:])})
            case "chat":
                return self._replay(job)
        raise NotMeasurable("openvino-genai gives the logits of the last token only")

    def close(self) -> None:
        del self._pipeline

    def _replay(self, job: BenchJob) -> BenchReply:
        """Seconds for conversations with the same lengths as another engine's.

        The pipeline decides what it keeps between turns.
        """
        started = time.perf_counter()
        for n_cached, n_read, n_answer in job.turns:
            self._generate(self._tokens(job.seed, n_cached + n_read), n_answer)
        return BenchReply({answered(job.turns): time.perf_counter() - started}, turns=job.turns)

    def _tokens(self, seed: int, count: int) -> Any:
        return random_tokens(seed, count, self._n_vocab).astype(np.int64).reshape(1, -1)

    def _generate(self, tokens: Any, count: int) -> tuple[float, list[float]]:
        """Seconds to the first token, and between the following ones."""
        wanted = self._api.GenerationConfig()
        wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = count, True, False
        tensor = self._openvino.Tensor
        inputs = self._api.TokenizedInputs(tensor(tokens), tensor(np.ones_like(tokens)))
        metrics = self._pipeline.generate(inputs, wanted).perf_metrics
        between = [microseconds / 1e6 for microseconds in metrics.raw_metrics.m_durations]
        return metrics.get_ttft().mean / 1e3, between


def _open(opening: BenchOpening) -> BenchSubject:
    return Pipeline(opening)


PEER = Peer("openvino_genai", "pip install openvino-genai", _open)
