"""A draft model: followed as far as it pays, changes no answer, and its memory counts beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.engine.requests.drafting import Draft, DraftRoom
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.speculation import draft_model
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_followers import CachedFollower
from edgeinfer.engine.speculation.draft_model import DraftModel, FollowedText, draft_bytes, split_sources
from edgeinfer.engine.speculation.draft_rounds import UNASKED, DraftRounds, NextDraws, Offer
from edgeinfer.engine.speculation.drafters.draft_model import ASSUMED_SEEN, LIKELIEST_ACCEPTANCE, Chain
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, GAPS, MOST_CHAINED, STANDINGS, TOKEN_BITS
from edgeinfer.engine.speculation.win_counts import WinCounts
from edgeinfer.errors import BadSetting, DeviceFailed
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.load import open_model
from tests.conftest import write_tiny_llama
from tests.tiny_models import write_hollow_llama
from tests.unit.engine.watching import watched

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


@pytest.mark.parametrize(
    ("options", "per_pass"),
    [
        ({"temperature": 1.0, "top_k": 6, "seed": 3}, 4.5),
        ({"temperature": 1.3, "top_k": 7, "seed": 4, "repeat_penalty": 1.3, "presence_penalty": 0.3}, 4.6),
        ({"temperature": 0.5, "top_k": 8, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {70: 1.5}}, 4.6),
        ({"temperature": 0.0, "repeat_penalty": 1.4, "penalty_window": 20}, 4.5),
    ],
)
def test_a_model_that_drafts_for_itself_foresees_how_tokens_are_chosen(
    tiny_model: Path, home: Path, options: dict[str, float], per_pass: float
) -> None:
    """The likeliest token of a tiny model's flat distributions would nearly always be wrong.

    Tokens chosen by how often such ones were right, without temperature and penalties, give 3.0, 2.5, 3.5 and 3.8.
    """
    with load(tiny_model, threads=1, spec="off") as llm:
        plain = llm.chat(MESSAGES, max_tokens=200, **options).read()  # type: ignore[arg-type]
    with load(tiny_model, threads=1, spec=6, draft_from=[tiny_model]) as llm:
        stats = stats_of(stream := llm.chat(MESSAGES, max_tokens=200, **options))  # type: ignore[arg-type]
        assert stream.text == plain
    assert stats.draft.sources["draft_model"].accepted > 100
    assert stats.accepted_per_step > per_pass


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


class Counting(DraftModel):
    """Says the same token again and again, and counts the texts of each round."""

    def __init__(self, gap: int) -> None:
        self.rounds, self.n_run = list[int](), 1
        self._row = np.arange(BEST, dtype=np.int32) | gap << TOKEN_BITS

    def read(self, texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        self.rounds.append(len(texts))
        return [text.add(self._row, 20.0) for text in texts]

    def go_on(
        self, texts: Sequence[FollowedText], tokens: Sequence[int], ahead: Sequence[Sequence[int]]
    ) -> list[int | None]:
        assert set(tokens) == {0}
        return self.read(texts, ahead)


def rounds_of(costs: Costs, *, gap: int = 90, is_fixed: bool = False) -> tuple[DraftRounds, Counting]:
    model = Counting(gap)
    return DraftRounds(model, costs, 0, is_fixed=is_fixed), model


def free(most: int = 64) -> Costs:
    costs = Costs({most: 1.0}, corrected=False)
    costs.unit_s = 1.0
    return costs


def tree(n_nodes: int) -> Draft:
    """A chain of tokens that the model never chooses."""
    return Draft(np.full(n_nodes, 99, np.int32), np.arange(-1, n_nodes - 1, dtype=np.int32))


PLAIN = (1.0, 1)
"""A text for which the other drafters offer nothing."""
ROOM = DraftRoom(64, 64)


def asked(
    rounds: DraftRounds,
    model: Counting,
    acceptance: AcceptanceEstimator,
    trees: Sequence[tuple[float, int]],
    most: int = 10,
    room: DraftRoom = ROOM,
) -> list[int]:
    """How many texts each round has, for texts whose trees give so many tokens with so many nodes."""
    before = len(model.rounds)
    draws = NextDraws(acceptance, None, 0)
    chances = rounds.chances(draws)
    follower = CachedFollower(None)  # type: ignore[arg-type]
    given = [1, 2, 3], min(most, MOST_CHAINED), 1
    offers = [
        Offer(follower, Chain(WinCounts()), *given, expected, tree(n_nodes), *chances, draws)
        for expected, n_nodes in trees
    ]
    assert rounds.ask(offers, room) == (len(model.rounds) > before)
    return model.rounds[before:]


def test_the_model_is_asked_as_far_as_it_pays() -> None:
    acceptance = AcceptanceEstimator([STANDINGS])
    rounds, model = rounds_of(free())
    sure = acceptance.counts[FIRST_BUCKET + 5 : FIRST_BUCKET + 6]
    sure["seen"], sure["accepted"] = 1000, 995
    assert asked(rounds, model, acceptance, [PLAIN]) == [1] * 10  # passes are free, and so is asking
    assert asked(rounds, model, acceptance, [PLAIN], 64) == [1] * MOST_CHAINED
    assert asked(rounds, model, acceptance, [PLAIN], 0) == []
    sure["accepted"] = 300
    rounds._token_s = 0.1
    assert asked(rounds, model, acceptance, [PLAIN]) == [1]
    rounds._token_s = 5.0  # five passes of the large model
    assert asked(rounds, model, acceptance, [PLAIN]) == []
    assert asked(*rounds_of(free(), is_fixed=True), acceptance, [PLAIN]) == [1] * 10
    waited = [asked(rounds, model, acceptance, [PLAIN, PLAIN]) for _ in range(UNASKED)]
    assert waited == [[]] * (UNASKED - 1) + [[1]]


def test_the_model_is_not_asked_where_the_others_know_better() -> None:
    acceptance = AcceptanceEstimator([STANDINGS])
    costs = Costs({2: 1.1, 16: 2.0}, corrected=False)
    costs.unit_s = 1.0
    rounds, model = rounds_of(costs)
    asked(rounds, model, acceptance, [PLAIN], 1)
    rounds._token_s = 0.3
    assert asked(rounds, model, acceptance, [PLAIN], 8) != []
    assert asked(rounds, model, acceptance, [(9.0, 10)], 8) == []
    assert asked(rounds, model, acceptance, [(9.0, 10), PLAIN], 8) == []  # the other one would have to wait
    rounds._token_s = 0.02
    assert asked(rounds, model, acceptance, [(9.0, 10), PLAIN], 8)[:1] == [1]  # only the one that knows nothing


def test_all_texts_of_a_pass_are_asked_in_one_round() -> None:
    acceptance = AcceptanceEstimator([STANDINGS])
    sure = acceptance.counts[FIRST_BUCKET + 5 : FIRST_BUCKET + 6]
    sure["seen"], sure["accepted"] = 1000, 995
    assert asked(*rounds_of(free()), acceptance, [PLAIN] * 5, 3) == [5, 5, 5]
    assert asked(*rounds_of(free()), acceptance, [PLAIN] * 5, 3, DraftRoom(64, 2)) == [2, 2, 2]  # pages for two drafts
    assert asked(*rounds_of(free()), acceptance, [PLAIN] * 5, 3, DraftRoom(64, 0)) == []
    n_tokens = 5 + sum(asked(*rounds_of(free()), acceptance, [PLAIN] * 5, 3, DraftRoom(12, 5)))
    assert 10 <= n_tokens <= 12  # no more than the pass has room for


@pytest.mark.parametrize("options", OPTIONS)
def test_answers_that_share_passes_are_drafted_in_one_batch(
    tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    """The draft model runs once a round for all of them, not once an answer."""
    texts = ["the rain in the inn", "another heat", "then", "a hen in the tin"]
    with load(tiny_model, threads=1, n_context=128, spec="off") as llm:
        streams = [llm.complete(text, max_tokens=40, **options) for text in texts]  # type: ignore[arg-type]
        for stream in streams:
            stream.read()
        expected = [stream.tokens for stream in streams]
    with load(tiny_model, threads=1, n_context=128, n_sessions=4, spec=4, draft_from=[tiny_model]) as llm:
        assert llm.drafts is not None
        assert llm.drafts.draft_model is not None
        asked = watched(llm.drafts.draft_model._pool, monkeypatch)
        batch = llm.batch(texts, parallel=4, max_tokens=40, **options)  # type: ignore[arg-type]
        found = {each.number: each for each in batch}
    assert [found[number].tokens for number in range(4)] == expected
    n_texts = [len(set(each.sequences.tolist())) for each in asked]
    assert asked
    assert sum(n_texts) / len(n_texts) > 2  # of four, of which some end before others
    assert len(asked) <= 3 * batch.counts.passes  # three tokens of each answer a pass
    accepted = sum(each.stats.draft.sources["draft_model"].accepted for each in found.values())  # type: ignore[union-attr]
    assert accepted > 20


def test_the_draft_model_is_drafted_for(tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other drafters have seen before, the draft model verifies instead of going on token by token."""
    n_rounds = []
    with load(tiny_model, threads=1, spec=4, draft_from=[tiny_model]) as llm:
        assert llm.drafts is not None
        assert llm.drafts.draft_model is not None
        asked, texts = watched(llm.drafts.draft_model._pool, monkeypatch), []
        for _ in range(2):
            stream, before = llm.complete("the rain", temperature=0, max_tokens=120), len(asked)
            texts.append(stream.read())
            assert stream.stats is not None
            assert stream.stats.draft is not None
            n_rounds.append((len(asked) - before) / stream.stats.draft.n_passes)
    assert texts[0] == texts[1]
    assert n_rounds[0] > 2.5  # three tokens a pass
    assert n_rounds[1] < 2


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
