"""A draft model: followed as far as it pays, changes no answer, and its memory counts beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.speculation import draft_model
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_model import (
    MOST_SPARE,
    UNASKED,
    DraftModelPolicy,
    Follower,
    Offer,
    draft_bytes,
    split_sources,
)
from edgeinfer.engine.speculation.drafters.draft_model import ASSUMED_SEEN, LIKELIEST_ACCEPTANCE, Chain
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, GAPS, MOST_CHAINED, STANDINGS, TOKEN_BITS
from edgeinfer.errors import BadSetting, DeviceFailed
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.load import open_model
from tests.conftest import SPECIAL, WORDS, byte_characters, write_tiny_llama
from tests.tiny_models import write_hollow_llama

MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn"}]
OPTIONS = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}]


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another tiny model with the same vocabulary and a shorter context."""
    return write_tiny_llama(tmp_path_factory.mktemp("other") / "other.gguf", seed=7, context=200)


def stats_of(stream: TextStream) -> Stats:
    """The numbers of an answer, after reading it."""
    stream.read()
    assert stream.stats is not None
    assert stream.stats.draft is not None
    return stream.stats


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("spec", ["auto", 2, 8, 64])
def test_no_draft_model_changes_an_answer(
    tiny_model: Path, other_model: Path, home: Path, spec: str | int, options: dict[str, float]
) -> None:
    with load(tiny_model, threads=1, spec="off") as llm:
        plain = [llm.chat(MESSAGES, max_tokens=n, **options).read() for n in (260, 5)]  # type: ignore[arg-type]
    for second in (tiny_model, other_model):
        with load(tiny_model, threads=1, spec=spec, draft_from=[second]) as llm:  # type: ignore[arg-type]
            assert [llm.chat(MESSAGES, max_tokens=n, **options).read() for n in (260, 5)] == plain  # type: ignore[arg-type]


def test_a_model_that_drafts_for_itself_is_always_right(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, threads=1, spec=6, draft_from=[tiny_model]) as llm:
        stats = stats_of(llm.chat(MESSAGES, max_tokens=121, temperature=0))
        counts = llm.drafts.acceptance[False].counts[llm.drafts.acceptance[False].starts[-1] + FIRST_BUCKET :][:GAPS]
    assert stats.accepted_per_step > 4
    assert stats.draft.sources["draft_model"].accepted > 60
    n_assumed = ASSUMED_SEEN * GAPS
    assert counts["seen"].sum() > n_assumed + 10
    assert (
        counts["seen"].sum() - counts["accepted"].sum() <= n_assumed - ASSUMED_SEEN * sum(LIKELIEST_ACCEPTANCE) + 0.01
    )


def test_a_model_that_drafts_for_itself_is_mostly_right_where_tokens_are_drawn(tiny_model: Path, home: Path) -> None:
    """The likeliest token of a tiny model's flat distributions would nearly always be wrong."""
    options = {"temperature": 1.0, "top_k": 6, "seed": 3}
    with load(tiny_model, threads=1, spec="off") as llm:
        plain = llm.chat(MESSAGES, max_tokens=200, **options).read()  # type: ignore[arg-type]
    with load(tiny_model, threads=1, spec=6, draft_from=[tiny_model]) as llm:
        stats = stats_of(stream := llm.chat(MESSAGES, max_tokens=200, **options))  # type: ignore[arg-type]
        assert stream.text == plain
    assert stats.draft.sources["draft_model"].accepted > 100
    assert stats.accepted_per_step > 3


def test_a_long_text_is_read_in_parts(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, threads=1, n_context=500, spec=4, draft_from=[tiny_model]) as llm:
        prompt = "the rain in the inn " * 28
        assert len(llm.tokenize(prompt)) > 256
        stats = stats_of(llm.complete(prompt, max_tokens=60, temperature=0))
        assert stats.draft.sources["draft_model"].accepted > 20


def test_sessions_give_back_what_the_draft_model_holds(tiny_model: Path, other_model: Path, home: Path) -> None:
    with load(tiny_model, threads=1, spec=4, draft_from=[other_model]) as llm:
        second = llm.drafts.draft_model._pool.executor
        n_free = second.n_free_pages
        for _ in range(20):
            with llm.session() as session:
                session.chat(MESSAGES, max_tokens=20, temperature=0).read()
        assert second.n_free_pages == n_free
    assert second.resident_bytes == 0


