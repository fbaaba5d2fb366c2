"""A model that drafts for itself: it changes no answer, gives back what it takes, and is used for long texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.speculation import self_draft
from edgeinfer.engine.speculation.draft_rounds import DraftRounds
from edgeinfer.engine.speculation.self_draft import LEAST_DEPTH, USUAL_BUDGET, SelfDraft
from edgeinfer.errors import DeviceFailed, DoesNotFit
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.load_options import LoadOptions
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA

BUDGET = 192
CONTEXT = 1024
LONG = "the rain in the inn and a hen in the tin then " * 22
FREE = {2: 1.0, 64: 1.0}
"""Passes that cost the same whatever they check."""
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.95, "seed": 3, "repeat_penalty": 1.2},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "tiny.gguf", context=4096)


def opened(path: Path, **how: Any) -> LLM:
    """A model with a long context that may draft for itself; `how`: other options."""
    return load(path, **{"device": "cpu", "threads": 1, "n_context": CONTEXT, "self_draft": "auto", **how})


def self_draft_of(llm: LLM) -> SelfDraft:
    """What drafts for an open model, which is itself."""
    assert llm.drafts is not None
    assert isinstance(llm.drafts.draft_model, SelfDraft)
    return llm.drafts.draft_model


def read(stream: TextStream) -> tuple[int, ...]:
    """The tokens of an answer, after reading it."""
    stream.read()
    return stream.tokens


def n_proposed(stream: TextStream) -> int:
    """How many tokens of its drafts are the model's own."""
    assert stream.stats is not None
    assert stream.stats.draft is not None
    return stream.stats.draft.sources["self"].proposed


def budgets_of(batch: Batch) -> list[int]:
    """The budget of each token of a round."""
    assert batch.budgets is not None
    found: list[int] = batch.budgets.tolist()
    return found


