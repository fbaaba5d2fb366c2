"""Drafts on the CPU device: whatever is drafted, greedy and sampled answers are those of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.requests.drafting import Speculator
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafts import ModelDrafts, loops_library
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from edgeinfer.settings import KVKind
from tests.golden.goldens import DATA
from tests.unit.engine.scheduler.served import stream_of
from tests.unit.engine.speculation.test_speculative_generation import right, wild

N_CONTEXT = 256
PROMPT = tuple(range(3, 120))
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "repeat_penalty": 1.1}


@pytest.fixture(
    scope="module",
    params=[
        *((kv, None) for kv in get_args(KVKind)),
        ("f16", "qwen3moe-q4_0"),
        ("f16", "gemma4-small-q8_0"),
        ("f16", "gemma3n-q8_0"),
    ],
)
def pool(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[tuple[Pool, Tokenizer]]:
    kv, mixture = request.param
    with open_model(tiny_model if mixture is None else DATA / f"{mixture}.gguf", N_CONTEXT) as model:
        limits = limits_for(N_CONTEXT, n_sessions=2, kv=kv)
        request = OpeningRequest(model.spec, model.file, limits, DeviceOptions(n_workers=2))
        with open_executor("cpu", request, "tiny") as executor:
            yield Pool(executor), Tokenizer.from_metadata(model.file.metadata)


def answer(pool: tuple[Pool, Tokenizer], options: dict[str, float], speculator: Speculator | None) -> TextStream:
    pages = pool[0].executor.n_free_pages
    cached = pool[0].open()
    bias = dict.fromkeys(pool[1].vocabulary.end_of_generation, float("-inf"))
    wanted = Request(PROMPT, SamplingSettings(**options, logit_bias=bias), 96)  # type: ignore[arg-type]
    generation = stream_of(cached, pool[1], wanted, speculator)
    assert "".join(generation) == generation.text
    cached.close()
    assert pool[0].executor.n_free_pages == pages
    return generation


@pytest.mark.parametrize("options", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_token(pool: tuple[Pool, Tokenizer], options: dict[str, float]) -> None:
    plain = answer(pool, options, None)
    assert len(plain.tokens) == 96
    assert len(set(plain.tokens)) > 8
    for ahead, forks in ((1, 0), (1, 1), (4, 2), (12, 4), (40, 0)):
        quick = answer(pool, options, right(plain.tokens, len(PROMPT), ahead, forks))
        assert (quick.tokens, quick.text) == (plain.tokens, plain.text)
        assert quick.stats.steps == 1 + -(-95 // (1 + ahead))
    for seed in range(6):
        assert answer(pool, options, wild(seed)).tokens == plain.tokens


@pytest.mark.parametrize("options", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_all_drafters_together_change_no_token(pool: tuple[Pool, Tokenizer], options: dict[str, float]) -> None:
    plain = answer(pool, options, None)
    for fixed in (None, 2, 7, 64):
        drafts = ModelDrafts(loops_library(), pool[1].n_tokens, Costs({2: 1.05, 64: 2.0}, corrected=False), fixed)
        session = drafts.session()
        first, second = (answer(pool, options, session) for _ in range(2))
        assert first.tokens == second.tokens == plain.tokens
        assert second.stats is not None
        assert second.stats.draft is not None
        if fixed is None or fixed > 2:
            assert second.stats.steps < 0.5 * len(plain.tokens)  # it has seen this answer
        assert sum(count.accepted for count in second.stats.draft.sources.values()) > 20


def test_a_hundred_turns_leak_no_page(pool: tuple[Pool, Tokenizer]) -> None:
    pages = pool[0].executor.n_free_pages
    drafts = ModelDrafts(loops_library(), pool[1].n_tokens, Costs({64: 1.5}, corrected=False))
    cached, session = pool[0].open(), drafts.session()
    text = list(PROMPT[:20])
    for turn in range(100):
        wanted = Request(tuple(text), SamplingSettings(seed=turn), 6)
        generation = stream_of(cached, pool[1], wanted, session)
        for piece in generation:
            if turn % 7 == 3 and piece:
                generation.stop()
        text = [*text, *generation.tokens, 5 + turn] if len(text) < 200 else list(PROMPT[:20])
        assert list(cached.tokens) == [*wanted.prompt, *generation.tokens][: len(cached.tokens)]
    cached.close()
    assert pool[0].executor.n_free_pages == pages


def test_branches_draft_each_for_itself(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, threads=1, spec=8) as llm, load(tiny_model, threads=1, spec="off") as plain:
        texts = []
        for each in (llm, plain):
            with each.session() as session:
                session.complete("the rain in the inn", temperature=0, max_tokens=20).read()
                with session.branch() as twin:
                    found = [
                        one.complete(text, temperature=0, max_tokens=30).read()
                        for text in ("the rain in the inn and", "the rain in the inn or")
                        for one in (session, twin)
                    ]
            texts.append(found)
        assert texts[0] == texts[1]
