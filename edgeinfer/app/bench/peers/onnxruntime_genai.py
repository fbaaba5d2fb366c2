"""onnxruntime-genai on a folder in its own format; it reads no GGUF, so the user chooses an equivalent model.

In: a folder with genai_config.json. Out: a `BenchSubject` of the same passes as ours. Its generator evaluates the
tokens it is given and can be rewound; all settings except the threads come from the folder.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

from edgeinfer.app.bench.peers import Peer
from edgeinfer.app.bench.subject import BenchOpening, BenchSubject, NotMeasurable, Stepped, Tokens


class Generator:
    """One generator with one sequence."""

    def __init__(self, opening: BenchOpening) -> None:
        assert opening.folder is not None
        api: Any = importlib.import_module("onnxruntime_genai")
        how, folder = opening.conditions, opening.folder
        settings = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        self.n_vocab = int(settings["model"]["vocab_size"])
        longest = int(settings["model"]["context_length"])
        if how.n_context > longest:
            raise NotMeasurable(f"the model of {folder} has a context of {longest}, not {how.n_context}")
        config = api.Config(str(folder))
        threads = {"model": {"decoder": {"session_options": {"intra_op_num_threads": how.threads}}}}
        config.overlay(json.dumps(threads))
        self._model = api.Model(config)
        wanted = api.GeneratorParams(self._model)
        wanted.set_search_options(max_length=how.n_context, do_sample=False)
        self._generator = api.Generator(self._model, wanted)

    @property
    def n_cached(self) -> int:
        return int(self._generator.token_count())

    def evaluate(self, tokens: Tokens, *, every: bool) -> None:
        """Evaluate tokens after the cached ones and keep them; the graph decides which logits it computes."""
        self._generator.append_tokens(np.ascontiguousarray(tokens, np.int32))

    def truncate(self, n_cached: int) -> None:
        """Drop the cached tokens from n_cached on."""
        self._generator.rewind_to(n_cached)

    def close(self) -> None:
        del self._generator, self._model


def _open(opening: BenchOpening) -> BenchSubject:
    return Stepped(Generator(opening))


PEER = Peer("onnxruntime_genai", "pip install onnxruntime-genai", _open, reads_gguf=False)
