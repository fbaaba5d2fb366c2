"""Answers with `reuse` "shifted" on real lanes: what is told of them, and that nothing exact is touched by them."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.kv import limits
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.prefixes.folders import PAGES, prefixes_folder
from edgeinfer.engine.scheduler.shifted_reuse import REREAD
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel
from tests.adapter_files import write_adapter
from tests.golden.goldens import DATA
from tests.unit.engine.prefixes.test_prefix_store import Usage

WORDS = [f"w{number:03d} " for number in np.random.default_rng(0).integers(0, 1000, 90)]
BODY = "".join(WORDS)
"""A byte of it is a token."""
OLD, NEW = "Today is Monday. " + BODY, "It is Saturday afternoon. " + BODY
FAMILIES = ("llama-q8_0", "qwen3-q4_0", "minicpm3-q8_0", "gemma3-q8_0", "cohere2-q8_0", "gpt-oss-q8_0", "olmoe-q8_0")


@pytest.fixture(autouse=True)
def small_windows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few positions behind a window, and nothing where users keep it, however full this machine's disk is."""
    monkeypatch.setattr(limits, "LEAST_BEHIND", 64)
    monkeypatch.setattr(limits, "BEHIND_SHARE", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**11, 9 * 10**11))


def opened(name: str = "llama-q8_0", **options: Any) -> LLM:
    options = {"device": "cpu", "reuse": "shifted", "spec": "off", "n_context": 1024, **options}
    return load(DATA / f"{name}.gguf", **options)


def asked(llm: LLM, text: str, n: int = 10, **options: Any) -> tuple[object, int, int]:
    """Tokens and log probabilities of an answer, and how many tokens of its prompt were reused, and shifted."""
    stream = llm.complete(text, max_tokens=n, logprobs=3, **{"temperature": 0.0, **options})
    stream.read()
    assert stream.stats is not None
    return (stream.tokens, stream.logprobs), stream.stats.n_cached, stream.stats.n_shifted


def anew(text: str, name: str = "llama-q8_0", n: int = 10, **options: Any) -> object:
    with opened(name, reuse="exact", **options) as llm:
        return asked(llm, text, n)[0]


@pytest.mark.parametrize(
    ("name", "kv"), [*((name, "f16") for name in FAMILIES), *product(FAMILIES[:3], ("q8", "q4")), (FAMILIES[3], "q8")]
)
def test_text_after_a_changed_line_is_taken_from_where_it_stood(name: str, kv: str) -> None:
    with opened(name, reuse="exact", kv=kv) as llm:
        expected = {text: asked(llm, text)[0] for text in (OLD, NEW)}
    with opened(name, kv=kv) as llm:
        assert asked(llm, OLD) == (expected[OLD], 0, 0)
        _, n_cached, n_shifted = asked(llm, NEW)
        assert n_shifted >= len(BODY) - REREAD - 1
        assert n_cached - n_shifted <= 2
        assert asked(llm, NEW, reuse="exact")[0] == expected[NEW]
        assert asked(llm, OLD, reuse="exact")[0] == expected[OLD]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 4}])
def test_drafts_change_no_token_after_it(options: dict[str, Any]) -> None:
    found = []
    for spec in ("off", "on"):
        with opened(spec=spec) as llm:
            asked(llm, OLD, 30, **options)
            found.append(asked(llm, NEW, 30, **options))
    assert found[0] == found[1]
    assert found[0][2] > 300


def test_nothing_of_it_is_kept_on_disk_and_what_is_kept_is_exact() -> None:
    expected = anew(NEW)
    with opened(prefix_cache=True) as llm:
        asked(llm, OLD)
    n_files = len(list(prefixes_folder().rglob(f"*{PAGES}")))
    assert n_files
    with opened(prefix_cache=True) as llm:
        assert asked(llm, OLD)[1:] == (len(OLD) - 1, 0)
        assert asked(llm, NEW)[2] > 300
    assert len(list(prefixes_folder().rglob(f"*{PAGES}"))) == n_files
    with opened(prefix_cache=True, reuse="exact") as llm:
        assert asked(llm, NEW) == (expected, 0, 0)


def test_where_nothing_is_shifted_all_bits_are_as_ever() -> None:
    longer = OLD + "and so on, and on"
    with opened(reuse="exact") as llm:
        expected = [asked(llm, text) for text in (OLD, longer, OLD[:200])]
    with opened() as llm:
        assert [asked(llm, text) for text in (OLD, longer, OLD[:200])] == expected


