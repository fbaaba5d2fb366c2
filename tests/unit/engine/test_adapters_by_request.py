"""LoRA adapters chosen by request: answers, cached prefixes, sessions and drafts do not mix them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.errors import BadSetting
from tests.adapter_files import write_adapter

TEXT = "the rain in the tin, the hen in the inn"
LORAS: list[dict[int | str, float]] = [{}, {0: 0.3}, {"poet": 1.0}, {0: 1.0, 1: -1.0}, {"lawyer": 0.7}]
GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def files(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("adapters")
    ranks = {"poet": 8, "lawyer": 3}
    paths = [write_adapter(tiny_model, folder / f"{name}.gguf", rank=rank, seed=rank) for name, rank in ranks.items()]
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def expected(tiny_model: Path, files: list[str]) -> list[tuple[int, ...]]:
    """The answers of models that were loaded with these scales and answered once."""
    found = []
    for lora in LORAS:
        scales = [lora.get(number, lora.get(Path(path).stem, 0.0)) for number, path in enumerate(files)]
        loaded = [f"{path}:{scale}" for path, scale in zip(files, scales, strict=True)]
        with load(tiny_model, device="cpu", spec="off", lora=loaded) as llm:
            found.append(answer(llm, None))
    assert len(set(found)) == len(found)
    return found


@pytest.fixture(scope="module", params=["off", "on", "isolated"])
def llm(request: pytest.FixtureRequest, tiny_model: Path, files: list[str]) -> Iterator[LLM]:
    options = {"spec": "off", "isolate": True} if request.param == "isolated" else {"spec": request.param}
    with load(tiny_model, device="cpu", n_sessions=6, lora=[files[0], f"{files[1]}:0.5"], **options) as loaded:
        yield loaded


def answer(llm: LLM, lora: dict[int | str, float] | None) -> tuple[int, ...]:
    stream = llm.complete(TEXT, lora=lora, **GREEDY)
    stream.read()
    return stream.tokens


def test_answers_are_those_of_models_loaded_with_the_scales(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    for lora, tokens in [*zip(LORAS, expected, strict=True)] * 2:
        assert answer(llm, lora) == tokens


def test_requests_with_other_scales_share_passes(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    prompts = [Prompt(TEXT, {"lora": lora}) for lora in LORAS]
    stream = llm.batch(prompts, parallel=len(LORAS), **GREEDY)
    found = {each.number: each.tokens for each in stream}
    assert [found[number] for number in range(len(LORAS))] == expected
    assert stream.counts.passes < sum(map(len, expected))


def test_a_cached_prefix_is_shared_by_requests_of_the_same_scales_alone(llm: LLM) -> None:
    text, cached = "an inn in the rain and a hen in the tin", []
    for lora in ({0: 0.6}, {0: 0.5}, {}, {0: 0.6}, {0: 0.5, 1: 0.0}, {1: 0.6}, None, {0: 1.0, 1: 0.5}):
        stream = llm.complete(text, lora=lora, **GREEDY)
        stream.read()
        cached.append(stream.stats.n_cached > 0)
    assert cached == [False, False, False, True, True, False, False, True]


def test_a_session_reads_again_what_it_read_with_other_scales(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    with llm.session() as session:
        for lora, tokens, is_cached in ((LORAS[1], expected[1], False), (LORAS[2], expected[2], False)):
            for again in (False, True):
                stream = session.complete(TEXT, lora=lora, **GREEDY)
                stream.read()
                assert stream.tokens == tokens
                assert (stream.stats.n_cached > 0) == (is_cached or again)
        with session.branch() as twin:
            stream = twin.complete(TEXT, lora=LORAS[2], **GREEDY)
            stream.read()
            assert stream.stats.n_cached > 0
            assert stream.tokens == expected[2]


def test_a_saved_session_knows_its_scales(llm: LLM, expected: list[tuple[int, ...]], tmp_path: Path) -> None:
    with llm.session() as session:
        session.complete(TEXT, lora=LORAS[3], **GREEDY).read()
        session.save(tmp_path / "state")
    for number in (3, 1):
        with llm.session() as session:
            session.restore(tmp_path / "state")
            stream = session.complete(TEXT, lora=LORAS[number], **GREEDY)
            stream.read()
            assert (stream.stats.n_cached > 0) == (number == 3)
            assert stream.tokens == expected[number]


def test_the_scales_of_requests_that_state_none_may_be_changed(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    before = {each.id: each.scale for each in llm.adapters}
    try:
        llm.set_adapters({"poet": 1.0})
        assert answer(llm, None) == expected[2]
        assert answer(llm, LORAS[1]) == expected[1]
        assert [each.scale for each in llm.adapters] == [1.0, 0.0]
    finally:
        llm.set_adapters(before)
    assert answer(llm, None) == answer(llm, {0: 1.0, 1: 0.5})


def test_texts_are_embedded_at_the_scales_of_the_model(tiny_model: Path, files: list[str]) -> None:
    with load(tiny_model, device="cpu", lora=[files[0]]) as llm, load(tiny_model, device="cpu") as plain:
        adapted = llm.embed([TEXT])[0]
        llm.set_adapters({})
        assert np.array_equal(llm.embed([TEXT])[0], plain.embed([TEXT])[0])
        assert not np.allclose(adapted, plain.embed([TEXT])[0], atol=1e-3)


def test_a_preempted_request_goes_on_at_its_scales(
    tiny_model: Path, files: list[str], expected: list[tuple[int, ...]]
) -> None:
    with load(tiny_model, device="cpu", spec="off", parallel=1, lora=files) as llm:
        behind = llm.complete(TEXT, lora=LORAS[1], priority="background", **GREEDY)
        next(behind)
        before = llm.complete(TEXT, lora=LORAS[2], **GREEDY)
        before.read()
        assert not behind.stats
        assert llm.telemetry.queue.n_preempted == 1
        behind.read()
        assert (behind.tokens, before.tokens) == (expected[1], expected[2])


def test_after_a_crash_texts_are_read_again_at_their_scales(
    tiny_model: Path, files: list[str], expected: list[tuple[int, ...]]
) -> None:
    with load(tiny_model, device="cpu", spec="off", isolate=True, lora=files) as llm:
        streams = [llm.complete(TEXT, lora=lora, **GREEDY) for lora in LORAS[1:3]]
        for stream in streams:
            next(stream)
        os.kill(llm._pool.executor.pid, signal.SIGTERM)  # type: ignore[attr-defined]
        for stream in streams:
            stream.read()
        assert [stream.tokens for stream in streams] == expected[1:3]
        assert any("read again" in notice for stream in streams for notice in stream.stats.notices)


def test_a_request_for_an_adapter_that_there_is_not(llm: LLM) -> None:
    with pytest.raises(BadSetting, match=r"there are: 0 \(poet\), 1 \(lawyer\)"):
        llm.complete(TEXT, lora={2: 1.0})
