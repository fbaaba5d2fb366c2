"""What a model computes from texts without generating any: token ids, embeddings, rankings.

In: texts, and a model that exposes its hidden states. Out: token ids; float32[D] for a text, of length 1 if normalized;
a number between 0 and 1 for a query with a document. The final hidden states of all tokens are pooled as the model's
file says, or averaged if it does not say (llama.cpp calls this mean pooling; Reimers and Gurevych, arXiv 1908.10084). A
ranking applies a head to the hidden row of the first token, of the last one, or their mean. The sigmoid is taken of a
single score; with scores for "yes" and "no" the result is the share of the first (BERT, arXiv 1810.04805, as a
cross-encoder; Qwen3 Embedding, arXiv 2506.05176). Passes are small, so that running requests continue between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.requests.media_prompts import NamedTile
from edgeinfer.engine.requests.prompt_rows import MixedPrompt, Piece
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.errors import BadGGUF, BadSetting, ContextOverflow, DoesNotFit, NotFinite, UnsupportedModel
from edgeinfer.graph.activations import gelu, relu
from edgeinfer.graph.graph import Bend
from edgeinfer.graph.ops.layer_norm import LayerNorm, layer_norm
from edgeinfer.graph.ops.rms_norm import RMSNorm, rms_norm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import Batch, Floats, join
from edgeinfer.models.gguf import Metadata
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import Progress, no_progress

Pooling = Literal["mean", "last", "first", "none"]
"""How the rows of a text's tokens are combined; "none" leaves them as they are: float32[T, D]."""
_BY_NUMBER: dict[int, Pooling] = {0: "mean", 1: "mean", 2: "first", 3: "last", 4: "mean"}
"""Values of `pooling_type` in GGUF files (llama.cpp); 0 does not specify a pooling, and 4 marks a ranking model."""
CHUNK = 64
"""Tokens per pass while other requests are running."""
PATIENCE_S = 30.0
"""How long a text waits for the memory of running requests."""
PAUSE_S = 0.02
"""How long it waits before it looks again."""
BENDS: Mapping[Bend, Callable[[Floats], Floats]] = MappingProxyType({"tanh": np.tanh, "gelu": gelu, "relu": relu})
TEMPLATE = "tokenizer.chat_template.rerank"


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
        texts: Sequence[str | Sequence[Piece | NamedTile]],
        *,
        pooling: Pooling | None = None,
        normalized: bool = True,
        progress: Progress = no_progress,
    ) -> list[Floats]:
        """Embed texts, or lists of their tokens, which rows or tiles of images may be among; usable from any thread.

            one, other = llm.embed(["a plum", "a pear"])
            likeness = float(one @ other)

        Returns float32[D] for each, of length 1 if `normalized`; with pooling "none" float32[T, D], a row for each
        token. `pooling`: how the last hidden states of the tokens are combined; default: as the model's file says, else
        their mean. `progress` is called with the number of tokens read of each text; an exception that it raises ends
        the work. Raises BadSetting, ContextOverflow, UnsupportedModel if the device does not expose hidden states,
        EngineClosed.
        """
        self._pool.check_open()
        if isinstance(texts, str):
            raise BadSetting("embed takes a list of texts; write [text]")
        pieces = [self.tokenize(text) if isinstance(text, str) else text for text in texts]
        read = [EmbeddedText(*self.prompts.pieces(each, progress)) for each in pieces]
        return self._embedder.embed(read, pooling, normalized=normalized, progress=progress)

    @property
    def embedding_width(self) -> int:
        """How many numbers an embedding has. Raises as `embed`."""
        self._pool.check_open()
        return self._embedder.n_numbers

    @cached_property
    def _ranker(self) -> Ranker:
        return Ranker(self._embedder, self._subject, self._tokenizer)

    def rerank(self, query: str, documents: Sequence[str], *, progress: Progress = no_progress) -> list[float]:
        """Tell how well each document answers a query, from 0 to 1, with a reranker; usable from any thread.

        `progress` as in `embed`. Raises UnsupportedModel if the model is not a reranker, BadSetting, ContextOverflow,
        EngineClosed.
        """
        self._pool.check_open()
        if isinstance(documents, str):
            raise BadSetting("rerank takes a list of documents; write [document]")
        return self._ranker.rank(query, documents, progress)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of a text. Raises BadSetting for what is no text.

            len(llm.tokenize("How many tokens are these?"))

        `add_special`: add the tokens that the model expects around a text. `parse_special`: special tokens that are
        spelled in it become those tokens.
        """
        if not isinstance(text, str):
            raise BadSetting(f"tokenize takes a text, a str, not {type(text).__name__}")
        return self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids. Raises EdgeInferError for an id outside the vocabulary."""
        return self._tokenizer.decode(tokens, skip_special=skip_special)