def watched(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches with budgets that a model evaluates from now on."""
    executor, found = llm._pool.executor, list[Batch]()
    evaluate = executor.evaluate

    def noted(batch: Batch) -> Floats:
        if batch.budgets is not None:
            found.append(batch)
        return evaluate(batch)

    monkeypatch.setattr(executor, "evaluate", noted)
    return found


@pytest.mark.parametrize(("kv", "specs"), [("f16", (2, 6, "on")), ("q8", (2,)), ("q4", (6,))])
def test_no_answer_changes(model: Path, home: Path, kv: str, specs: tuple[int | str, ...]) -> None:
    with opened(model, spec="off", kv=kv) as llm:
        plain = [read(llm.complete(LONG, max_tokens=60, **options)) for options in OPTIONS]
    for spec in specs:
        with opened(model, spec=spec, verify_cost=FREE, self_draft=BUDGET, kv=kv) as llm:
            for options, expected in zip(OPTIONS, plain, strict=True):
                n_before = self_draft_of(llm).n_passes
                stream = llm.complete(LONG, max_tokens=60, **options)
                assert read(stream) == expected
                if spec != "on":  # which weighs what rounds take
                    assert n_proposed(stream) > 20
                    assert self_draft_of(llm).n_passes > n_before + 20


@pytest.mark.parametrize("options", OPTIONS)
def test_answers_that_share_passes_are_drafted_in_one_batch(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    texts = [LONG, f"a {LONG}", "a hen", f"then {LONG}"]  # of which one is too short
    with opened(model, spec="off") as llm:
        plain = [read(llm.complete(text, max_tokens=30, **options)) for text in texts]
    with opened(model, spec=4, self_draft=BUDGET, n_sessions=4) as llm:
        rounds = watched(llm, monkeypatch)
        for parallel in (2, 4):
            rounds.clear()
            found = {each.number: each for each in llm.batch(texts, parallel=parallel, max_tokens=30, **options)}
            assert [found[number].tokens for number in range(len(texts))] == plain
            assert max(len(set(each.sequences.tolist())) for each in rounds) == min(parallel, 3)
            assert {budget for each in rounds for budget in budgets_of(each)} == {BUDGET}
            assert llm._pool.executor.n_free_pages >= 4


@pytest.mark.parametrize("options", [*OPTIONS, {"temperature": 1.0, "top_k": 6, "seed": 5}])
def test_with_a_budget_for_the_whole_text_it_is_always_right(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """It then computes the same bits; drawn tokens it foresees where they are among the likeliest few."""
    monkeypatch.setattr(self_draft, "LEAST_DEPTH", 0)
    with opened(model, spec=5, self_draft=CONTEXT) as llm:
        stream = llm.complete(LONG, max_tokens=120, **options)
        stream.read()
    assert stream.stats is not None
    assert stream.stats.draft is not None
    own = stream.stats.draft.sources["self"]
    assert own.proposed > 60
    assert stream.stats.accepted_per_step is not None
    if options["temperature"] != 0.8:  # whose distribution is flat
        assert stream.stats.accepted_per_step > 3.5


def test_auto_leaves_short_texts_alone_and_drafts_for_long_ones(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftRounds, "_round_s", lambda self, n_texts: 0.05 * self._costs.unit_s)
    with opened(model, spec="off", n_context=4096) as llm:
        texts = ["the rain", LONG, 4 * LONG]
        plain = [read(llm.complete(text, max_tokens=60, temperature=0)) for text in texts]
        n_tokens = [len(llm.tokenize(text)) + 60 for text in texts]
    assert n_tokens[1] < LEAST_DEPTH * USUAL_BUDGET < n_tokens[2]
    with opened(model, n_context=4096, verify_cost=FREE) as llm:
        rounds, proposed = watched(llm, monkeypatch), list[int]()
        for text, tokens in zip(texts, plain, strict=True):
            stream = llm.complete(text, max_tokens=60, temperature=0)
            assert read(stream) == tokens
            proposed.append(n_proposed(stream))
        assert proposed[:2] == [0, 0]
        assert proposed[2] > 10
        assert {budget for each in rounds for budget in budgets_of(each)} == {USUAL_BUDGET}


def test_rounds_that_take_as_long_as_passes_are_not_run(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried once the summaries of pages are there, to know what a round takes."""
    monkeypatch.setattr(DraftRounds, "_round_s", lambda self, n_texts: self._costs.unit_s)
    read_by_all, asked = SelfDraft.read, list[int]()

    def counted(self: SelfDraft, texts: Any, ahead: Any) -> list[int | None]:
        asked.append(len(texts))
        return read_by_all(self, texts, ahead)

    monkeypatch.setattr(SelfDraft, "read", counted)
    with opened(model, n_context=4096, verify_cost=FREE) as llm:
        llm.complete(4 * LONG, max_tokens=100, temperature=0).read()
    assert 1 <= len(asked) <= 2


def test_texts_without_it_are_drafted_for_as_if_there_were_none(model: Path, home: Path) -> None:
    """Whether a model may draft for itself changes no tree of a text that it is not run for."""
    found = []
    for how in ({"self_draft": "off"}, {"self_draft": 448}):
        with opened(model, spec=8, **how) as llm, llm.session() as session:
            for options in OPTIONS:
                stream = session.complete("the rain in the inn", max_tokens=120, **options)
                stream.read()
                assert stream.stats is not None
                assert stream.stats.draft is not None
                sources = stream.stats.draft.sources
                found.append((stream.tokens, {name: each for name, each in sources.items() if name != "self"}))
    assert found[:2] == found[2:]


@pytest.mark.parametrize("name", ["gemma3-q8_0.gguf", "lfm2-q8_0.gguf", "converted/qwen35-bf16.gguf"])
def test_windows_and_states(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(DATA / name, spec="off") as llm:
        n_words = 420
        prompt = (llm.tokenize("the rain in the inn and a hen in the tin then ") * 60)[:n_words]
        plain = [read(llm.complete(llm.detokenize(prompt), max_tokens=80, **options)) for options in OPTIONS]
    with opened(DATA / name, spec=4, self_draft=BUDGET) as llm:
        rounds = watched(llm, monkeypatch)
        for options, expected in zip(OPTIONS, plain, strict=True):
            rounds.clear()
            with llm.session() as session:
                stream = session.complete(llm.detokenize(prompt), max_tokens=80, **options)
                assert read(stream) == expected
            assert len(rounds) > 5


def state_of(llm: LLM) -> tuple[object, ...]:
    """What a model's cache contains, apart from keys and values."""
    cache = llm._pool.executor._cache  # type: ignore[attr-defined]
    sequences = {number: (list(each.pages), each.n_cached) for number, each in cache._sequences.items()}
    return sequences, sorted(cache._free), list(cache._references), dict(cache._pending)


def test_rounds_leave_the_cache_as_it_was(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, states = DraftRounds.ask, list[bool]()
    with opened(model, spec=4, self_draft=BUDGET, n_sessions=2) as llm:

        def compared(*given: Any) -> bool:
            before = state_of(llm)
            found = ask(*given)
            states.append(state_of(llm) == before)
            return found

        monkeypatch.setattr(DraftRounds, "ask", compared)
        n_free = llm._pool.executor.n_free_pages
        with llm.session() as session:
            session.complete(LONG, max_tokens=100, temperature=0).read()  # over the end of a page
        assert llm._pool.executor.n_free_pages == n_free
    assert len(states) > 20
    assert all(states)


@pytest.mark.parametrize("breaks_off", ["stop", "close", "interrupt"])
def test_an_answer_may_end_at_any_point(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, breaks_off: str
) -> None:
    with opened(model, spec="off") as llm:
        plain = read(llm.complete(LONG, max_tokens=60, temperature=0))
    with opened(model, spec=4, self_draft=BUDGET) as llm:
        executor, n_rounds = llm._pool.executor, 0
        evaluate, n_free = executor.evaluate, executor.n_free_pages
        session = llm.session()
        stream = session.complete(LONG, max_tokens=60, temperature=0)

        def breaking(batch: Batch) -> Floats:
            nonlocal n_rounds
            n_rounds += batch.budgets is not None
            if n_rounds == 5 and batch.budgets is not None:
                if breaks_off == "interrupt":
                    raise KeyboardInterrupt
                (stream.stop if breaks_off == "stop" else session.stop)()
            return evaluate(batch)

        monkeypatch.setattr(executor, "evaluate", breaking)
        if breaks_off == "interrupt":
            with pytest.raises(KeyboardInterrupt):
                stream.read()
        else:
            stream.read()
            assert len(stream.tokens) < 60
        monkeypatch.undo()
        assert len(executor._cache._sequences) == 1  # type: ignore[attr-defined]
        if breaks_off != "close":
            assert read(session.complete(LONG, max_tokens=60, temperature=0)) == plain
        session.close()
        assert executor.n_free_pages == n_free


@pytest.mark.parametrize("failure", [DeviceFailed("it broke down"), MemoryError(), DoesNotFit("no pages")])
def test_rounds_that_fail_are_left_out_and_the_answer_goes_on(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    with opened(model, spec="off") as llm:
        plain = read(llm.complete(LONG, max_tokens=30, temperature=0))
    with opened(model, spec=4, self_draft=BUDGET) as llm:
        executor, asked = llm._pool.executor, list[Batch]()
        evaluate = executor.evaluate

        def failing(batch: Batch) -> Floats:
            if batch.budgets is None:
                return evaluate(batch)
            asked.append(batch)
            raise failure

        monkeypatch.setattr(executor, "evaluate", failing)
        assert read(llm.complete(LONG, max_tokens=30, temperature=0)) == plain
        assert len(asked) == 1
        assert len(executor._cache._sequences) <= 1  # type: ignore[attr-defined]  # what is kept of the answer


def test_a_context_that_is_nearly_full(model: Path, home: Path) -> None:
    with opened(model, spec="off", n_context=512) as llm:
        prompt = llm.detokenize(llm.tokenize(LONG)[:480])
        plain = read(llm.complete(prompt, max_tokens=None, temperature=0))
    with opened(model, spec=8, n_context=512, self_draft=BUDGET) as llm:
        stream = llm.complete(prompt, max_tokens=None, temperature=0)
        assert read(stream) == plain
        assert n_proposed(stream) > 5


def test_it_is_used_only_if_it_is_asked_for(model: Path, home: Path) -> None:
    assert LoadOptions().self_draft == "off"
    with load(model, device="cpu", threads=1, n_context=4096) as llm:
        assert llm.drafts is None or llm.drafts.draft_model is None
        assert not llm._pool.executor.limits.budgets
    with opened(model, n_context=4096) as llm:
        self_draft_of(llm)


def test_texts_that_go_back(model: Path, home: Path) -> None:
    """A session whose text is cut and goes on otherwise drafts from what is cached then."""
    prompts = [LONG, f"{LONG} and more", LONG[:-60], f"a {LONG}"]

    def answers(**how: Any) -> list[Sequence[int]]:
        with opened(model, **how) as llm, llm.session() as session:
            return [read(session.complete(each, max_tokens=20, temperature=0)) for each in prompts]

    assert answers(spec=5, self_draft=BUDGET) == answers(spec="off")


@pytest.mark.parametrize("options", OPTIONS)
def test_adapters_draft_with_their_scales(model: Path, home: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Each answer as its model is with the adapter, in one pass with answers of other scales."""
    adapter = write_adapter(model, tmp_path / "adapter.gguf", seed=2)
    scales = (0.0, 0.5, 1.0)
    with opened(model, spec="off", lora=[adapter]) as llm:
        plain = [read(llm.complete(LONG, max_tokens=30, lora={0: scale}, **options)) for scale in scales]
    assert len(set(plain)) == len(scales)
    with opened(model, spec=4, self_draft=BUDGET, lora=[adapter], n_sessions=3) as llm:
        prompts = [Prompt(LONG, {"lora": {0: scale}}) for scale in scales]
        found = {each.number: each for each in llm.batch(prompts, parallel=3, max_tokens=30, **options)}
        assert [found[number].tokens for number in range(len(scales))] == plain
        stream = llm.complete(LONG, max_tokens=30, lora={0: 0.5}, **options)
        assert read(stream) == plain[1]
        assert n_proposed(stream) > 5


def test_moved_text_and_modules_are_drafted_for_too(model: Path, home: Path) -> None:
    """Answers after text that stood elsewhere, and after modules, are the same with such drafts."""
    found = []
    for how in ({"spec": "off"}, {"spec": 4, "self_draft": BUDGET}):
        with opened(model, reuse="shifted", **how) as llm:
            llm.complete(LONG, max_tokens=4, temperature=0).read()
            moved = llm.complete(f"but today {LONG}", max_tokens=30, temperature=0)
            moved.read()
            module = llm.modules.add("rain", LONG)
            placed = llm.complete([module, *llm.tokenize("and then?")], max_tokens=30, temperature=0)
            placed.read()
            assert moved.stats is not None
            assert moved.stats.n_shifted > 300
            if how["spec"] != "off":
                assert n_proposed(moved) > 5
                assert n_proposed(placed) > 5
            found.append((moved.tokens, placed.tokens))
    assert found[0] == found[1]
