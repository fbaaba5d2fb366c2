"""The batch loop over a lane whose logits depend on every token it attends to: each answer is what it is alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.run.rescue import Rescued
from edgeinfer.engine.scheduler import admission
from edgeinfer.engine.scheduler.batcher import BatchAnswer, Batcher, NumberedRequest
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import BadSetting, ContextOverflow, EngineClosed
from edgeinfer.graph.step import Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.lane import SlotDevice, SlotLane
from tests.unit.engine.run.test_rescue import FailingLane
from tests.unit.engine.scheduler.served import stream_of

N_VOCAB = 268
NO_EOG = dict.fromkeys((0, 2), -np.inf)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


class CountingLane(SlotLane):
    """Notes how many tokens each pass had."""

    def __init__(self, n_pages: int) -> None:
        super().__init__(n_pages, N_VOCAB)
        self.sizes: list[int] = []

    def run(self, step: Step) -> np.ndarray:
        self.sizes.append(len(step.batch.tokens))
        return super().run(step)


def make_pool(n_pages: int = 24, n_context: int = 256, max_tokens: int = 32) -> tuple[Pool, CountingLane]:
    lane = CountingLane(n_pages)
    return Pool(Executor(SlotDevice(N_VOCAB), lane, Limits(n_context, n_pages, max_tokens, 8), "slots")), lane


def request(prompt: Sequence[int], n: int | None, seed: int = 1, **options: object) -> Request:
    sampling = SamplingSettings(**{"seed": seed, "temperature": 0.9, "logit_bias": NO_EOG, **options})
    return Request(tuple(prompt), sampling, n)


def batcher_of(pool: Pool, tokenizer: Tokenizer, n_parallel: int) -> Batcher:
    return Batcher(StepDriver(Scheduler(pool)), tokenizer, n_parallel)


def answered(batcher: Batcher, requests: Sequence[Request]) -> dict[int, BatchAnswer]:
    found = list(batcher.answers(NumberedRequest(number, each) for number, each in enumerate(requests)))
    assert len({each.number for each in found}) == len(found)
    return {each.number: each for each in found}


def alone(tokenizer: Tokenizer, wanted: Request) -> TextStream:
    generation = stream_of(make_pool()[0].open(), tokenizer, wanted)
    list(generation)
    return generation


def same(tokenizer: Tokenizer, found: dict[int, BatchAnswer], requests: Sequence[Request]) -> None:
    assert sorted(found) == list(range(len(requests)))
    for number, wanted in enumerate(requests):
        other = alone(tokenizer, wanted)
        assert (found[number].tokens, found[number].text) == (other.tokens, other.text)
        assert found[number].stats is not None
        assert other.stats is not None
        assert found[number].stats.finish_reason == other.stats.finish_reason


MIXED = [
    request(range(3, 3 + n_prompt), n_answer, seed)
    for seed, (n_prompt, n_answer) in enumerate([(1, 30), (90, 5), (40, 40), (2, 1), (200, 56), (7, 90), (33, 12)])
]


@pytest.mark.parametrize("n_parallel", [1, 2, 3, 8])
def test_each_answer_is_what_it_is_alone(tokenizer: Tokenizer, n_parallel: int) -> None:
    pool, lane = make_pool()
    batcher = batcher_of(pool, tokenizer, n_parallel)
    same(tokenizer, answered(batcher, MIXED), MIXED)
    assert batcher.counts.n_generated == sum(len(alone(tokenizer, each).tokens) for each in MIXED)
    assert batcher.counts.passes == len(lane.sizes)
    assert batcher.counts.n_evaluated == sum(lane.sizes)
    assert max(lane.sizes) <= 32
    assert pool.executor.n_free_pages == 24


def test_several_answers_share_passes(tokenizer: Tokenizer) -> None:
    pool, lane = make_pool()
    answered(batcher_of(pool, tokenizer, 4), [request([3 + n], 20, n) for n in range(4)])
    assert lane.sizes == [4] * 20


def test_a_prompt_is_read_while_others_go_on(tokenizer: Tokenizer) -> None:
    pool, lane = make_pool()
    answered(batcher_of(pool, tokenizer, 2), [request([3], 10), request(range(3, 65), 3)])
    assert lane.sizes[:4] == [32, 32, 2, 2]


def test_answers_whose_memory_was_taken_are_the_same(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "EXPECTED_TOKENS", 1)
    requests = [request(range(3, 3 + 5 * n), None, n) for n in range(1, 7)]
    pool, lane = make_pool(n_pages=6, n_context=200)
    batcher = batcher_of(pool, tokenizer, 6)
    found = answered(batcher, requests)
    other_pool, other_lane = make_pool(n_pages=24, n_context=200)
    roomy = answered(batcher_of(other_pool, tokenizer, 6), requests)
    assert {n: each.tokens for n, each in found.items()} == {n: each.tokens for n, each in roomy.items()}
    assert all(each.stats is not None and each.stats.finish_reason == "length" for each in found.values())
    assert batcher._scheduler.admission.swap.counts.in_ram > 0
    assert sum(lane.sizes) == sum(other_lane.sizes)  # nothing was read twice
    assert pool.executor.n_free_pages == 6


def test_sessions_that_rest_give_way(tokenizer: Tokenizer) -> None:
    pool, _ = make_pool(n_pages=5)
    resting = pool.open()
    list(stream_of(resting, tokenizer, request(range(3, 150), 20)))
    wanted = [request(range(3, 150), 50)]
    same(tokenizer, answered(batcher_of(pool, tokenizer, 2), wanted), wanted)
    assert resting.tokens == ()


def test_what_is_wrong_with_one_prompt_is_its_own_answer(tokenizer: Tokenizer) -> None:
    pool, _ = make_pool()
    good = [request([3, 4], 5), request([5], 5)]
    found = answered(batcher_of(pool, tokenizer, 2), [good[0], request([3] * 257, 5), request([], 5), good[1]])
    assert isinstance(found[1].error, ContextOverflow)
    assert isinstance(found[2].error, BadSetting)
    same(tokenizer, {0: found[0], 1: found[3]}, good)


def test_what_goes_wrong_in_one_answer_is_its_own(tokenizer: Tokenizer) -> None:
    pool, _ = make_pool()

    def broken(what: str, done: int, total: int) -> None:
        if done:
            raise ValueError("no such number")

    good = [request([3, 4], 20), request(range(3, 60), 20, 2)]
    found = answered(
        batcher_of(pool, tokenizer, 3), [good[0], replace(request(range(60, 90), 5), progress=broken), good[1]]
    )
    assert str(found[1].error) == "no such number"
    same(tokenizer, {0: found[0], 1: found[2]}, good)
    assert pool.executor.n_free_pages == 24


def test_a_batch_that_is_dropped_waits_for_nobody(tokenizer: Tokenizer) -> None:
    pool, _ = make_pool()
    batcher = batcher_of(pool, tokenizer, 2)
    wanted = [request([3], 2), request([4], 100)]
    answers = batcher.answers(iter(NumberedRequest(number, each) for number, each in enumerate(wanted)))
    next(answers)
    with pool.lock:  # as another thread's pass does
        closing = threading.Thread(target=answers.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
    assert pool.executor.n_free_pages < 24
    batcher.leave()
    assert pool.executor.n_free_pages == 24


def test_prompts_are_taken_when_their_turn_comes(tokenizer: Tokenizer) -> None:
    taken: list[int] = []

    def endless() -> Iterator[NumberedRequest]:
        for number in range(10**9):
            taken.append(number)
            yield NumberedRequest(number, request([3 + number], 4, number))

    pool, _ = make_pool()
    answers = batcher_of(pool, tokenizer, 3).answers(endless())
    first = [next(answers) for _ in range(6)]
    assert {each.number for each in first} == set(range(6))
    assert len(taken) <= 9
    answers.close()
    assert pool.executor.n_free_pages == 24


def test_stop_ends_what_runs_and_begins_nothing(tokenizer: Tokenizer) -> None:
    pool, lane = make_pool()
    batcher = batcher_of(pool, tokenizer, 2)
    answers = batcher.answers(
        NumberedRequest(n, request([3 + n], n_tokens)) for n, n_tokens in enumerate([5, 90, 90, 90])
    )
    assert next(answers).number == 0
    n_passes = len(lane.sizes)
    batcher.stop()
    rest = list(answers)
    assert len(lane.sizes) == n_passes
    assert [each.stats.finish_reason for each in rest if each.stats is not None] == ["cancelled"]
    assert rest[0].number == 1
    assert len(rest[0].tokens) == 5


def test_a_model_that_is_closed_ends_the_batch(tokenizer: Tokenizer) -> None:
    pool, _ = make_pool()
    answers = batcher_of(pool, tokenizer, 2).answers(
        iter([NumberedRequest(0, request([3], 2)), NumberedRequest(1, request([4], 90))])
    )
    next(answers)
    pool.close()
    with pytest.raises(EngineClosed):
        list(answers)


@pytest.mark.parametrize("last", [1, 2, 5, 17, 40])
def test_a_device_that_fails_costs_no_answer(tokenizer: Tokenizer, last: int) -> None:
    limits = Limits(256, 24, 32, 8)
    lane = FailingLane(24, N_VOCAB)
    lane.last = last
    spare = Executor(SlotDevice(N_VOCAB), SlotLane(24, N_VOCAB), limits, "slots")
    pool = Pool(Rescued(Executor(SlotDevice(N_VOCAB), lane, limits, "slots"), lambda: spare))
    found = answered(batcher_of(pool, tokenizer, 4), MIXED)
    same(tokenizer, found, MIXED)
    told = [notice for each in found.values() if each.stats is not None for notice in each.stats.notices]
    assert len([notice for notice in told if "the driver was reset" in notice]) == 1


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60)), min_size=1, max_size=9),
    n_parallel=st.integers(1, 9),
    n_pages=st.integers(4, 20),
    max_tokens=st.integers(9, 40),
)
def test_no_order_and_no_shortage_changes_an_answer(
    tokenizer: Tokenizer, sizes: list[tuple[int, int]], n_parallel: int, n_pages: int, max_tokens: int
) -> None:
    pool, lane = make_pool(n_pages, 180, max_tokens)
    requests = [request(range(3, 3 + n_prompt), n, seed) for seed, (n_prompt, n) in enumerate(sizes)]
    same(tokenizer, answered(batcher_of(pool, tokenizer, n_parallel), requests), requests)
    assert max(lane.sizes) <= max_tokens
    assert pool.executor.n_free_pages == n_pages