def test_models_are_told_from_texts(tiny_model: Path, tmp_path: Path, home: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("GGU")
    assert split_sources([notes, tiny_model, tmp_path]) == ((notes, tmp_path), tiny_model)
    missing = tmp_path / "missing.txt"
    assert split_sources([missing]) == ((missing,), None)
    with pytest.raises(BadSetting, match="names two models"):
        split_sources([tiny_model, tiny_model])


def test_another_vocabulary_is_refused(tiny_model: Path, tmp_path: Path, home: Path) -> None:
    import gguf

    def vocabulary(name: str, tokens: list[str]) -> Path:
        path = write_tiny_llama(tmp_path / name, n_tokens=len(tokens))
        reader = gguf.GGUFReader(path)
        writer = gguf.GGUFWriter(tmp_path / f"new-{name}", "llama")
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                value, kind = field.contents(), field.types[0]
                if field.name == "tokenizer.ggml.tokens":
                    value = tokens
                if field.name == "tokenizer.ggml.token_type":
                    value = [1] * len(tokens)
                writer.add_key_value(field.name, value, kind, field.types[-1] if len(field.types) > 1 else None)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / f"new-{name}"

    tokens = [*SPECIAL, *byte_characters(), *WORDS]
    swapped = [*tokens[:10], tokens[11], tokens[10], *tokens[12:]]
    with pytest.raises(BadSetting, match="token 10 is"):
        load(tiny_model, threads=1, draft_from=[vocabulary("swapped.gguf", swapped)])
    longer = [*tokens, *(f"<pad{n}>" for n in range(MOST_SPARE + 1))]
    with pytest.raises(BadSetting, match="vocabulary is another one"):
        load(tiny_model, threads=1, draft_from=[vocabulary("longer.gguf", longer)])
    with load(tiny_model, threads=1, draft_from=[vocabulary("padded.gguf", longer[:-1])], spec=4) as llm:
        padded = llm.chat(MESSAGES, max_tokens=30, temperature=0).read()
    with load(tiny_model, threads=1, spec="off") as llm:
        assert llm.chat(MESSAGES, max_tokens=30, temperature=0).read() == padded


@pytest.mark.parametrize("failure", [DeviceFailed("it broke down"), MemoryError()])
def test_a_draft_model_that_fails_is_left_alone_and_the_answer_goes_on(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Its user is told once, with the reason."""
    with load(tiny_model, threads=1, spec=4, draft_from=[tiny_model]) as llm:
        expected = llm.chat(MESSAGES, max_tokens=40, temperature=0).read()
        asked: list[Batch] = []

        def fail(batch: Batch) -> Floats:
            asked.append(batch)
            raise failure

        monkeypatch.setattr(llm.drafts.draft_model._pool.executor, "evaluate", fail)
        told = []
        for _ in range(2):
            stream = llm.chat(MESSAGES, max_tokens=40, temperature=0)
            assert stream.read() == expected
            told.append(stream.stats.notices)
        assert len(asked) == 1
        why = str(failure) or "it ran out of memory"
        assert told == [(f"the draft model failed and drafts no more ({why}); answers go on without it",), ()]


class Counting(Follower):
    """Says the same token again and again, and counts how often it was asked."""

    def __init__(self, gap: int) -> None:
        self.n_asked, self.n_run = 0, 1
        self._row = np.arange(BEST, dtype=np.int32) | gap << TOKEN_BITS

    def read(self, history: Sequence[int]) -> np.ndarray:
        self.n_asked += 1
        return self._row

    def go_on(self, token: int) -> np.ndarray:
        assert token == 0
        self.n_asked += 1
        return self._row


def asked(asking: DraftModelPolicy, follower: Counting, acceptance: AcceptanceEstimator, offer: Offer) -> int:
    """How often the model is asked for one pass."""
    before = follower.n_asked
    asking.begin()
    assert asking.ask([1, 2, 3], acceptance, offer) == (follower.n_asked > before)
    return follower.n_asked - before


def test_the_model_is_asked_as_far_as_it_pays() -> None:
    acceptance, chain, follower = AcceptanceEstimator([STANDINGS]), Chain(), Counting(gap=90)
    asking = DraftModelPolicy(follower, chain, 0)
    costs = Costs({64: 1.0}, corrected=False)
    costs.unit_s = 1.0
    offer = Offer(1.0, 1.0, costs, 10, False)
    sure = acceptance.counts[FIRST_BUCKET + 5 : FIRST_BUCKET + 6]
    sure["seen"], sure["accepted"] = 1000, 995
    assert asked(asking, follower, acceptance, offer) == 10  # passes are free, and so is asking
    assert chain.n_rows == 10
    assert asked(asking, follower, acceptance, Offer(1.0, 1.0, costs, 64, False)) == MOST_CHAINED
    assert asked(asking, follower, acceptance, Offer(1.0, 1.0, costs, 0, False)) == 0
    sure["accepted"] = 300
    asking._token_s = 0.1
    assert asked(asking, follower, acceptance, offer) == 1
    asking._token_s = 5.0  # five passes of the large model
    assert asked(asking, follower, acceptance, offer) == 0
    assert asked(asking, follower, acceptance, Offer(1.0, 1.0, costs, 10, True)) == 10
    assert [asked(asking, follower, acceptance, offer) for _ in range(UNASKED + 1)] == [0] * UNASKED + [1]


def test_the_model_is_not_asked_where_the_others_know_better() -> None:
    acceptance, follower = AcceptanceEstimator([STANDINGS]), Counting(gap=90)
    asking = DraftModelPolicy(follower, Chain(), 0)
    costs = Costs({2: 1.1, 16: 2.0}, corrected=False)
    costs.unit_s = 1.0
    asked(asking, follower, acceptance, Offer(1.0, 1.0, costs, 1, False))
    asking._token_s = 0.3
    assert asked(asking, follower, acceptance, Offer(1.0, 1.0, costs, 8, False)) > 0
    assert asked(asking, follower, acceptance, Offer(9.0, 1.8, costs, 8, False)) == 0


MB = 10**6
LIMITS = limits_for(256)
RAM = 300_000
"""Less than the tiny model's weights, with room for a window."""


def test_it_takes_weights_cache_and_buffers(tiny_model: Path, tmp_path: Path) -> None:
    with open_model(tiny_model, 256) as model:
        need = memory_need("cpu", model.spec, model.file.tensors, limits_for(256, 2))  # spare pages serve a session
    assert draft_bytes([tiny_model], LIMITS) == need.weight_bytes + need.kv_bytes + need.buffer_bytes
    assert draft_bytes([tmp_path], LIMITS) == 0


@pytest.mark.parametrize("ram_bytes", [500 * MB, None])
def test_it_is_counted_where_not_all_weights_stay(tmp_path: Path, home: Path, ram_bytes: int | None) -> None:
    with open_model(write_hollow_llama(tmp_path / "large.gguf"), 256) as model:
        given, available = (model.spec, model.file, "it", LIMITS), 900 * MB
        alone, _ = planned_weights(*given, WeightBudget(ram_bytes), None, available)
        beside, _ = planned_weights(*given, WeightBudget(ram_bytes, beside_bytes=100 * MB), None, available)
        assert alone is not None
        assert beside is not None
        assert 95 * MB < alone.held_bytes - beside.held_bytes < 105 * MB
        assert planned_weights(*given, WeightBudget(None, beside_bytes=100 * MB), None, 2000 * MB)[0] is None


def test_it_is_left_out_where_the_limit_has_no_room(tiny_model: Path, home: Path) -> None:
    whole_bytes = tiny_model.stat().st_size
    with load(tiny_model, device="cpu", threads=1, spec="off") as llm:
        expected = llm.complete("the rain", temperature=0, max_tokens=12).read()
    for ram_bytes in (RAM, 2 * whole_bytes):  # read from disk in part, and all in memory with nothing to spare
        with load(tiny_model, device="cpu", threads=1, spec=4, ram_bytes=ram_bytes, draft_from=[tiny_model]) as llm:
            assert (llm.telemetry.limits.stored is not None) == (ram_bytes == RAM)
            assert any(note.startswith("nothing is drafted by tiny.gguf, which takes") for note in llm.info.notices), (
                llm.info.notices
            )
            stream = llm.complete("the rain", temperature=0, max_tokens=12)
            assert stream.read() == expected
            assert stream.stats is not None
            assert stream.stats.draft is not None
            assert "draft_model" not in stream.stats.draft.sources


def test_it_is_left_out_where_memory_is_short(tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "memory_for_model", lambda: 100 * MB)
    with load(tiny_model, device="cpu", threads=1, spec=4, draft_from=[tiny_model]) as llm:
        (notice,) = llm.info.notices
        assert notice.startswith("nothing is drafted by tiny.gguf: the model needs")
        assert llm.drafts is not None
        assert llm.complete("the rain", temperature=0, max_tokens=3).read()
