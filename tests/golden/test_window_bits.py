"""Models with windows keep no more than these: the same text as where every layer keeps everything."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeinfer.engine.kv import limits
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.session import Session
from edgeinfer.errors import EdgeInferError
from tests.golden.goldens import DATA

FAMILIES = ("gemma3-q8_0", "gpt-oss-q8_0", "mistral-window-q8_0", "afmoe-q8_0", "gemma4-small-q8_0", "gemma3n-q8_0")
N_CONTEXT = 2048
LONG = "one two three four five six seven eight nine ten " * 30
"""More tokens than layers with a window keep: a token is a byte in these files."""
SETTINGS = [("f16", "off"), ("f16", "auto"), ("q8", 5)]


@pytest.fixture(scope="module", autouse=True)
def small_windows() -> Iterator[None]:
    """Keep few positions behind a window, so that short texts outgrow it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LEAST_BEHIND", 0)
        patch.setattr(limits, "BEHIND_SHARE", 0.0)
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest) -> Path:
    return DATA / f"{request.param}.gguf"


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def pair(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[LLM, LLM]]:
    """The model as it is loaded, and with every layer keeping everything, which does not draft."""
    kv, spec = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_windows", lambda *_: None)
        whole = load(path, device="cpu", n_context=N_CONTEXT, n_sessions=2, kv=kv, spec="off")
    with whole, load(path, device="cpu", n_context=N_CONTEXT, n_sessions=2, kv=kv, spec=spec) as kept:
        assert kept.telemetry.limits.windows is not None
        assert whole.telemetry.limits.windows is None
        yield kept, whole


def answer(session: Session, prompt: str, n_tokens: int = 40, temperature: float = 0.0) -> str:
    return "".join(session.complete(prompt, max_tokens=n_tokens, temperature=temperature, seed=3))


def alone(llm: LLM, prompt: str, n_tokens: int = 40, temperature: float = 0.0) -> str:
    with llm.session() as session:
        return answer(session, prompt, n_tokens, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sessions_write_the_same_text(pair: tuple[LLM, LLM], temperature: float, tmp_path: Path) -> None:
    kept, whole = pair
    expected = alone(whole, LONG, 200, temperature)
    with kept.session() as session:
        assert answer(session, LONG, 200, temperature) == expected
        assert answer(session, LONG, 200, temperature) == expected
        session.save(tmp_path / "saved")
        with session.branch() as twin:
            more = LONG + expected[:60]
            assert answer(twin, more, 40, temperature) == alone(whole, more, 40, temperature)
        assert answer(session, LONG[:300], 40, temperature) == alone(whole, LONG[:300], 40, temperature)
    with kept.session() as session:
        session.restore(tmp_path / "saved")
        more = LONG + expected + " and"
        assert answer(session, more, 40, temperature) == alone(whole, more, 40, temperature)


def test_requests_served_together_give_the_same_text(pair: tuple[LLM, LLM]) -> None:
    kept, whole = pair
    prompts = [f"{number} {LONG[: 150 * number]}" for number in range(9)]
    expected = [alone(whole, prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: alone(kept, prompt), prompts)) == expected
    found = {each.number: each.text for each in kept.batch(prompts, max_tokens=40, temperature=0.0)}
    assert found == dict(enumerate(expected))


def test_less_memory_is_taken_as_it_was_predicted(pair: tuple[LLM, LLM]) -> None:
    kept, whole = pair
    need, more = kept.info.need, whole.info.need
    assert need is not None
    assert more is not None
    assert kept.info.resident_bytes == need.weight_bytes + need.kv_bytes + need.buffer_bytes
    assert need.kv_bytes < more.kv_bytes
    assert 0 < need.window_bytes <= need.kv_bytes
    assert "(windows " in need.parts_text


def test_a_state_saved_with_another_context_is_refused(path: Path, tmp_path: Path) -> None:
    with load(path, device="cpu", n_context=N_CONTEXT) as llm, llm.session() as session:
        answer(session, LONG[:200], 5)
        session.save(tmp_path / "saved")
    with load(path, device="cpu", n_context=512) as llm, llm.session() as session:
        assert llm.telemetry.limits.windows is None
        with pytest.raises(EdgeInferError, match="saved with another context"):
            session.restore(tmp_path / "saved")


def test_the_reference_keeps_windows_too(path: Path) -> None:
    with load(path, device="reference", n_context=N_CONTEXT, spec="off") as llm:
        assert llm.telemetry.limits.windows is not None
        found = alone(llm, LONG, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_windows", lambda *_: None)
        with load(path, device="reference", n_context=N_CONTEXT, spec="off") as llm:
            assert alone(llm, LONG, 8) == found


@pytest.mark.parametrize("isolate", [False, True])
def test_devices_that_keep_everything_say_so(path: Path, isolate: bool) -> None:
    with load(path, device="null", n_context=N_CONTEXT, spec="off", isolate=isolate) as llm:
        assert llm.telemetry.limits.windows is None
    if not isolate:
        return
    with load(path, device="cpu", n_context=N_CONTEXT, spec="off", isolate=True) as llm:
        assert llm.telemetry.limits.windows is not None
        found = alone(llm, LONG)
    with load(path, device="cpu", n_context=N_CONTEXT, spec="off") as llm:
        assert alone(llm, LONG) == found
