"""A KV cache of which a part is on disk: the same tokens as with all of it in memory, after pages have truly left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.lanes.filed import FiledLane
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.memory.filed_pages import kv_file_bytes
from edgeinfer.engine.kv.limits import limits_for, with_budget, with_kv_ram
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import DATA
from tests.resident import require_disk, resident_bytes

N_CONTEXT, N_SESSIONS = 1024, 3
LONG = "one two three four five six seven eight nine ten " * 15
"""A token is a byte in these files."""
PROMPTS = [LONG, LONG[:333] + "eleven", LONG[17:]]
MODELS = ("smollm3-f32", "cohere2-f32", "gpt-oss-q8_0", "minicpm3-f32")
SAMPLING = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3})


@pytest.fixture(autouse=True)
def disk(home: Path) -> None:
    """A folder that can have the file."""
    require_disk(home)


def least_bytes(name: str, kv: KVKind = "f16", n_sessions: int = N_SESSIONS) -> int:
    """The least memory for keys and values that works, of a model that needs more for all of them."""
    with open_model(DATA / f"{name}.gguf", N_CONTEXT) as model:
        limits = limits_for(N_CONTEXT, n_sessions, kv, model.spec)
        kept = limits.windows
        whole = [layer for layer in model.spec.kv if kept is None or not kept.limit(layer)]
        per_token = max(layer.kv_heads * PageLayout.of(kv, layer).position_bytes for layer in whole)
        least = per_token * PAGE * limits.n_pages
        assert kv_file_bytes(model.spec.kv, replace(limits, kv_ram=least)) > least
        with pytest.raises(BadSetting, match=r"a layer at a time is read, .* MB with this context; --kv-ram"):
            kv_file_bytes(model.spec.kv, replace(limits, kv_ram=least - 1))
    return least


def opened(name: str, *, kv_ram: int | None = None, **options: Any) -> LLM:
    options = {"device": "cpu", "n_context": N_CONTEXT, "n_sessions": N_SESSIONS, "approx": "kv=256", **options}
    return load(DATA / f"{name}.gguf", kv_ram=kv_ram, **options)


def lane_of(executor: Executor) -> FiledLane:
    """The lane of an executor that has a part of its keys and values on disk."""
    lane = executor._lane
    assert isinstance(lane, FiledLane)
    return lane


def push_out(lane: FiledLane) -> None:
    """Check that no more than asked for is in memory, and have all of it leave."""
    file = lane._filed._file
    asked = lane._limits.kv_ram
    assert resident_bytes(file.memory) <= asked < file.n_bytes
    lane._filed.empty()
    assert resident_bytes(file.memory) == 0


def answers(llm: LLM, options: dict[str, Any]) -> list[str]:
    """What a model says one after the other, then together, and then in one session that goes on."""

    def answer(prompt: str) -> str:
        return "".join(llm.complete(prompt, max_tokens=80, **options))

    lane = llm._pool.executor._lane  # type: ignore[attr-defined]
    found = [answer(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(3) as threads:
        found += threads.map(answer, PROMPTS)
    if isinstance(lane, FiledLane):
        push_out(lane)
    with llm.session() as session:
        for text in (LONG, "and", "then"):
            found.append("".join(session.complete(text, max_tokens=40, **options)))
            if isinstance(lane, FiledLane):
                push_out(lane)
    return found


@pytest.mark.parametrize("options", SAMPLING, ids=("greedy", "seeded"))
@pytest.mark.parametrize("spec", ["off", "auto", 6])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_a_cache_in_memory(name: str, spec: str | int, options: dict[str, Any]) -> None:
    with opened(name, spec=spec) as whole:
        expected = answers(whole, options)
    with opened(name, spec=spec, kv_ram=least_bytes(name)) as filed:
        assert isinstance(filed._pool.executor._lane, FiledLane)  # type: ignore[attr-defined]
        assert answers(filed, options) == expected
    assert expected[:3] == expected[3:6]


@pytest.mark.parametrize("kv", ["q8", "q8q4", "q4"])
def test_rounded_keys_come_back_too(kv: KVKind) -> None:
    with opened("smollm3-f32", kv=kv) as whole:
        expected = answers(whole, SAMPLING[0])
    with opened("smollm3-f32", kv=kv, kv_ram=least_bytes("smollm3-f32", kv)) as filed:
        assert answers(filed, SAMPLING[0]) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"approx": "kv=256,prefill=320"},
        {"reuse": "shifted"},
        {"prefix_cache": True},
        {"parallel": 2, "n_sessions": 1},
    ],
    ids=str,
)
def test_with_what_else_moves_pages(options: dict[str, Any]) -> None:
    found = []
    for kv_ram in (None, least_bytes("smollm3-f32", n_sessions=1 if "parallel" in options else N_SESSIONS + 1)):
        with opened("smollm3-f32", kv_ram=kv_ram, spec="off", **options) as llm:
            first = "".join(llm.complete("Monday. " + LONG, max_tokens=40, temperature=0))
            found.append([first, *answers(llm, SAMPLING[0])])
    assert found[0] == found[1]


def test_states_are_saved_and_restored(tmp_path: Path) -> None:
    saved, found = tmp_path / "saved", []
    for kv_ram in (None, least_bytes("smollm3-f32")):
        with opened("smollm3-f32", kv_ram=kv_ram) as llm, llm.session() as session:
            text = "".join(session.complete(LONG, max_tokens=40, temperature=0))
            if kv_ram is None:
                session.save(saved)
            with llm.session() as other:
                other.restore(saved)  # one saved without a file is one with a file
                found.append(text + "".join(other.complete("and", max_tokens=40, temperature=0)))
    assert found[0] == found[1]


def test_logits_have_the_same_bits() -> None:
    tokens = np.random.default_rng(2).integers(3, 250, 900).astype(np.int32)
    with open_model(DATA / "smollm3-f32.gguf", N_CONTEXT) as model:
        limits = with_budget(limits_for(N_CONTEXT, 1, spec=model.spec), model.spec, 256)
        results = []
        for kv_ram in (None, least_bytes("smollm3-f32", n_sessions=1)):
            request = OpeningRequest(model.spec, model.file, with_kv_ram(limits, kv_ram), DeviceOptions(n_workers=2))
            with open_executor("cpu", request, "it") as executor:
                results.append(logits(executor, tokens))
                if kv_ram is not None:
                    push_out(lane_of(executor))
                    results.append(logits(executor, tokens))
    for found in results[1:]:
        assert np.array_equal(found, results[0])


def logits(executor: Executor, tokens: np.ndarray) -> np.ndarray:
    """Logits of tokens after a prompt of 600, in passes of one and of six, after a branch was written to."""
    sequence, found = executor.create(), []
    filed = isinstance(executor._lane, FiledLane)
    sizes = [*[100] * 6, *[1] * 60, *[6] * 20]
    for start, size in zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True):
        own, order = tokens[start : start + size], np.arange(size, dtype=np.int32)
        batch = Batch(own, order * 0 + np.int32(sequence), order + np.int32(start), order - 1, order[-1:])
        found.append(executor.evaluate(batch.within(256, size if start < 600 else 0)).copy())
        executor.commit(sequence, order)
        if start == 650:
            twin = executor.branch(sequence)
            executor.free(sequence)
            sequence = twin
        if filed and start % 50 == 0:
            push_out(lane_of(executor))
    executor.free(sequence)
    return np.concatenate(found)


def test_measurements_leave_nothing_in_memory_unnoticed() -> None:
    tokens = np.random.default_rng(3).integers(3, 250, 300).astype(np.int32)
    with open_model(DATA / "smollm3-f32.gguf", N_CONTEXT) as model:
        limits = with_budget(limits_for(N_CONTEXT, 1, spec=model.spec), model.spec, 256)
        limits = with_kv_ram(limits, least_bytes("smollm3-f32", n_sessions=1))
        request = OpeningRequest(model.spec, model.file, limits, DeviceOptions(n_workers=1))
        with open_executor("cpu", request, "it") as executor:
            sequence, order = executor.create(), np.arange(100, dtype=np.int32)
            for start in (0, 100):
                batch = Batch(tokens[start : start + 100], order * 0 + sequence, order + start, order - 1, order[-1:])
                executor.evaluate(batch)
                executor.commit(sequence, order)
            batch = Batch(tokens[200:300], order * 0 + sequence, order + 200, order - 1, order[-1:])
            lane, expected = lane_of(executor), executor.evaluate(batch).copy()
            step = executor._cache.place(batch).step
            assert lane.profile(step)
            assert lane._filed.resident_bytes == resident_bytes(lane._filed._file.memory) == 0
            assert lane.time_ops(step)
            assert np.array_equal(lane.watch(step, lambda op: None), expected)
            assert lane._filed.resident_bytes == resident_bytes(lane._filed._file.memory) == 0