@pytest.mark.parametrize("parallel", [1, 2])
def test_many_prompts_with_one_body(parallel: int) -> None:
    with opened() as llm:
        texts = [f"{number} is a number. " + BODY for number in range(4)]
        found = {answer.number: answer for answer in llm.batch(texts, parallel=parallel, max_tokens=5, temperature=0.0)}
        assert all(answer.error is None and len(answer.tokens) == 5 for answer in found.values())
        shifted = [answer.stats.n_shifted > 300 for answer in found.values() if answer.stats is not None]
        assert shifted.count(True) >= 4 - parallel
        llm._driver.scheduler.admission.prefixes.close()
        assert not llm._pool.members


def test_a_saved_session_knows_what_of_it_is_exact(tmp_path: Path) -> None:
    expected = anew(NEW)
    with opened() as llm:
        with llm.session() as session:
            session.complete(OLD, max_tokens=1).read()
            stream = session.complete(NEW, max_tokens=1)
            stream.read()
            assert stream.stats is not None
            assert stream.stats.n_shifted > 300
            session.save(tmp_path / "session")
        llm.restore_prefix(tmp_path / "session")
        assert asked(llm, NEW, reuse="exact")[0] == expected
    with opened(reuse="exact") as llm, llm.session() as session:
        session.restore(tmp_path / "session")
        stream = session.complete(NEW, max_tokens=10, logprobs=3, temperature=0.0)
        stream.read()
        assert (stream.tokens, stream.logprobs) == expected


def test_what_cannot_be_moved_is_refused_with_the_reason() -> None:
    for name, reason in (
        ("opt-q8_0", r"positions are learned \(position_embed\); use --reuse exact"),
        ("lfm2-q8_0", "states sum up the whole text"),
    ):
        with pytest.raises(UnsupportedModel, match=reason):
            opened(name, n_context=96)
        with (
            opened(name, reuse="exact", n_context=96) as llm,
            pytest.raises(BadSetting, match="cannot be shifted: cached keys of"),
        ):
            asked(llm, "Hi", reuse="shifted")
    with pytest.raises(BadSetting, match="onnx moves no cached tokens: use --device cpu"):
        opened(device="onnx")
    with pytest.raises(UnsupportedModel, match="process of its own"):
        opened(isolate=True)
    with pytest.raises(BadSetting, match="exact or shifted"):
        opened(reuse="twisted")
    with opened() as llm, pytest.raises(BadSetting, match="it must be exact or shifted"):
        asked(llm, OLD, reuse="twisted")


def test_it_is_told_at_once() -> None:
    with opened(device="auto") as llm:
        assert llm.info.device == "cpu"
        assert any("not exact" in notice for notice in llm.info.notices)
    with opened(reuse="exact") as llm:
        assert not any("not exact" in notice for notice in llm.info.notices)


def test_a_lane_that_moves_nothing_says_so() -> None:
    with opened(reuse="exact") as llm, llm.session() as session:
        session.complete(OLD, max_tokens=1).read()
        cached, donor = llm._pool.open(), session._cached
        llm._pool.executor.capabilities = llm._pool.executor.capabilities.__class__()  # type: ignore[attr-defined]
        with pytest.raises(EdgeInferError, match="use --reuse exact"):
            cached.append_shifted(donor, 0, 5)


def test_adapters_with_other_scales_move_nothing_of_each_other(tmp_path: Path) -> None:
    adapter = write_adapter(DATA / "llama-q8_0.gguf", tmp_path / "a.gguf", rank=4, seed=3)
    with opened(reuse="exact", lora=[adapter]) as llm:
        expected = asked(llm, NEW, lora={0: 0.5})[0]
    with opened(lora=[adapter]) as llm:
        asked(llm, OLD, lora={0: 1.0})
        assert asked(llm, NEW, lora={0: 0.5}) == (expected, 0, 0)
        found, _, n_shifted = asked(llm, NEW, lora={0: 1.0})
        assert n_shifted > 300
        assert asked(llm, NEW, lora={0: 0.5}, reuse="exact")[0] == expected
    with opened(lora=[adapter]) as llm:  # and what is moved does not depend on what others left beside it
        asked(llm, OLD, lora={0: 1.0})
        assert asked(llm, NEW, lora={0: 1.0})[0] == found


def test_prompts_that_are_scored_are_exact() -> None:
    def scored(llm: LLM) -> object:
        stream = llm.complete(NEW, max_tokens=0, scored_from=200, temperature=0.0)
        stream.read()
        return stream.prompt_logprobs

    with opened(reuse="exact") as llm:
        expected = scored(llm)
    with opened() as llm:
        asked(llm, OLD)
        assert asked(llm, NEW)[2] > 300
        assert scored(llm) == expected


def test_texts_with_modules_do_not_stand_in_the_way() -> None:
    with opened() as llm:
        module = llm.modules.add("rules", BODY[:200])
        llm.complete(OLD, modules=["rules"], max_tokens=1).read()
        asked(llm, OLD)
        assert asked(llm, NEW)[2] > 300
        assert asked(llm, NEW, reuse="exact")[0] == anew(NEW)
        assert module in list(llm.modules)
