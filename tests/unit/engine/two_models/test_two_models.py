"""Two models write one answer: as the papers' algorithms say, whatever passes it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.two_models.answer import SOURCE
from edgeinfer.errors import BadSetting, DeviceFailed, EdgeInferError
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.hand_over import HandOver
from tests.conftest import write_tiny_llama
from tests.golden.goldens import Golden
from tests.unit.engine.two_models.brute_force import Rows, TwoRows, rows_of, write_relative

MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn"}]
GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3}
N = 60


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that often agrees with the large one."""
    return write_relative(tiny_model, tmp_path_factory.mktemp("small") / "small.gguf", 0.15)


@pytest.fixture(scope="module")
def rows(tiny_model: Path, small: Path) -> Iterator[tuple[Rows, Rows]]:
    """What the small and the large model give after a text."""
    with load(small, threads=1, spec="off") as one, load(tiny_model, threads=1, spec="off") as other:
        yield rows_of(one), rows_of(other)


@contextmanager
def opened(large: Path, small: Path, rule: str, **options: object) -> Iterator[LLM]:
    with load(large, threads=1, small_model=small, hand_over=rule, **options) as llm:  # type: ignore[arg-type]
        yield llm


def read(stream: TextStream) -> tuple[int, ...]:
    stream.read()
    return stream.tokens


def alone(path: Path, options: dict[str, float], n: int = N) -> tuple[int, ...]:
    with load(path, threads=1, spec="off") as llm:
        return read(llm.chat(MESSAGES, max_tokens=n, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_at_the_ends_of_a_rule_it_is_one_model_s_own_answer(
    tiny_model: Path, small: Path, home: Path, options: dict[str, float]
) -> None:
    own, others = alone(tiny_model, options), alone(small, options)
    assert own != others
    for rule in ("bild=1,inf", "bild=0,0", "bild=0.5,0", "entropy=0"):
        with opened(tiny_model, small, rule) as llm:
            assert read(llm.chat(MESSAGES, max_tokens=N, **options)) == own  # type: ignore[arg-type]
    for rule in ("bild=0,inf", "entropy=inf", "steps=0"):
        with opened(tiny_model, small, rule) as llm:
            assert read(llm.chat(MESSAGES, max_tokens=N, **options)) == others  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, {**SAMPLED, "repeat_penalty": 1.3, "seed": 5}])
@pytest.mark.parametrize("rule", ["bild=0.1,3", "bild=0.2,2", "bild=0.3,inf", "bild=0.3,1", "entropy=2", "entropy=1"])
def test_between_it_is_what_the_paper_s_algorithm_gives(
    tiny_model: Path, small: Path, rows: tuple[Rows, Rows], home: Path, rule: str, options: dict[str, float]
) -> None:
    with opened(tiny_model, small, rule) as llm:
        stream = llm.chat(MESSAGES, max_tokens=N, **options)  # type: ignore[arg-type]
        found = read(stream)
        ends = llm._tokenizer.vocabulary.end_of_generation
    both = TwoRows(*rows, stream.prompt, N, SamplingSettings(**options))  # type: ignore[arg-type]
    expected, by_small = both.by_token(HandOver.parse(rule), ends)
    assert list(found) == expected
    assert stream.stats is not None
    assert stream.stats.draft is not None
    told = stream.stats.draft.shared_writing
    assert told is not None
    n_told = len(found)
    assert (told.n_small, told.n_large) == (sum(by_small[:n_told]), n_told - sum(by_small[:n_told]))
    assert 0 < told.n_small < n_told or rule in ("bild=0.3,1", "entropy=1")
    assert told.hand_over == str(HandOver.parse(rule))
    assert any(f"wrote {told.n_small} of {n_told} tokens" in notice for notice in stream.stats.notices)
    n_marked = sum(mark.n_characters for mark in stream.marks if mark.source == SOURCE)
    assert (n_marked > 0) == (told.n_small > 0)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_steps_are_the_small_model_s_unless_they_are_rated_low(
    tiny_model: Path, small: Path, rows: tuple[Rows, Rows], home: Path, options: dict[str, float]
) -> None:
    n, written = 200, set[tuple[int, ...]]()
    for limit in range(10):
        with opened(tiny_model, small, f"steps={limit}") as llm:
            stream = llm.chat(MESSAGES, max_tokens=n, **options)  # type: ignore[arg-type]
            found = read(stream)
            rating = llm._two_models._rating
            both = TwoRows(*rows, stream.prompt, n, SamplingSettings(**options))  # type: ignore[arg-type]
            expected = both.by_step(llm._tokenizer, rating._question, rating._digits, limit)
        assert list(found) == expected
        written.add(found)
    assert len(written) > 2


