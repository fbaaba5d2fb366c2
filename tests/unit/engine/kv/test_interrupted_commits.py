"""Ctrl-C while tokens are kept: what is counted is what the device holds, and reading goes on with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.pages import Copies
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.graph.step import Batch, Floats
from tests.golden.goldens import DATA

TEXT = [5 + number % 200 for number in range(70)]
BEFORE = 61  # the chain that is drafted crosses a page
Breaking = Callable[..., object]


@pytest.fixture(params=["qwen35-q8_0", "lfm2-q8_0", "llama-q8_0", "converted/mamba2-bf16"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(DATA / f"{request.param}.gguf", device="reference", n_context=128) as found:
        yield found


def read(cached: CachedSequence, tokens: list[int]) -> Floats:
    """Logits after tokens, which are kept."""
    batch = cached.chain(tokens, wants_logits=True)
    logits = cached.evaluate(batch).copy()
    cached.commit(batch, np.arange(len(tokens), dtype=np.int32))
    return logits


def drafted(cached: CachedSequence) -> Batch:
    """The next tokens as a draft, after a sibling of the second one, so that some lie beside their places."""
    tokens = [TEXT[BEFORE], 3, *TEXT[BEFORE + 1 : BEFORE + 6]]
    parents = np.array([-1, 0, 0, 2, 3, 4, 5], np.int32)
    depths = np.array([0, 1, 1, 2, 3, 4, 5], np.int32)
    sequences = np.full(len(tokens), cached.sequence, np.int32)
    outputs = np.arange(len(tokens), dtype=np.int32)
    return Batch(np.array(tokens, np.int32), sequences, BEFORE + depths, parents, outputs)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def after(function: Breaking) -> Breaking:
    """The function, interrupted as soon as it has done its work."""

    def does(*arguments: object) -> None:
        function(*arguments)
        raise KeyboardInterrupt

    return does


@pytest.mark.parametrize(
    ("owner", "name", "breaks"),
    [
        (Copies, "apply", interrupted),
        (Copies, "apply", after(Copies.apply)),
        (KVCache, "_commit", interrupted),
        (KVCache, "_commit", after(KVCache._commit)),
    ],
    ids=["before device", "after device", "before pages", "after pages"],
)
def test_an_interrupted_commit_keeps_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, breaks: Breaking
) -> None:
    executor = llm._pool.executor
    states = executor._cache.states
    with llm._pool.lock:
        cached, fresh = CachedSequence(llm._pool), CachedSequence(llm._pool)
        cached.settle()
        read(cached, TEXT[:BEFORE])
        free = executor.n_free_pages, states and states.slots.n_available
        for _ in range(3):
            batch = drafted(cached)
            cached.evaluate(batch)
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, breaks)
                with pytest.raises(KeyboardInterrupt):
                    cached.commit(batch, np.array([0, 2, 3, 4, 5, 6], np.int32))
            assert cached.n_cached == executor._cache.n_cached(cached.sequence)
            if cached.n_cached < BEFORE:  # of a model with states, which go back to a checkpoint
                read(cached, TEXT[cached.n_cached : BEFORE])
            assert (executor.n_free_pages, states and states.slots.n_available) == free
        fresh.settle()
        read(fresh, TEXT[:BEFORE])
        assert read(cached, TEXT[BEFORE:]).tobytes() == read(fresh, TEXT[BEFORE:]).tobytes()
