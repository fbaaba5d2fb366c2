"""A trained head: changes no answer, follows every turn of a text, and its memory counts beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.speculation import head_model, heads
from edgeinfer.engine.speculation.drafters.draft_model import ASSUMED_SEEN, LIKELIEST_ACCEPTANCE
from edgeinfer.engine.speculation.head_model import Head, HeadFollower, waiting_bytes
from edgeinfer.engine.speculation.heads import HeadInFile
from edgeinfer.engine.speculation.records import FIRST_BUCKET, GAPS
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA
from tests.head_files import write_sure_head, write_with_head

CONVERTED = DATA / "converted"
OPTIONS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}]
MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn"}]
PART = "blocks that predict tokens after the next one (MTP)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with states, and a head of random weights."""
    return write_with_head(CONVERTED / "qwen35-bf16.gguf", tmp_path_factory.mktemp("head") / "model.gguf")


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is always right."""
    return write_sure_head(CONVERTED / "qwen35-bf16.gguf", tmp_path_factory.mktemp("sure") / "model.gguf")


def stats_of(stream: TextStream) -> Stats:
    """The numbers of an answer, after reading it."""
    stream.read()
    assert stream.stats is not None
    return stream.stats


def turns(llm: LLM, options: dict[str, Any]) -> list[tuple[int, ...]]:
    """Answers that continue a text, go back in it, begin another one, and take over what others have read."""
    found: list[tuple[int, ...]] = []
    with llm.session() as session:
        for prompt, n_tokens in (
            ("the rain " * 40, 70),
            ("the rain " * 40 + "in", 20),
            ("a cat", 40),
            ("a cat sat", 9),
        ):
            stream = session.complete(prompt, max_tokens=n_tokens, **options)
            stream.read()
            found.append(stream.tokens)
        twin = session.branch()
        stream = twin.complete("a cat sat on", max_tokens=30, **options)
        stream.read()
        found.append(stream.tokens)
        twin.close()
    together = [llm.complete(text, max_tokens=30, **options) for text in ("the rain", "the rain in", "one two")]
    for stream in together:
        stream.read()
        found.append(stream.tokens)
    return found


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("source", ["qwen35", "qwen35moe", "qwen3next"])
def test_no_head_changes_an_answer(source: str, options: dict[str, Any], tmp_path: Path, home: Path) -> None:
    path = write_with_head(CONVERTED / f"{source}-bf16.gguf", tmp_path / "m.gguf", seed=5)
    with load(path, threads=1, spec="off", n_context=512) as llm:
        plain = turns(llm, options)
        assert f"left out of m: {PART}" in llm.info.notices
    for spec in ("on", 2, 8):
        with load(path, threads=1, spec=spec, n_context=512) as llm:  # type: ignore[arg-type]
            assert turns(llm, options) == plain
            assert not any(PART in notice for notice in llm.info.notices)


@pytest.mark.parametrize("n_repeated", [1, 50])
def test_a_sure_head_is_always_right(sure: Path, n_repeated: int, home: Path) -> None:
    with load(sure, threads=1, spec=5, n_context=1024) as llm:
        prompt = "the rain in the inn " * n_repeated  # the long one is read in parts
        for _ in range(2):  # the second answer begins with what the first one has read
            stats = stats_of(llm.complete(prompt, max_tokens=60, temperature=0))
            assert stats.draft is not None
            assert stats.draft.sources["trained_head"].accepted >= 1
            assert stats.accepted_per_step > 3
        assert llm.drafts is not None
        first = llm.drafts.acceptance[False].starts[-1] + FIRST_BUCKET
        counts = llm.drafts.acceptance[False].counts[first : first + GAPS]
    assert counts["seen"].sum() > ASSUMED_SEEN * GAPS + 10
    n_wrong = counts["seen"].sum() - counts["accepted"].sum()
    assert n_wrong <= ASSUMED_SEEN * (GAPS - sum(LIKELIEST_ACCEPTANCE)) + 0.01


def test_a_session_gives_back_what_its_head_holds(model: Path, home: Path) -> None:
    with load(model, threads=1, spec=4, n_context=512) as llm:
        head = llm.drafts.draft_model if llm.drafts else None
        assert isinstance(head, Head)
        executor = head._pool.executor
        n_free = executor.n_free_pages
        for _ in range(12):
            with llm.session() as session:
                session.chat(MESSAGES, max_tokens=12, temperature=0).read()
        assert executor.n_free_pages == n_free
    assert executor.resident_bytes == 0


class Following:
    """A text that a head follows."""

    def __init__(self, follower: HeadFollower, history: Sequence[int]) -> None:
        self.follower, self.history = follower, history
        self.row: Int32s | None = None

    def add(self, row: Int32s, highest: float) -> int:
        self.row = row.copy()
        return 0


class Told:
    """A head that is told of texts by hand, with rows that say which text they are of."""

    def __init__(self, llm: LLM) -> None:
        head = llm.drafts.draft_model if llm.drafts else None
        assert isinstance(head, Head)
        self.head = head
        self.width = head._pool.executor.limits and 32

    def follower(self) -> HeadFollower:
        """A new session's state."""
        return self.head.session()

    def read(self, follower: HeadFollower, history: Sequence[int]) -> Int32s | None:
        """The highest logits after a text, if they are known."""
        text = Following(follower, history)
        self.head.read([text], [()])
        return text.row

    def go_on(self, follower: HeadFollower, token: int) -> Int32s | None:
        """The highest logits after one more token that the head guessed."""
        text = Following(follower, ())
        self.head.go_on([text], [token], [()])
        return text.row

    def rows(self, tokens: Sequence[int]) -> Floats:
        """A row for each token of a text, which depends on all tokens up to it."""
        seeds = [hash(tuple(tokens[: n + 1])) % (1 << 32) for n in range(len(tokens))]
        return np.array([np.random.default_rng(seed).standard_normal(self.width) for seed in seeds], np.float32)

    def fresh(self, history: Sequence[int], first: int = 0) -> Int32s:
        """The highest logits after a text that is read at once, with rows from a position on."""
        follower = self.follower()
        follower.note(first, history[first:-1], self.rows(history)[first:-1])
        found = self.read(follower, history)
        follower.close()
        assert found is not None
        return found


