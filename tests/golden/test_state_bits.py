"""Models with states: the same tokens with drafts, again, on branches, after going back, saved, restored, together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.session import Session
from edgeinfer.errors import DoesNotFit, EdgeInferError
from tests.golden.goldens import DATA

FAMILIES = (
    "lfm2-q8_0",
    "qwen35-q8_0",
    "converted/granitehybrid-bf16",
    "converted/nemotron-h-bf16",
    "converted/nemotron-h-moe-bf16",
    "converted/mamba2-bf16",
    "converted/mamba-bf16",
    "converted/jamba-bf16",
    "converted/kimi-linear-bf16",
)
PROMPTS = ("hello world, hello world, hello", "abc abc abc abc", "one two three four " * 6)
TEMPERATURES = (0.0, 0.8)
TEXTS = [
    (5, PROMPTS[0], 0.0),
    (5, PROMPTS[1], 0.8),
    (5, PROMPTS[2], 0.0),
    ("auto", PROMPTS[0], 0.8),
    ("auto", PROMPTS[1], 0.0),
    ("auto", PROMPTS[2], 0.8),
]
"""Tokens of a drafted pass, prompts and temperatures: each pair of them."""


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest) -> Path:
    return DATA / f"{request.param}.gguf"


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[LLM]:
    with load(path, device="cpu", n_context=256, n_sessions=4, spec="off") as llm:
        yield llm


@pytest.fixture(scope="module", params=[5, "auto"])
def drafting(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(path, device="cpu", n_context=256, n_sessions=4, spec=request.param) as llm:
        yield llm


@pytest.fixture(params=TEMPERATURES)
def temperature(request: pytest.FixtureRequest) -> float:
    found: float = request.param
    return found


def answer(session: Session, prompt: str, temperature: float, n_tokens: int = 90) -> str:
    return "".join(session.complete(prompt, max_tokens=n_tokens, temperature=temperature, seed=5))


def answer_alone(llm: LLM, prompt: str, temperature: float, n_tokens: int = 90) -> str:
    with llm.session() as session:
        return answer(session, prompt, temperature, n_tokens)


@pytest.mark.parametrize(("drafting", "prompt", "temperature"), TEXTS, indirect=["drafting"], scope="module")
def test_sessions_give_the_answers_of_plain_ones(
    plain: LLM, drafting: LLM, prompt: str, temperature: float, tmp_path: Path
) -> None:
    expected = answer_alone(plain, prompt, temperature)
    longer = (prompt + expected)[:150]
    with drafting.session() as session:
        assert answer(session, prompt, temperature) == expected
        assert answer(session, prompt, temperature) == expected
        session.save(tmp_path / "saved")
        with session.branch() as twin:
            assert answer(twin, longer, temperature) == answer_alone(plain, longer, temperature)
        assert answer(session, f"{prompt} more", temperature) == answer_alone(plain, f"{prompt} more", temperature)
    with drafting.session() as session:
        session.restore(tmp_path / "saved")
        assert answer(session, longer, temperature) == answer_alone(plain, longer, temperature)


def test_answers_made_together_are_those_made_alone(plain: LLM, drafting: LLM, temperature: float) -> None:
    prompts = [f"{number} hello world {number * 7}" for number in range(9)]
    expected = [answer_alone(plain, prompt, temperature, 60) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda prompt: answer_alone(drafting, prompt, temperature, 60), prompts))
    assert found == expected


def test_a_model_with_states_is_run_by_one_device(path: Path) -> None:
    with pytest.raises(EdgeInferError, match=r"(has states besides keys and values|is a mixture).* --device cpu"):
        load(path, device="cpu,reference", n_context=256)


def test_a_plan_counts_states(plain: LLM) -> None:
    need = plain.info.need
    assert need is not None
    assert 0 < need.state_bytes <= need.kv_bytes
    assert (need.kv_bytes == need.state_bytes) == (need.kv_bytes_per_token == 0)  # without any keys and values
    assert "(states " in need.parts_text
    assert plain.info.resident_bytes == need.weight_bytes + need.kv_bytes + need.buffer_bytes


def test_a_saved_state_of_another_model_is_refused(plain: LLM, tmp_path: Path) -> None:
    with load(DATA / "llama-q8_0.gguf", device="cpu", n_context=128) as other, other.session() as session:
        answer(session, PROMPTS[0], 0.0, 5)
        session.save(tmp_path / "other")
    with plain.session() as session, pytest.raises(EdgeInferError, match="another model"):
        session.restore(tmp_path / "other")


def test_more_sequences_than_states_wait_or_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three places: a pass of one sequence, and one other that rests; whoever comes back reads its text again."""
    monkeypatch.setattr("edgeinfer.graph.operands.MOST_STATE_BYTES", 0)
    monkeypatch.setattr("edgeinfer.graph.operands.FEWEST_STATES", 3)
    with load(path, device="cpu", n_context=256, n_sessions=4, spec="off") as llm:
        expected = [answer_alone(llm, prompt, 0.0, 20) for prompt in PROMPTS]
        sessions = [llm.session() for _ in PROMPTS]
        for _ in range(2):
            assert [answer(s, prompt, 0.0, 20) for s, prompt in zip(sessions, PROMPTS, strict=True)] == expected
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda prompt: answer_alone(llm, prompt, 0.0, 20), PROMPTS))
        assert found == expected


def test_no_more_answers_at_a_time_than_states_are_there_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.graph.operands.MOST_STATE_BYTES", 0)
    monkeypatch.setattr("edgeinfer.graph.operands.FEWEST_STATES", 6)
    with load(path, device="cpu", n_context=256, n_sessions=4, spec="off") as llm:
        assert llm.telemetry.limits.n_sequences == 3
        found = [answer.text for answer in llm.batch(PROMPTS * 3, max_tokens=20, temperature=0.0)]
        assert sorted(found) == sorted([answer_alone(llm, prompt, 0.0, 20) for prompt in PROMPTS] * 3)


def test_there_must_be_places_for_a_pass(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.graph.operands.MOST_STATE_BYTES", 0)
    monkeypatch.setattr("edgeinfer.graph.operands.FEWEST_STATES", 1)
    with (
        load(path, device="cpu", n_context=256, spec="off") as llm,
        pytest.raises(DoesNotFit, match="states of 1 more"),
    ):
        answer_alone(llm, PROMPTS[0], 0.0, 20)
