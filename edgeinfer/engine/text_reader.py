"""What a model makes of texts without writing any: token ids, embeddings, how well documents answer a query.

In: texts. Out: numbers. Part of `LLM`, which has the pool, the file and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from edgeinfer.engine.embedding import Embedder, Pooling, Ranker
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Floats
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import Progress, no_progress


class TextReader:
    """What `LLM` can do with texts that it only reads."""

    _pool: Pool
    _subject: Subject
    _tokenizer: Tokenizer
    prompts: Prompts

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self._pool, self._subject)

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalized: bool = True,
        progress: Progress = no_progress,
    ) -> list[Floats]:
        """The embeddings of texts, or of their tokens: float32[D] each, of length 1 if `normalized`; from any thread.

        `pooling` of the tokens' last hidden states: as the model's file says, else their mean. `progress` gets how
        many tokens of each text are read; what it raises ends the work. Raises BadSetting, ContextOverflow,
        UnsupportedModel where the device does not show hidden states, EngineClosed.
        """
        self._pool.check_open()
        if isinstance(texts, str):
            raise BadSetting("embed takes a list of texts; write [text]")
        prompts = [self.tokenize(text) if isinstance(text, str) else self.prompts.checked(text) for text in texts]
        return self._embedder.embed(prompts, pooling, normalized=normalized, progress=progress)

    @cached_property
    def _ranker(self) -> Ranker:
        return Ranker(self._embedder, self._subject, self._tokenizer)

    def rerank(self, query: str, documents: Sequence[str], *, progress: Progress = no_progress) -> list[float]:
        """How well each document answers a query, between 0 and 1, by a reranker; from any thread.

        `progress` as in `embed`. Raises UnsupportedModel for a model that ranks nothing, BadSetting, ContextOverflow,
        EngineClosed.
        """
        self._pool.check_open()
        if isinstance(documents, str):
            raise BadSetting("rerank takes a list of documents; write [document]")
        return self._ranker.rank(query, documents, progress)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text. `add_special`: with the tokens that the model wants around a text."""
        return self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of token ids. Raises EdgeInferError for an id outside the vocabulary."""
        return self._tokenizer.decode(tokens, skip_special=skip_special)