@pytest.fixture
def told(model: Path, home: Path) -> Iterator[Told]:
    """A head, open beside its model."""
    with load(model, threads=1, spec=4, n_context=512) as llm:
        yield Told(llm)


def test_guesses_are_forgotten_once_the_model_has_evaluated_tokens(told: Told) -> None:
    text = list(range(40, 60))
    follower, rows = told.follower(), told.rows(text)
    follower.begin(text[:10])
    follower.note(0, text[:9], rows[:9])
    first = told.read(follower, text[:10])
    assert first is not None
    assert np.array_equal(first, told.fresh(text[:10]))
    assert told.go_on(follower, text[10]) is not None  # as the model chooses it too
    assert told.go_on(follower, 7) is not None  # as it does not
    follower.note(9, text[9:12], rows[9:12])
    assert np.array_equal(told.read(follower, text[:13]), told.fresh(text[:13]))
    assert np.array_equal(told.read(follower, text[:13]), told.fresh(text[:13]))  # nothing has happened meanwhile
    follower.close()


def test_a_head_follows_a_text_that_goes_back_and_changes(told: Told) -> None:
    text = list(range(40, 90))
    follower, rows = told.follower(), told.rows(text)
    follower.begin(text[:30])
    follower.note(0, text[:29], rows[:29])
    assert told.read(follower, text[:30]) is not None
    other = [*text[:20], *range(100, 120)]
    follower.begin(other)
    follower.note(19, other[19:39], told.rows(other)[19:39])  # the model reads its last token again
    assert np.array_equal(told.read(follower, other), told.fresh(other))
    follower.begin(text)
    follower.note(0, text[:49], rows[:49])  # what it had is gone
    assert np.array_equal(told.read(follower, text), told.fresh(text))
    follower.close()


def test_a_head_goes_on_from_what_others_have_read(told: Told) -> None:
    text = list(range(40, 90))
    follower, rows = told.follower(), told.rows(text)
    follower.begin(text)
    assert told.read(follower, text) is None
    follower.note(30, text[30:49], rows[30:49])
    assert np.array_equal(told.read(follower, text), told.fresh(text, first=30))
    follower.begin(text[:45])
    follower.note(44, text[44:45], rows[44:45])
    assert told.read(follower, text[:46]) is not None
    follower.close()


def test_of_many_waiting_rows_the_last_ones_stay(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_model, "MOST_WAITING", 20)
    text = list(range(40, 90))
    follower, rows = told.follower(), told.rows(text)
    for start in range(0, 48, 8):
        follower.note(start, text[start : start + 8], rows[start : start + 8])
    assert np.array_equal(told.read(follower, text[:49]), told.fresh(text[:49], first=32))
    follower.close()


def test_a_head_with_a_window_reads_again_where_it_cannot_go_back(tmp_path: Path, home: Path) -> None:
    """What lies far behind its window is gone."""
    path = write_with_head(DATA / "peer" / "mimo2.gguf", tmp_path / "m.gguf")
    text, step = [number * number % 250 for number in range(2400)], 200
    with load(path, threads=1, spec=4, n_context=4096) as llm:
        told = Told(llm)
        assert told.head.executor.limits.windows is not None
        follower, rows = told.follower(), told.rows(text)
        for start in range(0, len(text) - step, step):
            follower.note(start, text[start : start + step], rows[start : start + step])
            assert told.read(follower, text[: start + step + 1]) is not None
        for n_same, n_more in ((300, 40), (100, 5)):
            other = [*text[:n_same], *range(100, 100 + n_more)]
            rows, first = told.rows(other), n_same - 1
            follower.begin(other)
            follower.note(first, other[first:-1], rows[first:-1])
            assert np.array_equal(told.read(follower, other), told.fresh(other, first=first))
        follower.close()


