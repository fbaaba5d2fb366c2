"""`approx="prefill=N"`: labelled, the same with drafts and in any company, and apart from what exact models keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.approximation import Approximation
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.allotment import Pace
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}
TEXT = "the rain in the tin, the hen in the inn " * 32
"""A byte or two of it are a token; as many as ten blocks."""


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with a context of 1024."""
    return write_tiny_llama(tmp_path_factory.mktemp("blocks") / "long.gguf", context=1024)


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """Nothing is kept where users keep it."""


def opened(path: Path, approx: str | None = "prefill=256", **options: Any) -> LLM:
    return load(path, device="cpu", approx=approx, **options)


def bits(llm: LLM, text: str = TEXT, **options: Any) -> tuple[object, ...]:
    """Tokens of an answer and the log probabilities of each."""
    stream = llm.complete(text, logprobs=2, **{**GREEDY, **options})
    stream.read()
    return stream.tokens, stream.logprobs


def test_answers_are_others_and_labelled(long_model: Path) -> None:
    with opened(long_model) as llm:
        assert len(llm.tokenize(TEXT)) > 9 * PAGE
        within, facts = bits(llm), llm.info
    with opened(long_model, None) as llm:
        assert bits(llm) != within
        assert llm.info.approximation.is_exact
        assert llm.info.fingerprint != facts.fingerprint
    assert facts.approximation == Approximation(prefill=256)
    assert str(facts.approximation) == "prefill=256"
    assert any("prefill=256: blocks of long prompts" in notice for notice in facts.notices)


def test_short_prompts_and_large_budgets_are_exact(long_model: Path) -> None:
    short = TEXT[:200]
    with opened(long_model, None) as llm:
        exact = bits(llm), bits(llm, short)
    with opened(long_model, "prefill=1024") as llm:
        assert (bits(llm), bits(llm, short)) == exact
        assert llm.info.notices == ("approx prefill=1024 leaves nothing out: the context has 1024 tokens",)
    with opened(long_model) as llm:
        assert bits(llm, short) == exact[1]


def test_drafts_change_nothing(long_model: Path) -> None:
    with opened(long_model, spec="off") as llm:
        expected = bits(llm), bits(llm, temperature=0.9, seed=3)
    with opened(long_model, spec=6) as llm:
        assert (bits(llm), bits(llm, temperature=0.9, seed=3)) == expected


def test_prompts_in_company_are_read_in_whole_blocks(long_model: Path) -> None:
    texts = [TEXT, TEXT[7:], "a short one", TEXT[:500]]
    with opened(long_model) as llm:
        alone = [bits(llm, text) for text in texts]
    with opened(long_model, parallel=4) as llm:
        streams = [llm.complete(text, logprobs=2, **GREEDY) for text in texts]
        for stream, expected in zip(streams, alone, strict=True):
            stream.read()
            assert (stream.tokens, stream.logprobs) == expected


def test_what_is_kept_of_texts_is_not_for_exact_models(long_model: Path, tmp_path: Path) -> None:
    with opened(long_model, prefix_cache=True) as llm:
        expected = bits(llm)
        tokens = tuple(llm.tokenize(TEXT))
        assert llm.save_prefix(tokens, tmp_path / "text")
    with opened(long_model, None, prefix_cache=True) as llm:
        stream = llm.complete(TEXT, **GREEDY)
        stream.read()
        assert stream.stats is not None
        assert stream.stats.n_cached == 0
        with pytest.raises(EdgeInferError):
            llm.restore_prefix(tmp_path / "text")
    with opened(long_model, prefix_cache=True) as llm:
        stream = llm.complete(TEXT, logprobs=2, **GREEDY)
        stream.read()
        assert stream.stats is not None
        assert stream.stats.n_from_disk >= 9 * PAGE
        assert (stream.tokens, stream.logprobs) == expected


def test_an_isolated_device_reads_in_blocks_too(long_model: Path) -> None:
    with opened(long_model) as llm:
        expected = bits(llm)
    with opened(long_model, isolate=True) as llm:
        assert bits(llm) == expected


def test_layers_with_a_window_are_left_alone() -> None:
    with open_model(DATA / "gemma3-q8_0.gguf", block_budget=256) as model:
        budgets = {op.block_budget for op in model.spec.ops() if getattr(op, "window", 0)}
        others = {op.block_budget for op in model.spec.ops() if getattr(op, "window", 0) is None}
    assert (budgets, others) == ({None}, {256})
    with pytest.raises(BadSetting, match="prefill has nothing to leave out in"):
        open_model(DATA / "mistral-window-q8_0.gguf", block_budget=256)


@pytest.mark.parametrize("device", ["onnx", "openvino", "cpu,onnx"])
def test_other_devices_are_refused(long_model: Path, device: str) -> None:
    with pytest.raises(BadSetting, match="--device cpu with --approx prefill=N"):
        load(long_model, device=device, approx="prefill=256")


@pytest.mark.parametrize("value", ["prefill=255", "prefill=", "prefill=half", "prefill=300,prefill=400", "fill=300"])
def test_budgets_that_cannot_be_are_refused(long_model: Path, value: str) -> None:
    with pytest.raises(BadSetting, match=r"prefill=2048 \(256 tokens at least\)"):
        opened(long_model, value)
    assert Approximation.parse("0.05, prefill=512,kv=1024") == Approximation(0.05, 1024, 512)
    assert str(Approximation(0.05, 1024, 512)) == "0.05,kv=1024,prefill=512"


@pytest.mark.parametrize("approx", ["prefill=256", "kv=192,prefill=256"])
def test_slow_passes_are_of_whole_blocks_too(long_model: Path, approx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few tokens a pass would have time for beside other answers."""
    texts = [TEXT, TEXT[7:], "a short one", TEXT[3:900]]
    with opened(long_model, approx) as llm:
        alone = [bits(llm, text) for text in texts]
    monkeypatch.setattr(Pace, "seconds", lambda self, n_tokens: 0.01 * n_tokens)
    with opened(long_model, approx, n_sessions=4) as llm:
        found = {each.number: each for each in llm.batch(texts, parallel=4, logprobs=2, **GREEDY)}
        assert [found[number].tokens for number in range(len(texts))] == [tokens for tokens, _ in alone]
        streams = [llm.complete(text, logprobs=2, **GREEDY) for text in texts]
        for stream, expected in zip(streams, alone, strict=True):
            stream.read()
            assert (stream.tokens, stream.logprobs) == expected


def test_both_budgets_and_drafts(long_model: Path) -> None:
    """Blocks of prompts and tokens of answers, each within its own."""
    with opened(long_model, "kv=192,prefill=256", spec="off") as llm:
        expected = bits(llm, max_tokens=100), bits(llm, max_tokens=100, temperature=0.9, seed=3)
    with opened(long_model, "kv=192,prefill=256", spec=6) as llm:
        assert (bits(llm, max_tokens=100), bits(llm, max_tokens=100, temperature=0.9, seed=3)) == expected
    for other in ("kv=192", "prefill=256"):
        with opened(long_model, other, spec="off") as llm:
            assert bits(llm, max_tokens=100) != expected[0]
    with opened(long_model, "kv=1024,prefill=1024", spec="off") as llm:
        whole = bits(llm, max_tokens=100)
    with opened(long_model, None, spec="off") as llm:
        assert bits(llm, max_tokens=100) == whole
