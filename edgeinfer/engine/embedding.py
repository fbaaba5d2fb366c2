"""Embeddings: what a model makes of a text as one vector.

In: tokens, a model that shows its hidden states. Out: float32[D], of length 1 if wanted. The final hidden states of
all tokens are pooled as the model's file says, else their mean is taken (what llama.cpp calls mean pooling; Reimers
and Gurevych, arXiv 1908.10084). Passes are small, so that answers in the making go on between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from edgeinfer.backends.base import Progress, no_progress
from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.cached import CachedSequence
from edgeinfer.engine.evaluators import Showing, Subject
from edgeinfer.engine.pool import Pool
from edgeinfer.errors import BadSetting, ContextOverflow, UnsupportedModel
from edgeinfer.graph.ops.layer_norm import LayerNorm, layer_norm
from edgeinfer.graph.ops.rms_norm import RMSNorm, rms_norm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import Floats

Pooling = Literal["mean", "last", "first"]
_BY_NUMBER: dict[int, Pooling] = {1: "mean", 2: "first", 3: "last"}
"""Values of `pooling_type` in GGUF files (llama.cpp)."""
CHUNK = 64
"""Tokens of a pass beside answers in the making."""


class Embedder:
    """Embeds texts with one model; for any thread. Raises UnsupportedModel where hidden states are not shown."""

    def __init__(self, pool: Pool, subject: Subject) -> None:
        executor, spec = pool.executor, subject.spec
        if spec is None or not isinstance(executor, Showing):
            raise UnsupportedModel(
                f"{executor.device} does not show what embeddings are made of; load the model with --device cpu"
            )
        take, *others = spec.stages[-1].ops
        norm = others[0] if others else None  # models without logits end with normed rows
        if not isinstance(take, TakeOutputs) or not isinstance(norm, RMSNorm | LayerNorm | None):
            raise UnsupportedModel(f"edgeinfer does not know where {spec.architecture} has its last hidden states")
        self._pool, self._executor, self._source, self._norm = pool, executor, take.source, norm
        self._weight = None if norm is None else vector(subject.gguf, norm.weight)
        self._bias = vector(subject.gguf, norm.bias) if isinstance(norm, LayerNorm) else None
        self._dense = [matrix(subject.gguf, weight) for weight in spec.dense]
        self._reads_whole = not spec.is_causal
        number = subject.file.metadata.integer(f"{spec.architecture}.pooling_type", 1)
        self.pooling: Pooling = _BY_NUMBER.get(number, "mean")
        self.width = spec.width

    def embed(
        self,
        tokens: Sequence[int],
        pooling: Pooling | None = None,
        *,
        normalized: bool = True,
        progress: Progress = no_progress,
    ) -> Floats:
        """The embedding of a text: float32[D]. Raises ContextOverflow, BadSetting, EngineClosed, DoesNotFit.

        `progress` is told how many tokens are read; what it raises ends the work.
        """
        pooling, n_context = pooling or self.pooling, self._pool.executor.limits.n_context
        if pooling not in get_args(Pooling):
            raise BadSetting(f"pooling cannot be {pooling!r}: it must be one of {', '.join(get_args(Pooling))}")
        if not tokens:
            raise BadSetting("an empty text has no embedding; give some text")
        if len(tokens) > n_context:
            raise ContextOverflow(f"the text has {len(tokens)} tokens and the context holds {n_context}; shorten it")
        cached = self._pool.open()
        try:
            pooled = self._pooled(cached, tokens, pooling, progress)
        finally:
            cached.close()
        for weight in self._dense:
            pooled = weight @ pooled
        length = float(np.linalg.norm(pooled))
        unit: Floats = pooled / np.float32(length) if normalized and length else pooled
        return unit

    def _pooled(self, cached: CachedSequence, tokens: Sequence[int], pooling: Pooling, progress: Progress) -> Floats:
        total, chunk = np.zeros(self.width, np.float64), min(CHUNK, cached.max_tokens)
        chunk = len(tokens) if self._reads_whole else chunk
        for start in range(0, len(tokens), chunk):
            progress("embedding", start, len(tokens))
            part = tokens[start : start + chunk]
            with self._pool.lock:
                batch = cached.chain(part, wants_logits=False)
                cached.evaluate(batch)
                states = self._normed(self._executor.show(self._source))
                cached.commit(batch, np.arange(len(part), dtype=np.int32))
            if pooling == "mean":
                total += states.sum(axis=0, dtype=np.float64)
            elif pooling == "first":
                progress("embedding", len(tokens), len(tokens))
                first: Floats = states[0]
                return first
        progress("embedding", len(tokens), len(tokens))
        mean: Floats = (total / len(tokens)).astype(np.float32)
        return mean if pooling == "mean" else states[-1]

    def _normed(self, states: Floats) -> Floats:
        """The rows that the head would read: float32[T, D]."""
        norm = self._norm
        if norm is None or self._weight is None:
            return states
        if isinstance(norm, RMSNorm):
            normed: Floats = rms_norm(states, self._weight, norm.groups, norm.epsilon)
            return normed
        assert self._bias is not None
        moved: Floats = layer_norm(states, self._weight, self._bias, norm.epsilon)
        return moved
