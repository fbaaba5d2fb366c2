"""llama-cpp-python through llama.cpp's low-level API: per token only the call goes through Python; no copy of logits.

In: a GGUF file. Out: a `BenchSubject` of the same passes as ours: the same number of threads for prompts and single
tokens, logits of the last token only (of all in a verification), f16 keys and values, llama.cpp's defaults otherwise.
"""

from __future__ import annotations

import os
from typing import Any

from edgeinfer.app.bench.peers import Peer
from edgeinfer.app.bench.subject import BenchOpening, BenchSubject, NotMeasurable, Stepped, Tokens

BATCH_TOKENS = 2048
"""llama.cpp's default for the tokens of a call; it splits them into passes of 512."""


class Llama:
    """One llama.cpp context with one sequence."""

    def __init__(self, opening: BenchOpening) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        llama_cpp.llama_backend_init()
        how = opening.conditions
        given = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(how.model), given)
        if not self._model:
            raise NotMeasurable(f"llama.cpp cannot load {how.model}")
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx, wanted.n_batch = how.n_context, BATCH_TOKENS
        wanted.n_threads = wanted.n_threads_batch = how.threads
        self._context = llama_cpp.llama_init_from_model(self._model, wanted)
        if not self._context:
            raise NotMeasurable(f"llama.cpp cannot run {how.model} with a context of {how.n_context}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._n_cached = 0
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))

    @property
    def n_cached(self) -> int:
        return self._n_cached

    def evaluate(self, tokens: Tokens, *, every: bool) -> None:
        """Evaluate tokens after the cached ones and keep them; with logits of `every` token, or of the last."""
        batch = self._batch
        for start in range(0, len(tokens), BATCH_TOKENS):
            part = tokens[start : start + BATCH_TOKENS].tolist()
            last = start + len(part) == len(tokens)
            batch.n_tokens = len(part)
            for place, token in enumerate(part):
                batch.token[place], batch.pos[place] = token, self._n_cached + place
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
                batch.logits[place] = every
            batch.logits[len(part) - 1] = every or last
            failed = self._api.llama_decode(self._context, batch)
            if failed:
                raise NotMeasurable(f"llama_decode gave {failed} for {len(part)} tokens after {self._n_cached}")
            self._n_cached += len(part)
        self._api.llama_synchronize(self._context)

    def truncate(self, n_cached: int) -> None:
        """Drop the cached tokens from n_cached on."""
        if not self._api.llama_memory_seq_rm(self._memory, 0, n_cached, -1):
            raise NotMeasurable(f"llama.cpp cannot cut the cache of this model back to {n_cached} tokens")
        self._n_cached = n_cached

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def _open(opening: BenchOpening) -> BenchSubject:
    return Stepped(Llama(opening))


PEER = Peer("llama_cpp", "pip install 'edgeinfer[llamacpp]'", _open)