@pytest.mark.parametrize("rule", ["bild=0.1,3", "entropy=2", "steps=5"])
def test_answers_at_the_same_time_are_those_one_by_one(tiny_model: Path, small: Path, home: Path, rule: str) -> None:
    prompts = [f"the rain in the inn {word}" for word in ("and the hen", "in", "then an inn and a tin", "")]
    with opened(tiny_model, small, rule, n_sessions=4) as llm:
        singly = [read(llm.complete(text, max_tokens=40, seed=2)) for text in prompts]
        batch = {each.number: each.tokens for each in llm.batch(prompts, max_tokens=40, seed=2)}
        several = llm.several(prompts[0], 3, pick="likely", max_tokens=40, seed=2)
        several.read()
    assert [batch[number] for number in range(4)] == singly
    assert several.answers[0].tokens == singly[0]


@pytest.mark.parametrize("rule", ["bild=0.1,3", "steps=5"])
def test_answers_that_lost_their_memory_are_read_again_and_go_on(
    tiny_model: Path, small: Path, home: Path, rule: str
) -> None:
    prompts = [f"{word} the rain in the inn" for word in ("and the hen", "in", "then an inn and a tin")]
    with opened(tiny_model, small, rule, n_sessions=1, parallel=4) as llm:
        singly = [read(llm.complete(text, max_tokens=220, seed=2)) for text in prompts]
        waiting = [llm.complete(text, max_tokens=220, seed=2, priority="background") for text in prompts]
        taken = ["".join(next(stream) for _ in range(40)) for stream in waiting]
        read(llm.complete("the rain " * 10, max_tokens=300, seed=2))
        assert llm.telemetry.queue.n_preempted + llm.telemetry.queue.n_recomputed > 0
        assert [read(stream) for stream in waiting] == singly
        assert all(stream.text.startswith(text) for stream, text in zip(waiting, taken, strict=True))


@pytest.mark.parametrize("name", ["lfm2-f32", "qwen35-f32", "gemma3-f32"])
def test_a_model_that_writes_for_itself_gives_its_own_answer(name: str, home: Path) -> None:
    """Whatever the rule. With convolutions, recurrent layers and windows, which cannot be truncated everywhere."""
    golden = Golden.read(name)
    prompt, n = golden.tokens.tolist()[:20], 40
    for options in (GREEDY, SAMPLED):
        with load(golden.model, threads=1, n_context=golden.n_context, spec="off") as llm:
            own = read(llm.complete(prompt, max_tokens=n, **options))  # type: ignore[arg-type]
        for rule in ("bild=0.05,3", "bild=0.01,1", "bild=0,0", "entropy=3", "bild=0,inf"):
            with opened(golden.model, golden.model, rule, n_context=golden.n_context) as llm:
                assert read(llm.complete(prompt, max_tokens=n, **options)) == own, rule  # type: ignore[arg-type]


