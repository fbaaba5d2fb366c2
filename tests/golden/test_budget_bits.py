"""Budgets of attention: the same text with drafts and in batches, the exact one where they cover everything."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for, with_budget
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import DATA

N_CONTEXT = 2048
LONG = "one two three four five six seven eight nine ten " * 15
"""A token is a byte in these files."""
NAMES = ("gemma3-q8_0", "gpt-oss-q8_0", "qwen3moe-q4_0", "minicpm3-f32", "llama-k")
SETTINGS: tuple[tuple[str, KVKind, str | int], ...] = (
    *(("gemma3-q8_0", "f16", "auto"), ("gpt-oss-q8_0", "q8", 5), ("qwen3moe-q4_0", "q4", 12)),
    *(("minicpm3-f32", "f16", 5), ("minicpm3-f32", "q8", 12), ("gpt-oss-q8_0", "f16", 12)),
    *(("llama-k", "f16", "auto"), ("llama-k", "q8", 5), ("llama-k", "q4", 12)),
)
"""Each model, kind of cache and way to draft, not all of their combinations."""


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, LLM]]:
    """A model within a budget with drafts, and without."""
    name, kv, spec = request.param
    same = {"device": "cpu", "n_context": N_CONTEXT, "n_sessions": 3, "kv": kv, "approx": "kv=256"}
    path = DATA / f"{name}.gguf"
    with load(path, spec=spec, **same) as drafting, load(path, spec="off", **same) as plain:
        yield drafting, plain


def answer(llm: LLM, prompt: str, n_tokens: int = 120, temperature: float = 0.0) -> str:
    with llm.session() as session:
        return "".join(session.complete(prompt, max_tokens=n_tokens, temperature=temperature, seed=3))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_and_company_change_no_token(pair: tuple[LLM, LLM], temperature: float) -> None:
    drafting, plain = pair
    prompts = [LONG, LONG[:333] + "eleven", LONG[17:]]
    expected = [answer(plain, prompt, 60, temperature) for prompt in prompts]
    assert [answer(drafting, prompt, 60, temperature) for prompt in prompts] == expected
    for llm in pair:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda prompt, llm=llm: answer(llm, prompt, 60, temperature), prompts))
        assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_for_everything_changes_nothing(name: str) -> None:
    same = {"device": "cpu", "n_context": N_CONTEXT}
    with load(DATA / f"{name}.gguf", **same) as exact, load(DATA / f"{name}.gguf", approx="kv=2048", **same) as whole:
        assert answer(whole, LONG) == answer(exact, LONG)
        assert "approx kv=2048 leaves nothing out: the context has 2048 tokens" in whole.info.notices


def decoded(executor: Executor, tokens: np.ndarray, n_prompt: int, budget: int, size: int) -> np.ndarray:
    """Logits of the tokens after a prompt, `size` at a time and within a budget."""
    sequence, found = executor.create(), []
    for start, stop in [
        (0, n_prompt),
        *((at, min(at + size, len(tokens))) for at in range(n_prompt, len(tokens), size)),
    ]:
        for first in range(start, stop, executor.limits.max_tokens):
            own = tokens[first : min(stop, first + executor.limits.max_tokens)]
            order = np.arange(len(own), dtype=np.int32)
            places = np.full(len(own), sequence, np.int32), order + np.int32(first)
            batch = Batch(own, *places, order - 1, order[:0] if not start else order)
            found.append(executor.evaluate(batch.within(budget, len(own) if not start else 0)).copy())
            executor.commit(sequence, order)
    executor.free(sequence)
    return np.concatenate(found[-(-n_prompt // executor.limits.max_tokens) :])


@pytest.mark.parametrize("kv", ["f16", "q8q4"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_reference(name: str, kv: KVKind) -> None:
    tokens = np.random.default_rng(2).integers(3, 250, 600).astype(np.int32)
    results = {}
    with open_model(DATA / f"{name}.gguf", 1024) as model:
        limits = with_budget(limits_for(1024, kv=kv, spec=model.spec), model.spec, 256)
        for device in ("cpu", "reference"):
            request = OpeningRequest(model.spec, model.file, limits, DeviceOptions(n_workers=2))
            with open_executor(device, request, "it") as executor:
                results[device] = decoded(executor, tokens, 500, 256, 25)
                if device == "cpu":
                    whole = decoded(executor, tokens, 500, 0, 25)
                    for size in (1, 6):
                        assert np.array_equal(decoded(executor, tokens, 500, 256, size), results[device])
    errors, changes = (np.abs(results["cpu"] - each).max(axis=1) for each in (results["reference"], whole))
    assert np.median(errors) < {"f16": 0.25, "q8q4": 0.55}[kv] * np.median(changes)  # rounding changes choices


def test_summaries_are_made_anew_where_a_text_is_cut_and_goes_on() -> None:
    random = np.random.default_rng(4)
    first, second = (random.integers(3, 250, 600).astype(np.int32) for _ in range(2))
    second[:300] = first[:300]
    with open_model(DATA / "llama-k.gguf", 1024) as model:
        limits = with_budget(limits_for(1024, n_sessions=2, spec=model.spec), model.spec, 256)
        with open_executor("cpu", OpeningRequest(model.spec, model.file, limits, DeviceOptions()), "it") as executor:
            expected = decoded(executor, second, 500, 256, 5)
            sequence = executor.create()
            feed(executor, sequence, first, 0, 256)
            executor.truncate(sequence, 300)
            feed(executor, sequence, second[:500], 0, 0)
            twin = executor.branch(sequence)
            for each in (sequence, twin):
                found = feed(executor, each, second, 256, 256)
                assert np.array_equal(found[-1], expected[-1])


def feed(executor: Executor, sequence: int, tokens: np.ndarray, budget: int, last: int) -> np.ndarray:
    """Read the tokens that are not cached, within a budget, the last ones within another; logits of the last."""
    logits = np.zeros(0)
    for start in range(executor.n_cached(sequence), len(tokens), 5):
        own = tokens[start : start + 5]
        order = np.arange(len(own), dtype=np.int32)
        batch = Batch(own, order * 0 + np.int32(sequence), order + np.int32(start), order - 1, order[-1:])
        logits = executor.evaluate(batch.within(last if start >= 500 else budget)).copy()
        executor.commit(sequence, order)
    return logits


def test_what_does_not_read_budgets_says_so(tmp_path: Path) -> None:
    path = DATA / "llama-k.gguf"
    for device in ("null", "cuda", "openvino", "onnx", "cpu,openvino", "llamacpp"):
        with pytest.raises(EdgeInferError, match=r"attends to all that is cached.*--device cpu"):
            load(path, device=device, approx="kv=256")
    with pytest.raises(BadSetting, match="leave out --isolate"):
        load(path, device="cpu", isolate=True, approx="kv=256")
    with open_model(path, 1024) as model:
        request = OpeningRequest(model.spec, model.file, limits_for(1024), DeviceOptions(n_workers=1))
        with open_executor("cpu", request, "it") as executor:
            batch = Batch(*(np.array([value], np.int32) for value in (5, executor.create(), 0, -1, 0)))
            with pytest.raises(UnsupportedModel, match="load it on the cpu with approx kv=N"):
                executor.evaluate(replace(batch, budgets=np.full(1, 256, np.int32)))


def test_saved_states_are_for_the_same_budget(tmp_path: Path) -> None:
    path, saved = DATA / "llama-k.gguf", tmp_path / "saved"
    same = {"device": "cpu", "n_context": N_CONTEXT, "spec": "off"}
    with load(path, approx="kv=256", **same) as within, within.session() as session:
        text = "".join(session.complete(LONG, max_tokens=50, temperature=0))
        session.save(saved)
        with within.session() as other:
            other.restore(saved)
            assert "".join(other.complete(LONG, max_tokens=50, temperature=0)) == text
    with load(path, **same) as exact, exact.session() as session, pytest.raises(EdgeInferError):
        session.restore(saved)
    with load(path, approx="kv=256", **same) as within:
        assert any("not what the model itself would say" in notice for notice in within.info.notices)
        assert str(within.info.approximation) == "kv=256"


@pytest.mark.parametrize("name", ["llama-k", "gemma3-q8_0"])
def test_an_answer_whose_memory_was_taken_goes_on_with_the_same_bits(name: str) -> None:
    """Its tokens are then read again in long chains, and see no more of each other than one by one."""
    options: dict[str, Any] = {"max_tokens": 200, "temperature": 0.0, "logprobs": 1, "ignore_eos": True}
    with load(DATA / f"{name}.gguf", device="cpu", n_context=N_CONTEXT, approx="kv=192", spec="off") as llm:
        plain = llm.complete(LONG, **options)
        plain.read()
        llm._driver.scheduler.admission.prefixes.close()
        again = llm.complete(LONG, **options)
        pieces = iter(again)
        while len(again.tokens) < 50:
            next(pieces)
        assert 50 <= again._sequence.n_generated < 100
        with llm._pool.lock:
            again._sequence.cached.forget()
        assert again.read() == plain.text
        assert again.logprobs == plain.logprobs
