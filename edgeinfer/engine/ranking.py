"""Ranking: how well documents answer a query, by a model made for that.

In: a query and documents, a model whose head ranks. Out: a number between 0 and 1 for each document. The hidden row of
the first token, or of the last one where tokens see those before them alone, goes through the head; a single score
becomes its sigmoid, of "yes" and "no" the share of the first is told. Sources: BERT (arXiv 1810.04805) as a
cross-encoder, Qwen3 Embedding (arXiv 2506.05176).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.embedding import Embedder, Pooling
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.step import Floats
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import Progress, no_progress

TEMPLATE = "tokenizer.chat_template.rerank"


class Ranker:
    """Ranks documents with one model; for any thread. Raises UnsupportedModel for a model that ranks nothing."""

    def __init__(self, embedder: Embedder, subject: Subject, tokenizer: Tokenizer) -> None:
        spec = subject.spec
        if spec is None or spec.rank is None:
            raise UnsupportedModel(
                "this model has no head that ranks; a reranker has one (bge-reranker, jina-reranker, Qwen3-Reranker)"
            )
        file, head = subject.gguf, spec.rank
        self._embedder, self._tokenizer, self._is_causal = embedder, tokenizer, spec.is_causal
        self._layers = [
            (matrix(file, weight), None if bias is None else vector(file, bias))
            for weight, bias in (head.dense, head.out)
            if weight is not None
        ]
        self._has_dense = head.dense[0] is not None
        self._template = file.metadata.text(TEMPLATE) if TEMPLATE in file.metadata else None
        if self._is_causal and self._template is None:
            raise BadGGUF(f"{TEMPLATE} is missing: the file does not say how to put a query and a document")

    def rank(self, query: str, documents: Sequence[str], progress: Progress = no_progress) -> list[float]:
        """A number between 0 and 1 for each document; higher is better. Raises as `Embedder.embed`."""
        return self._scores([self.tokens(query, document) for document in documents], progress)

    def tokens(self, query: str, document: str) -> list[int]:
        """What is read of a pair."""
        tokenizer, vocabulary = self._tokenizer, self._tokenizer.vocabulary
        if self._template is not None:
            text = self._template.replace("{query}", query).replace("{document}", document)
            return tokenizer.encode(text)
        begin, end = vocabulary.bos_id, vocabulary.eos_id
        parts = [tokenizer.encode(text, add_special=False, parse_special=False) for text in (query, document)]
        between = [end, end] if vocabulary.model == "t5" else [end]
        return [token for token in (begin, *parts[0], *between, *parts[1], end) if token is not None]

    def _scores(self, pairs: list[list[int]], progress: Progress) -> list[float]:
        pooling: Pooling = "last" if self._is_causal else "first"
        return [self._score(row) for row in self._embedder.embed(pairs, pooling, normalized=False, progress=progress)]

    def _score(self, row: Floats) -> float:
        for number, (weight, bias) in enumerate(self._layers):
            row = weight @ row if bias is None else weight @ row + bias
            if self._has_dense and number == 0:
                row = np.tanh(row)
        margin = float(row[0]) if len(row) == 1 else float(row[0]) - float(row[1])
        return float(1.0 / (1.0 + np.exp(-margin)))