def test_no_more_rows_wait_than_are_planned_for(told: Told, model: Path) -> None:
    """Of a text that is never read, and of one that is read in parts."""
    follower, most = told.follower(), 256
    text = [int(token) for token in np.random.default_rng(1).integers(40, 300, 4000)]
    planned = waiting_bytes(told.head._head, 1, most)
    for start in range(0, len(text), most):
        part = text[start : start + most]
        follower.note(start, part, np.ones((len(part), told.width), np.float32))
        held = {id(rows if rows.base is None else rows.base): rows for _, rows in follower._waiting}
        n_bytes = sum(rows.nbytes if rows.base is None else rows.base.nbytes for rows in held.values())
        assert n_bytes <= planned
    assert n_bytes > planned / 2
    follower.close()
    with open_model(model) as opened:
        head = HeadInFile(told.head._head, opened.file, frozenset(), is_own=False)
        assert head.need("cpu", limits_for(512), all_stay=True).waiting_bytes == planned
        assert head.need("cpu", limits_for(512, 3), all_stay=True).waiting_bytes == 3 * planned


def test_a_head_whose_memory_was_taken_reads_again(told: Told) -> None:
    text = list(range(40, 60))
    follower, rows = told.follower(), told.rows(text)
    follower.note(0, text[:9], rows[:9])
    assert told.read(follower, text[:10]) is not None
    cached: CachedSequence = follower.cached
    with cached.lock:
        cached.forget()
    follower.note(9, text[9:10], rows[9:10])
    assert np.array_equal(told.read(follower, text[:11]), told.fresh(text[:11], first=8))
    follower.close()


def test_a_head_without_room_is_left_out_with_a_word(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "memory_for_model", lambda: 1)
    with load(model, threads=1, spec=4, n_context=512) as llm:
        assert any("nothing is drafted by the model's own head" in notice for notice in llm.info.notices)
        assert llm.drafts is not None
        assert llm.drafts.draft_model is None
        assert len(llm.complete("a cat", max_tokens=5, temperature=0).read()) > 0


def test_no_row_is_lost_where_a_model_goes_back_to_a_checkpoint(told: Told) -> None:
    text = list(range(40, 90))
    follower, rows = told.follower(), told.rows(text)
    follower.note(0, text[:40], rows[:40])
    assert told.read(follower, text[:41]) is not None
    for place in (32, 40):
        follower.begin(text)
        follower.note(place, text[place:49], rows[place:49])
        assert np.array_equal(told.read(follower, text), told.fresh(text))
    follower.close()


def test_a_head_and_its_model_hold_what_both_read_once(model: Path, home: Path) -> None:
    with load(model, threads=1, spec=4, n_context=256) as llm:
        head = llm.drafts.draft_model if llm.drafts else None
        assert isinstance(head, Head)
        own, beside = (executor._lane._packed for executor in (llm._pool.executor, head._pool.executor))
        shared = {key: matrix for key, matrix in beside._matrices.items() if key in own}
        assert {weight.tensor for weight, _ in shared} <= {"output.weight", "token_embd.weight"}
        assert shared
        assert all(own._matrices[key] is matrix for key, matrix in shared.items())
        assert len(beside._matrices) > len(shared)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("parallel", [2, 4])
def test_no_head_changes_a_batch_and_all_answers_share_its_passes(
    model: Path, parallel: int, options: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the rain", "in the inn and in the", "another heat", "then"]
    plain: list[tuple[int, ...]] = []
    with load(model, threads=1, spec="off", n_context=128) as llm:
        for text in texts:
            stream = llm.complete(text, max_tokens=40, **options)
            stream.read()
            plain.append(stream.tokens)
    with load(model, threads=1, spec=6, n_context=128, n_sessions=4) as llm:
        head = llm.drafts.draft_model if llm.drafts else None
        assert isinstance(head, Head)
        ran: list[int] = []
        evaluate = head._pool.executor.evaluate

        def counting(batch: Batch) -> Floats:
            ran.append(len(set(batch.sequences.tolist())))
            return evaluate(batch)

        monkeypatch.setattr(head._pool.executor, "evaluate", counting)
        found = {each.number: each for each in llm.batch(texts, parallel=parallel, max_tokens=40, **options)}
    assert [found[number].tokens for number in range(len(texts))] == plain
    assert max(ran) == parallel