def _pooling_of(metadata: Metadata, key: str) -> Pooling:
    """How a file says that rows are pooled; the mean if it does not say. Raises UnsupportedModel, BadGGUF."""
    number = metadata.integer(key, 1)
    if number not in _BY_NUMBER:
        raise UnsupportedModel(
            f"{key} is {number}; edgeinfer pools by the mean (1), the first (2) and the last row (3)"
        )
    return _BY_NUMBER[number]


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """A text to embed: its tokens, in which rows have names, and the prompt if it has rows."""

    tokens: Sequence[int]
    mixed: MixedPrompt | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, most: int) -> Sequence[int]:
        """The tokens from position `first` on that a pass of `most` reads; more if rows there see each other."""
        return self.tokens[first : first + (most if self.mixed is None else self.mixed.n_together(first, most))]


class Embedder:
    """Embeds texts with one model; usable from any thread. Raises UnsupportedModel if hidden states are not exposed."""

    def __init__(self, pool: Pool, subject: Subject) -> None:
        executor, spec = pool.executor, subject.spec
        showing = executor.capabilities.showing
        if spec is None or showing is None:
            raise UnsupportedModel(
                f"{executor.device} does not show what embeddings are made of; load the model with --device cpu"
            )
        take, *others = spec.stages[-1].ops
        norm = others[0] if others else None  # models without logits end with normed rows
        if not isinstance(take, TakeOutputs) or not isinstance(norm, RMSNorm | LayerNorm | None):
            raise UnsupportedModel(f"edgeinfer does not know where {spec.architecture} has its last hidden states")
        self._pool, self._showing, self._source, self._norm = pool, showing, take.source, norm
        held = (None, None) if norm is None else (norm.weight, norm.bias if isinstance(norm, LayerNorm) else None)
        self._weight, self._bias = (None if part is None else vector(subject.gguf, part) for part in held)
        self._dense = [matrix(subject.gguf, weight) for weight in spec.dense]
        self._reads_whole = not spec.is_causal
        self.pooling = _pooling_of(subject.file.metadata, f"{spec.architecture}.pooling_type")
        self.width = spec.width

    @property
    def n_numbers(self) -> int:
        """How many numbers an embedding has."""
        return len(self._dense[-1]) if self._dense else self.width

    def embed(
        self,
        texts: Sequence[EmbeddedText],
        pooling: Pooling | None = None,
        *,
        normalized: bool = True,
        progress: Progress = no_progress,
    ) -> list[Floats]:
        """Embed texts: float32[D] each, or float32[T, D]. Raises ContextOverflow, BadSetting, EngineClosed, DoesNotFit.

        `progress` is called with the number of tokens read of each text; an exception that it raises ends the work.
        """
        pooling, n_context = pooling or self.pooling, self._pool.executor.limits.n_context
        if pooling not in get_args(Pooling):
            raise BadSetting(f"pooling cannot be {pooling!r}: it must be one of {', '.join(get_args(Pooling))}")
        for text in texts:
            if not len(text):
                raise BadSetting("an empty text has no embedding; give some text")
            if len(text) > n_context:
                raise ContextOverflow(
                    f"the text is too large: it has {len(text)} tokens and the context holds {n_context}; shorten it",
                    len(text),
                    n_context,
                )
        pooled = [vector for group in self._groups(texts) for vector in self._read(group, pooling, progress)]
        return [self._finished(vector, normalized=normalized) for vector in pooled]

    def _groups(self, texts: Sequence[EmbeddedText]) -> Iterator[list[EmbeddedText]]:
        """Yield the texts in order, in groups that fit in one pass; a longer text comes alone."""
        limits = self._pool.executor.limits
        group: list[EmbeddedText] = []
        for text in texts:
            joined = [*group, text]
            n_tokens = sum(len(each) for each in joined)
            n_pages = sum(pages_for(len(each)) for each in joined)
            many = limits.n_sequences and len(joined) > limits.n_sequences
            if group and (n_tokens > self._most_tokens or n_pages > pages_for(limits.n_context) or many):
                yield group
                joined = [text]
            group = joined
        if group:
            yield group

    @property
    def _most_tokens(self) -> int:
        """Most tokens per pass: a whole text if the model reads it at once, else what other requests can wait for."""
        limits = self._pool.executor.limits
        return limits.n_context if self._reads_whole else min(CHUNK, limits.max_tokens)

    def _read(self, group: list[EmbeddedText], pooling: Pooling, progress: Progress) -> list[Floats]:
        """Return the pooled row of each text: float32[D]; without pooling its rows, float32[T, D].

        Several texts may fit in one pass; a single text may take more.
        """
        all_rows: list[list[Floats]] = [[] for _ in group]
        sums = [np.zeros(self.width, np.float64) for _ in group]
        ends = [np.zeros(self.width, np.float32) for _ in group]
        most = self._most_tokens
        with ExitStack() as opened:
            members = [self._pool.open() for _ in group]
            for member in members:
                opened.callback(member.close)
            read, until = [0] * len(group), time.monotonic() + PATIENCE_S
            while any(done < len(text) for done, text in zip(read, group, strict=True)):
                for done, text in zip(read, group, strict=True):
                    progress("embedding", done, len(text))
                with self._pool.lock:
                    firsts = [member.n_cached for member in members]  # 0 if others took the memory
                    batches = [
                        member.chain(text.part(first, most), wants_logits=False, mixed=text.mixed)
                        for member, first, text in zip(members, firsts, group, strict=True)
                    ]
                    found = self._pass(members, batches, waits=time.monotonic() < until)
                if not found:
                    time.sleep(PAUSE_S)
                    continue
                for number, (first, rows) in enumerate(zip(firsts, found, strict=True)):
                    read[number] = first + len(rows)
                    sums[number] = rows.sum(axis=0, dtype=np.float64) + (sums[number] if first else 0)
                    ends[number] = rows[0] if pooling == "first" else rows[-1]
                    if pooling == "none":
                        all_rows[number] = [*(all_rows[number] if first else ()), rows]
                if pooling == "first":
                    break
        for text in group:
            progress("embedding", len(text), len(text))
        if pooling == "mean":
            return [(total / len(text)).astype(np.float32) for total, text in zip(sums, group, strict=True)]
        return [np.concatenate(rows) for rows in all_rows] if pooling == "none" else ends

    def _pass(self, members: list[CachedSequence], batches: list[Batch], *, waits: bool) -> list[Floats]:
        """Run one pass over the next tokens of each text.

        Returns the head's input rows, float32[T, D]; none if it `waits` and running requests have the memory. Needs the
        lock.
        """
        joined = join(batches)
        try:
            members[0].evaluate(joined)
        except DoesNotFit:
            if not (waits and any(member.runs for member in self._pool.members)):
                raise
            return []
        self._pool.n_readings += 1
        self._pool.n_read += len(joined.tokens)
        rows = self._normed(self._showing.show(self._source))
        nodes = np.split(np.arange(len(rows), dtype=np.int32), np.cumsum([len(each.tokens) for each in batches])[:-1])
        for member, own in zip(members, nodes, strict=True):
            member.commit(joined, own)
        return [rows[own] for own in nodes]

    def _finished(self, pooled: Floats, *, normalized: bool) -> Floats:
        """Apply the dense layers, and scale to length 1 if `normalized`: float32[D], or float32[T, D]."""
        if pooled.ndim == 2:
            return np.stack([self._finished(row, normalized=normalized) for row in pooled])
        for weight in self._dense:
            pooled = weight @ pooled
        length = float(np.linalg.norm(pooled))
        if not math.isfinite(length):
            raise NotFinite(
                "the model gave no numbers (NaN or infinity); its file is damaged, it overflows or the device fails: "
                "check its checksum, or try another quantisation of it, or --device cpu"
            )
        unit: Floats = pooled / np.float32(length) if normalized and length else pooled
        return unit

    def _normed(self, states: Floats) -> Floats:
        """Return the head's input rows: float32[T, D]."""
        norm = self._norm
        if norm is None:
            return states
        if isinstance(norm, LayerNorm):
            moved: Floats = layer_norm(states, self._weight, self._bias, norm.epsilon)
            return moved
        assert self._weight is not None
        normed: Floats = rms_norm(states, self._weight, norm.groups, norm.epsilon)
        return normed