def test_a_conversation_is_read_once_by_each_model(
    tiny_model: Path, small: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_model, small, "bild=0.1,3") as llm:
        model, n_read = llm._two_models.small, list[int]()
        evaluate = model._pool.executor.evaluate

        def count(batch: Batch) -> Floats:
            n_read.append(len(batch.tokens))
            return evaluate(batch)

        monkeypatch.setattr(model._pool.executor, "evaluate", count)
        stream = llm.chat(MESSAGES, max_tokens=30, temperature=0)
        answer = stream.read()
        assert max(n_read) == len(stream.prompt)
        n_read.clear()
        more = [*MESSAGES, {"role": "assistant", "content": answer}, {"role": "user", "content": "and the hen"}]
        stream = llm.chat(more, max_tokens=30, temperature=0)
        stream.read()
        assert stream.stats is not None
        assert stream.stats.n_cached > 40
        assert max(n_read) < len(stream.prompt) - 40
        first = read(llm.chat(more, max_tokens=30, temperature=0))
    with opened(tiny_model, small, "bild=0.1,3") as llm, llm.session() as session:
        session.chat(MESSAGES, max_tokens=30, temperature=0).read()
        assert read(session.chat(more, max_tokens=30, temperature=0)) == first


@pytest.mark.parametrize("rule", ["bild=0.1,3", "entropy=2", "steps=5"])
def test_stopping_keeps_what_came_and_leaves_nothing_behind(
    tiny_model: Path, small: Path, home: Path, rule: str
) -> None:
    with opened(tiny_model, small, rule) as llm:
        whole = llm.chat(MESSAGES, max_tokens=N, **SAMPLED).read()  # type: ignore[arg-type]
        for n_pieces in (1, 2, 5, 9, 20):
            stream = llm.chat(MESSAGES, max_tokens=N, **SAMPLED)  # type: ignore[arg-type]
            taken = [next(stream) for _ in range(n_pieces)]
            stream.stop()
            taken += list(stream)
            assert whole.startswith("".join(taken))
            assert stream.stats is not None
            assert stream.stats.finish_reason == "cancelled"
        stream = llm.chat(MESSAGES, max_tokens=N, **SAMPLED)  # type: ignore[arg-type]
        next(stream)
        stream.close()
        assert llm.chat(MESSAGES, max_tokens=N, **SAMPLED).read() == whole  # type: ignore[arg-type]
        assert len(llm._two_models.small._pool.members) <= 4


def test_a_stop_text_and_an_event_loop(tiny_model: Path, small: Path, home: Path) -> None:
    async def streamed(llm: LLM) -> str:
        return "".join([piece async for piece in llm.chat(MESSAGES, max_tokens=N, **SAMPLED)])  # type: ignore[arg-type]

    with opened(tiny_model, small, "bild=0.1,3") as llm:
        whole = llm.chat(MESSAGES, max_tokens=N, **SAMPLED).read()  # type: ignore[arg-type]
        assert asyncio.run(streamed(llm)) == whole
        stop = whole[20:24]
        stream = llm.chat(MESSAGES, max_tokens=N, stop=stop, **SAMPLED)  # type: ignore[arg-type]
        assert stream.read() == whole[: whole.index(stop)]


def test_what_an_answer_must_match_binds_both(tiny_model: Path, small: Path, home: Path) -> None:
    with opened(tiny_model, small, "bild=0.02,6") as llm:
        for seed in range(4):
            stream = llm.chat(MESSAGES, regex="(the|rain|inn)( the| hen){2,5}", seed=seed, temperature=1, logprobs=2)
            assert stream.read().split()[0] in ("the", "rain", "inn")
            assert len(stream.logprobs) == len(stream.tokens)
            assert [each.token for each in stream.logprobs] == list(stream.tokens)


def test_log_probabilities_are_the_large_model_s(tiny_model: Path, small: Path, home: Path) -> None:
    with opened(tiny_model, small, "bild=0.05,inf") as llm:
        stream = llm.chat(MESSAGES, max_tokens=30, temperature=0, logprobs=1)
        tokens = read(stream)
    with load(tiny_model, threads=1, spec="off") as llm:
        scored = llm.logprobs([*stream.prompt, *tokens]).logprobs[-len(tokens) :]
    assert [each.logprob for each in stream.logprobs] == [each.logprob for each in scored]


