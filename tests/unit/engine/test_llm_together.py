"""One model asked by many at a time: threads, event loops, sessions; and what it tells of its tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadSetting, EngineClosed

SYSTEM = {"role": "system", "content": "the rain in the tin, the hen in the inn " * 3}


@pytest.fixture(params=["off", "on"])
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, spec=request.param, n_sessions=4) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, spec="off") as loaded:
        yield loaded


def chat(n: int) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": f"hello {n}"}]


def options(n: int) -> dict[str, float]:
    return {"temperature": 0.9, "seed": n, "max_tokens": 24}


def expected(alone: LLM, n: int) -> tuple[int, ...]:
    with alone.session() as session:
        stream = session.chat(chat(n), **options(n))
        stream.read()
        return stream.tokens


def test_what_is_kept_of_answers_that_are_over_takes_no_drafts_from_others(tiny_model: Path) -> None:
    with load(tiny_model, spec=4, n_context=512) as llm:
        for n in range(8):
            turn = {"role": "user", "content": f"hello {n * 7919 % 1000} you {n}"}
            stream = llm.chat([SYSTEM, turn], temperature=0, max_tokens=40)
            stream.read()
        assert llm.telemetry.queue.n_kept > 1
        assert stream.stats.draft.n_single < stream.stats.draft.n_passes


def test_threads_ask_at_the_same_time(llm: LLM, alone: LLM) -> None:
    def ask(n: int) -> tuple[int, ...]:
        stream = llm.chat(chat(n), **options(n), priority="background" if n % 2 else "interactive")
        stream.read()
        return stream.tokens

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(16)))
    assert found == [expected(alone, n) for n in range(16)]


def test_what_one_answer_has_read_another_one_need_not(llm: LLM) -> None:
    first, second = llm.chat(chat(1), **options(1)), llm.chat(chat(2), **options(2))
    first.read()
    second.read()
    assert first.stats.n_cached == 0
    assert second.stats.n_cached > 60
    turn = [*chat(2), {"role": "assistant", "content": second.text}, {"role": "user", "content": "and?"}]
    third = llm.chat(turn, **options(3))
    third.read()
    assert third.stats.n_cached >= second.stats.n_prompt


def test_a_partial_answer_goes_on_with_its_own_tokens(llm: LLM) -> None:
    whole = llm.chat(chat(4), temperature=0, max_tokens=24)
    whole.read()
    part = llm.chat(chat(4), temperature=0, max_tokens=10)
    part.read()
    rest = llm.chat([*chat(4), {"role": "assistant", "content": part.text}], temperature=0, max_tokens=14)
    rest.read()
    if not part.text.endswith("\N{REPLACEMENT CHARACTER}"):
        assert part.tokens + rest.tokens == whole.tokens


def test_streams_of_an_event_loop_go_on_together(llm: LLM, alone: LLM) -> None:
    order: list[int] = []

    async def ask(n: int) -> tuple[int, ...]:
        stream = llm.chat(chat(n), **options(n))
        pieces = []
        async for piece in stream:
            pieces.append(piece)
            order.append(n)
        assert "".join(pieces) == stream.text
        assert stream.stats is not None
        return stream.tokens

    async def together() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(ask(n) for n in range(12)))

    assert asyncio.run(together()) == [expected(alone, n) for n in range(12)]
    assert order != sorted(order)
    assert sum(thread.name == "edgeinfer engine" for thread in threading.enumerate()) == 1


def test_a_task_that_is_cancelled_ends_its_answer(llm: LLM) -> None:
    async def cancelled() -> None:
        stream = llm.chat(chat(1), temperature=0.9, seed=1)

        async def ask() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(ask())
        while len(stream.tokens) < 5:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while stream.stats is None:
            await asyncio.sleep(0.001)
        assert stream.stats.finish_reason == "cancelled"

    asyncio.run(asyncio.wait_for(cancelled(), 30))


def test_larger_parts_do_not_put_off_the_end(llm: LLM, alone: LLM) -> None:
    async def parts() -> list[str]:
        stream = llm.chat(chat(1), temperature=0.9, seed=1, max_tokens=200)
        return [part async for part in stream.chunks(every_s=3600)]

    found = asyncio.run(asyncio.wait_for(parts(), 30))
    assert len(found) > 1
    assert "".join(found) == alone.chat(chat(1), temperature=0.9, seed=1, max_tokens=200).read()


def test_errors_reach_who_awaits(llm: LLM) -> None:
    async def broken() -> None:
        stream = llm.chat(chat(1), **options(1))
        llm.close()
        with pytest.raises(EngineClosed):
            async for _ in stream:
                pass

    asyncio.run(asyncio.wait_for(broken(), 30))
    with pytest.raises(EngineClosed):
        llm.chat(chat(1))


def test_closing_in_the_middle_of_many_answers_ends_them_all(llm: LLM) -> None:
    streams = [llm.chat(chat(n), temperature=0.9, seed=n) for n in range(6)]
    threads = [threading.Thread(target=stream.read) for stream in streams]
    for thread in threads:
        thread.start()
    while not any(stream.tokens for stream in streams):
        pass
    llm.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not any(thread.name == "edgeinfer engine" for thread in threading.enumerate())


def test_one_stream_is_stopped_and_the_others_are_not(llm: LLM, alone: LLM) -> None:
    streams = [llm.chat(chat(n), **options(n)) for n in range(3)]
    next(streams[1])
    streams[1].stop()
    for stream in streams:
        stream.read()
    assert streams[1].stats.finish_reason == "cancelled"
    assert [streams[n].tokens for n in (0, 2)] == [expected(alone, n) for n in (0, 2)]


def test_a_stop_of_all_reaches_those_that_have_not_begun(llm: LLM) -> None:
    streams = [llm.chat(chat(n), **options(n)) for n in range(2)]
    next(streams[0])
    llm._driver.scheduler.enter(streams[1]._sequence)  # as its reader does, who then waits
    llm.stop()
    for stream in streams:
        stream.read()
    assert [stream.stats.finish_reason for stream in streams] == ["cancelled", "cancelled"]
    assert streams[1].tokens == ()


@pytest.mark.parametrize("sampled", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}])
def test_logprobs_are_those_of_the_models_own_distribution(llm: LLM, alone: LLM, sampled: dict[str, float]) -> None:
    stream = llm.complete("the rain", max_tokens=12, logprobs=4, logit_bias={3: 2.0}, **sampled)
    stream.read()
    plain = alone.complete("the rain", max_tokens=12, logit_bias={3: 2.0}, **sampled)
    plain.read()
    assert stream.tokens == plain.tokens
    assert [each.token for each in stream.logprobs] == list(stream.tokens)
    cached, history = alone._pool.open(), alone.tokenize("the rain")
    for told in stream.logprobs:
        with cached.lock:
            cached.keep_prefix(history)
            batch = cached.chain(history[cached.n_cached :], wants_logits=True)
            row = cached.evaluate(batch)[0][: alone.prompts.tokenizer.n_tokens].astype(np.float64)
            cached.commit(batch, np.arange(len(batch.tokens), dtype=np.int32))
        exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert told.logprob == pytest.approx(exact[told.token], abs=1e-5)
        assert [token for token, _ in told.top] == np.argsort(-exact, kind="stable")[:4].tolist()
        assert [logprob for _, logprob in told.top] == pytest.approx(np.sort(exact)[::-1][:4], abs=1e-5)
        history.append(told.token)
    cached.close()


def test_no_more_logprobs_than_anybody_gives(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="between 0 and 20"):
        llm.complete("the", logprobs=21).read()
    stream = llm.complete("the", max_tokens=2)
    stream.read()
    assert stream.logprobs == ()


def test_logprobs_after_sampling_are_of_the_draw(alone: LLM) -> None:
    sampled = {"temperature": 0.8, "top_k": 6, "top_p": 1.0, "min_p": 0.0, "seed": 5, "max_tokens": 12, "logprobs": 20}
    models, drawn = alone.complete("the rain", **sampled), alone.complete("the rain", after_sampling=True, **sampled)
    assert models.read() == drawn.read()
    for own, told in zip(models.logprobs, drawn.logprobs, strict=True):
        weights = np.exp(np.array([logprob for _, logprob in own.top[:6]]) / 0.8)
        assert [token for token, _ in told.top] == [token for token, _ in own.top[:6]]
        np.testing.assert_allclose(np.exp([logprob for _, logprob in told.top]), weights / weights.sum(), rtol=1e-5)
        assert told.logprob == dict(told.top)[told.token]


def test_progress_of_a_prompt_that_was_read_before(alone: LLM) -> None:
    told: list[tuple[int, int]] = []
    for _ in range(2):
        told.clear()
        alone.complete("an inn " * 20, max_tokens=1, progress=lambda _, *done: told.append(done)).read()
    assert told == [(0, 1), (1, 1)]