class Ranker:
    """Ranks documents with one model; usable from any thread.

    Raises UnsupportedModel if the model has no ranking head.
    """

    def __init__(self, embedder: Embedder, subject: Subject, tokenizer: Tokenizer) -> None:
        spec = subject.spec
        if spec is None or spec.rank is None:
            raise UnsupportedModel(
                "this model has no head that ranks; a reranker has one (bge-reranker, jina-reranker, Qwen3-Reranker)"
            )
        file, self._head, head = subject.gguf, spec.rank, spec.rank
        self._embedder, self._tokenizer, self._is_causal = embedder, tokenizer, spec.is_causal
        self._layers = [
            (matrix(file, weight), None if bias is None else vector(file, bias))
            for weight, bias in (head.dense, head.out)
            if weight is not None
        ]
        self._norm = None if head.norm is None else vector(file, head.norm)
        self._has_dense = head.dense[0] is not None
        self._template = file.metadata.text(TEMPLATE) if TEMPLATE in file.metadata else None
        if self._is_causal and self._template is None:
            raise BadGGUF(f"{TEMPLATE} is missing: the file does not say how to put a query and a document")

    def rank(self, query: str, documents: Sequence[str], progress: Progress = no_progress) -> list[float]:
        """Return a number between 0 and 1 for each document; higher is better. Raises as `Embedder.embed`."""
        return self._scores([self.tokens(query, document) for document in documents], progress)

    def tokens(self, query: str, document: str) -> list[int]:
        """The token ids of a query and a document together."""
        tokenizer, vocabulary = self._tokenizer, self._tokenizer.vocabulary
        if self._template is not None:
            text = self._template.replace("{query}", query).replace("{document}", document)
            return tokenizer.encode(text)
        begin, end = vocabulary.bos_id, vocabulary.eos_id
        parts = [tokenizer.encode(text, add_special=False, parse_special=False) for text in (query, document)]
        between = [end, end] if vocabulary.model == "t5" else [end]
        return [token for token in (begin, *parts[0], *between, *parts[1], end) if token is not None]

    def _scores(self, pairs: list[list[int]], progress: Progress) -> list[float]:
        texts = [EmbeddedText(pair) for pair in pairs]
        rows = self._embedder.embed(texts, self._head.row, normalized=False, progress=progress)
        return [self._score(row) for row in rows]

    def _score(self, row: Floats) -> float:
        for number, (weight, bias) in enumerate(self._layers):
            row = weight @ row if bias is None else weight @ row + bias
            if self._has_dense and number == 0:
                row = self._between(row)
        margin = float(row[0]) if len(row) == 1 else float(row[0]) - float(row[1])
        return float(1.0 / (1.0 + np.exp(-margin)))

    def _between(self, row: Floats) -> Floats:
        """What happens to a row between the two products: float32[D]."""
        bent = BENDS[self._head.bend](row)
        return bent if self._norm is None else layer_norm(bent[None], self._norm, None, self._head.epsilon)[0]
