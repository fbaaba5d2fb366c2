"""Answers that share passes are drafted like those that run alone, and stay the same."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.batcher import BatchStream, Prompt
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.graph.step import Batch
from tests.golden.goldens import DATA
from tests.head_files import write_with_head
from tests.unit.engine.watching import watched

TEXTS = ["the rain", "in the inn and in the", "another heat", "then", "a", "the the the", "the hen in the tin", "rain"]
MOST = 40
GREEDY = {"temperature": 0.0}
CHAT = {"temperature": 0.7, "top_p": 0.9, "repeat_penalty": 1.1}
FREE = {2: 1.0, 64: 1.0}
"""Passes that cost the same whatever they verify: as much is drafted as is likely enough."""
RAM = 300_000
"""Less than the tiny model's weights, so that some are read from disk in every pass."""


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def prompts() -> list[Prompt]:
    return [Prompt(text, {"seed": number}) for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> dict[str, list[tuple[int, ...]]]:
    """What each prompt gives alone and without drafts, greedy and sampled."""
    found: dict[str, list[tuple[int, ...]]] = {}
    with load(tiny_model, device="cpu", threads=1, n_context=128, spec="off") as llm:
        for name, options in (("greedy", GREEDY), ("sampled", CHAT)):
            streams = [
                llm.complete(text, seed=number, max_tokens=MOST, **options)  # type: ignore[arg-type]
                for number, text in enumerate(TEXTS)
            ]
            for stream in streams:
                stream.read()
            found[name] = [stream.tokens for stream in streams]
    return found


def ran(llm: LLM, parallel: int, options: dict[str, float]) -> tuple[list[tuple[int, ...]], BatchStream]:
    """The tokens of a batch, in the order of its prompts."""
    stream = llm.batch(prompts(), parallel=parallel, max_tokens=MOST, **options)  # type: ignore[arg-type]
    found = {each.number: each for each in stream}
    assert [found[number].error for number in range(len(TEXTS))] == [None] * len(TEXTS)
    return [found[number].tokens for number in range(len(TEXTS))], stream


@pytest.mark.parametrize("parallel", [1, 2, 4, 8])
def test_a_batch_is_drafted_and_stays_the_same(
    tiny_model: Path, plain: dict[str, list[tuple[int, ...]]], parallel: int
) -> None:
    with load(tiny_model, device="cpu", threads=1, n_context=128, n_sessions=8, verify_cost=FREE) as llm:
        for name, options in (("greedy", GREEDY), ("sampled", CHAT)):
            tokens, stream = ran(llm, parallel, options)
            assert tokens == plain[name]
            assert stream.counts.n_drafted >= stream.counts.n_accepted > 0
            assert stream.counts.n_evaluated > stream.counts.n_generated
            assert 0 < stream.counts.draft_s < stream.counts.seconds
            if name == "greedy":  # drafts save passes: without any, one gives a token for each of its answers
                assert stream.counts.passes < MOST * len(TEXTS) / parallel


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What refers to itself stays in memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", ["tiny", "head"])
def test_the_tables_of_an_answer_go_with_its_end(
    name: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the answer itself is kept, as its stream does."""
    path = (
        write_with_head(DATA / "converted" / "qwen35-bf16.gguf", tmp_path / "m.gguf") if name == "head" else tiny_model
    )
    opened = list[weakref.ref[SessionDrafts]]()
    with load(path, device="cpu", threads=1, n_context=128, spec=4) as llm:
        assert llm.drafts is not None
        opens = llm.drafts.session

        def noted() -> SessionDrafts:
            opened.append(weakref.ref(session := opens()))
            return session

        monkeypatch.setattr(llm.drafts, "session", noted)
        streams = [llm.complete(text, max_tokens=5, **GREEDY) for text in TEXTS[:3]]  # type: ignore[arg-type]
        for stream in streams:
            stream.read()
        assert [session() for session in opened] == [None] * 3
        assert all(stream.stats is not None and stream.stats.draft is not None for stream in streams)


def test_a_batch_without_speculation_drafts_nothing(tiny_model: Path, plain: dict[str, list[tuple[int, ...]]]) -> None:
    with load(tiny_model, device="cpu", threads=1, n_context=128, n_sessions=8, spec="off") as llm:
        tokens, stream = ran(llm, 4, GREEDY)
    assert tokens == plain["greedy"]
    assert (stream.counts.n_drafted, stream.counts.n_accepted, stream.counts.draft_s) == (0, 0, 0.0)


def test_a_batch_whose_weights_are_read_from_disk_is_drafted(
    tiny_model: Path, plain: dict[str, list[tuple[int, ...]]]
) -> None:
    """What a pass takes is measured, not assumed."""
    with load(tiny_model, device="cpu", threads=1, n_context=128, n_sessions=4, ram_bytes=RAM) as llm:
        assert llm.telemetry.limits.stored is not None
        tokens, stream = ran(llm, 4, GREEDY)
    assert tokens == plain["greedy"]
    assert stream.counts.n_accepted > 0


def test_answers_are_drafted_in_passes_that_read_prompts_with_weights_from_disk(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of more than 32 tokens, one after another as places become free."""
    texts = [Prompt(" ".join([text] * 40)[:120], {"max_tokens": 12 + 9 * number}) for number, text in enumerate(TEXTS)]
    sizes = {"threads": 1, "n_context": 256, "n_sessions": 4}
    with load(tiny_model, device="cpu", spec="off", **sizes) as llm:  # type: ignore[arg-type]
        expected = {each.number: each.tokens for each in llm.batch(texts, parallel=3, **GREEDY)}  # type: ignore[arg-type]
    with load(tiny_model, device="cpu", ram_bytes=RAM, verify_cost=FREE, **sizes) as llm:  # type: ignore[arg-type]
        assert llm.telemetry.limits.stored is not None
        batches = watched(llm._pool, monkeypatch)
        found = {each.number: each.tokens for each in llm.batch(texts, parallel=3, **GREEDY)}  # type: ignore[arg-type]
    assert found == expected
    reading = [batch for batch in batches if len(batch.tokens) - len(batch.outputs) > 32 and len(batch.outputs) > 1]
    assert reading
    assert sum(sum(n_drafted(batch)) > 0 for batch in reading) > len(reading) / 2


def n_drafted(batch: Batch) -> list[int]:
    """Drafted tokens of each sequence of a pass: those with logits, without the first of them."""
    sequences = batch.sequences[batch.outputs]
    return [int((sequences == each).sum()) - 1 for each in np.unique(sequences)]


def test_requests_that_share_passes_are_drafted(
    tiny_model: Path, plain: dict[str, list[tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server runs them: streams of an event loop."""

    async def ask(llm: LLM, number: int) -> tuple[int, ...]:
        stream = llm.complete(TEXTS[number], seed=number, max_tokens=MOST, **GREEDY)  # type: ignore[arg-type]
        async for _ in stream:
            pass
        assert stream.stats is not None
        assert stream.stats.draft is not None
        return stream.tokens

    async def together(llm: LLM) -> list[tuple[int, ...]]:
        return await asyncio.gather(*(ask(llm, number) for number in range(len(TEXTS))))

    with load(tiny_model, device="cpu", threads=1, n_context=128, n_sessions=8, verify_cost=FREE) as llm:
        batches = watched(llm._pool, monkeypatch)
        assert asyncio.run(together(llm)) == plain["greedy"]
    shared = [counts for counts in map(n_drafted, batches) if len(counts) > 1]
    assert sum(sum(counts) > 0 for counts in shared) > len(shared) / 2
    assert any(sum(count > 0 for count in counts) > 1 for counts in shared)  # of several answers in one pass
