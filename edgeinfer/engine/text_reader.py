"""What a model computes from texts without generating any: token ids, embeddings, rankings.

In: texts. Out: numbers. A part of `LLM`, which has the pool, the file and the tokenizer.
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
    """The methods of `LLM` that read texts without generating."""

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
        """Embed texts, or lists of their tokens: float32[D] each, of length 1 if `normalized`; usable from any thread.

        `pooling`: how the last hidden states of the tokens are combined; default: as the model's file says, else their
        mean. `progress` is called with the number of tokens read of each text; an exception that it raises ends the
        work. Raises BadSetting, ContextOverflow, UnsupportedModel if the device does not expose hidden states,
        EngineClosed.
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
        """Score how well each document answers a query, between 0 and 1, with a reranker; usable from any thread.

        `progress` as in `embed`. Raises UnsupportedModel if the model is not a reranker, BadSetting, ContextOverflow,
        EngineClosed.
        """
        self._pool.check_open()
        if isinstance(documents, str):
            raise BadSetting("rerank takes a list of documents; write [document]")
        return self._ranker.rank(query, documents, progress)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of a text. `add_special`: add the tokens that the model expects around a text."""
        return self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids. Raises EdgeInferError for an id outside the vocabulary."""
        return self._tokenizer.decode(tokens, skip_special=skip_special)