def test_a_small_model_that_fails_leaves_the_answer_to_the_large_one(
    tiny_model: Path, small: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_model, small, "bild=0,inf") as llm:
        executor, n_passes = llm._two_models.small._pool.executor, 0
        evaluate = executor.evaluate

        def failing(batch: Batch) -> Floats:
            nonlocal n_passes
            n_passes += 1
            if n_passes > 25:
                raise DeviceFailed("it broke down")
            return evaluate(batch)

        monkeypatch.setattr(executor, "evaluate", failing)
        stream = llm.chat(MESSAGES, max_tokens=N, temperature=0)
        found = read(stream)
        assert stream.stats is not None
        assert "small.gguf failed and writes no more (it broke down); this model goes on alone" in stream.stats.notices
        assert stream.stats.draft is not None
        told = stream.stats.draft.shared_writing
        assert told is not None
        again = llm.chat(MESSAGES, max_tokens=N, temperature=0)
        assert read(again) == alone(tiny_model, GREEDY)
        assert again.stats is not None
        assert not any("failed" in notice for notice in again.stats.notices)
    assert found[: told.n_small] == alone(small, GREEDY)[: told.n_small]
    assert 20 <= told.n_small < N
    with load(tiny_model, threads=1, spec="off") as llm:
        rest = read(llm.complete([*stream.prompt, *found[: told.n_small]], max_tokens=told.n_large, temperature=0))
    assert found[told.n_small :] == rest


def test_a_large_model_that_fails_ends_the_answer(
    tiny_model: Path, small: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_model, small, "bild=0.1,3") as llm:
        whole = llm.chat(MESSAGES, max_tokens=N, temperature=0).read()
        executor = llm._pool.executor
        evaluate = executor.evaluate
        stream = llm.chat(MESSAGES, max_tokens=N, temperature=0)
        next(stream)

        def failing(batch: Batch) -> Floats:
            raise DeviceFailed("it broke down")

        with monkeypatch.context() as patched:
            patched.setattr(executor, "evaluate", failing)
            with pytest.raises(EdgeInferError, match="broke down"):
                stream.read()
        assert executor.evaluate == evaluate
        assert llm.chat(MESSAGES, max_tokens=N, temperature=0).read() == whole


def test_a_text_too_long_for_the_small_model_is_the_large_one_s_from_there(
    tiny_model: Path, tmp_path: Path, home: Path
) -> None:
    short = write_tiny_llama(tmp_path / "short.gguf", seed=7, context=100)
    with opened(tiny_model, short, "bild=0,inf") as llm:
        stream = llm.chat(MESSAGES, max_tokens=120, temperature=0)
        found = read(stream)
        assert stream.stats is not None
        assert any("too long for short.gguf" in notice for notice in stream.stats.notices)
        assert stream.stats.draft is not None
        told = stream.stats.draft.shared_writing
        assert told is not None
    assert len(stream.prompt) + told.n_small == 100
    with load(tiny_model, threads=1, spec="off") as llm:
        n_large = 120 - told.n_small
        rest = read(llm.complete([*stream.prompt, *found[: told.n_small]], max_tokens=n_large, temperature=0))
    assert found[told.n_small :] == rest


def test_what_cannot_be_is_refused_with_what_can(tiny_model: Path, small: Path, tmp_path: Path, home: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=7, n_spare=200)
    with pytest.raises(BadSetting, match=r"other.gguf cannot write for this model, for its vocabulary"):
        load(tiny_model, small_model=other)
    with pytest.raises(BadSetting, match="small_model cannot be 'nobody', which is no model: give a GGUF file"):
        load(tiny_model, small_model="nobody")
    for options in ({"draft_from": [small]}, {"isolate": True}, {"self_draft": "auto"}, {"device": "onnx"}):
        flag = f"--{next(iter(options)).replace('_', '-')}"
        with pytest.raises(BadSetting, match=f"leave out {flag}, or --small-model"):
            load(tiny_model, small_model=small, **options)  # type: ignore[arg-type]


def test_it_is_said_of_the_model_too(tiny_model: Path, small: Path, home: Path) -> None:
    with opened(tiny_model, small, "entropy=2") as llm:
        expected = "answers are not this model's own: small.gguf writes them, and this model in its place where"
        assert any(notice.startswith(expected) for notice in llm.info.notices)
    assert llm._two_models.small._pool.executor.resident_bytes == 0
