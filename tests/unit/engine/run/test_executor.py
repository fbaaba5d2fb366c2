"""The executor over a lane that stores tokens: trees, limits, saved states; observing it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.backends.base import Limits
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.observed import StageSeconds, median_stages
from edgeinfer.errors import DoesNotFit, EdgeInferError, EngineClosed, UnknownKey
from edgeinfer.graph.step import PAGE, Batch
from tests.unit.engine.lane import SlotDevice, SlotLane, row_logits

LIMITS = Limits(n_context=4 * PAGE, n_pages=8, max_tokens=128, max_outputs=16)


def make(fingerprint: str = "model", n_pages: int = LIMITS.n_pages) -> Executor:
    return Executor(SlotDevice(), SlotLane(n_pages), LIMITS, fingerprint)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with make() as opened:
        yield opened


def chain(sequence: int, n_cached: int, tokens: list[int]) -> Batch:
    n = len(tokens)
    return Batch(
        np.array(tokens, np.int32),
        np.full(n, sequence, np.int32),
        np.arange(n_cached, n_cached + n, dtype=np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.array([n - 1], np.int32),
    )


def feed(executor: Executor, sequence: int, tokens: list[int]) -> np.ndarray:
    logits = executor.evaluate(chain(sequence, executor.n_cached(sequence), tokens))
    executor.commit(sequence, np.arange(len(tokens), dtype=np.int32))
    return logits


def test_logits_after_a_committed_branch_of_a_tree_are_those_of_the_plain_text(executor: Executor) -> None:
    sequence = executor.create()
    feed(executor, sequence, list(range(70)))
    tree = Batch(*(np.array(v, np.int32) for v in ([1, 2, 3, 4], [sequence] * 4, [70, 71, 71, 72], [-1, 0, 0, 2], [3])))
    assert executor.evaluate(tree)[0].tolist() == row_logits([*range(70), 1, 3, 4], 64).tolist()
    executor.commit(sequence, np.array([0, 2, 3], np.int32))
    assert feed(executor, sequence, [9])[0].tolist() == row_logits([*range(70), 1, 3, 4, 9], 64).tolist()


def test_what_is_not_committed_is_forgotten(executor: Executor) -> None:
    sequence = executor.create()
    feed(executor, sequence, [1, 2])
    executor.evaluate(chain(sequence, 2, [3, 4]))
    assert executor.n_cached(sequence) == 2
    assert feed(executor, sequence, [5])[0].tolist() == row_logits([1, 2, 5], 64).tolist()


def test_branches_truncation_and_free(executor: Executor) -> None:
    sequence = executor.create()
    feed(executor, sequence, list(range(PAGE + 5)))
    twin = executor.branch(sequence)
    executor.truncate(twin, 3)
    assert feed(executor, twin, [7])[0].tolist() == row_logits([0, 1, 2, 7], 64).tolist()
    assert feed(executor, sequence, [8])[0].tolist() == row_logits([*range(PAGE + 5), 8], 64).tolist()
    executor.free(sequence)
    executor.free(twin)
    assert executor.n_free_pages == LIMITS.n_pages


@pytest.mark.parametrize("n_tokens", [0, 1, PAGE, PAGE + 9])
def test_a_restored_state_goes_on_as_the_saved_one(n_tokens: int) -> None:
    tokens = list(range(n_tokens))
    with make() as first, make() as second:
        sequence = first.create()
        for start in range(0, n_tokens, 50):
            feed(first, sequence, tokens[start : start + 50])
        state = first.save(sequence)
        target = second.create()
        feed(second, target, [60, 61])
        second.restore(target, state)
        assert second.n_cached(target) == n_tokens
        assert feed(second, target, [9])[0].tolist() == row_logits([*tokens, 9], 64).tolist()


def test_damaged_and_foreign_states_are_refused_and_change_nothing(executor: Executor) -> None:
    sequence = executor.create()
    feed(executor, sequence, [1, 2, 3])
    state = executor.save(sequence)
    with make("another") as other, pytest.raises(EdgeInferError, match="its model is model, not another"):
        other.restore(other.create(), state)
    for position in range(0, len(state), 7):
        damaged = bytearray(state)
        damaged[position] ^= 1
        with pytest.raises(EdgeInferError, match=r"damaged|version"):
            executor.restore(sequence, bytes(damaged))
    for damaged in (b"", state[:-1], state + b"x", b"PK\x03\x04" + state):
        with pytest.raises(EdgeInferError, match=r"damaged|version"):
            executor.restore(sequence, bytes(damaged))
    assert feed(executor, sequence, [4])[0].tolist() == row_logits([1, 2, 3, 4], 64).tolist()


def test_a_state_without_room_leaves_the_sequence_empty() -> None:
    with make() as large, make(n_pages=8) as small:
        sequence = large.create()
        feed(large, sequence, list(range(100)))
        state = large.save(sequence)
        fillers = [small.create() for _ in range(7)]
        for filler in fillers:
            feed(small, filler, [1])
        target = small.create()
        feed(small, target, [1])
        with pytest.raises(DoesNotFit):
            small.restore(target, state)
        assert small.n_cached(target) == 0


def test_batches_beyond_the_limits_are_refused(executor: Executor) -> None:
    sequence = executor.create()
    with pytest.raises(ValueError, match="128 tokens and 16 outputs"):
        executor.evaluate(chain(sequence, 0, list(range(129))))


def test_closing_gives_everything_back_and_later_calls_say_so() -> None:
    device, lane = SlotDevice(), SlotLane(8)
    executor = Executor(device, lane, LIMITS, "model")
    assert executor.resident_bytes == 1234
    executor.close()
    executor.close()
    assert (device.closed, lane.closed, executor.resident_bytes) == (True, True, 0)
    with pytest.raises(EngineClosed, match="load it again"):
        executor.evaluate(chain(executor.create(), 0, [1]))


def test_an_unknown_device_lists_the_ones_there_are() -> None:
    with pytest.raises(UnknownKey, match=r"abacus.*reference"):
        open_executor("abacus", OpeningRequest(None, None, LIMITS), "model")


def test_medians_are_taken_stage_by_stage() -> None:
    passes = [[StageSeconds("blk.0", n, 2 * n, 0.0), StageSeconds("head", 4 - n, 0.0, n)] for n in (1.0, 3.0, 2.0)]
    assert median_stages(passes) == (StageSeconds("blk.0", 2.0, 4.0, 0.0), StageSeconds("head", 2.0, 0.0, 2.0))
    assert median_stages([]) == ()


def test_shares_of_the_last_step_are_all_of_it(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        llm.complete("the cat", max_tokens=8, temperature=0).read()
        step = llm.telemetry.last_step
        assert step is not None
        assert sum(step.shares) == pytest.approx(1.0)
        assert len(step.shares) == len(step.workers)
        assert step.seconds > 0
        assert llm.telemetry.n_workers >= len(step.workers)


def test_other_devices_tell_nothing_of_steps(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        llm.complete("the cat", max_tokens=4, temperature=0).read()
        assert llm.telemetry.last_step is None
        assert llm.telemetry.time_stages() == ()


@pytest.mark.parametrize("n_cached", [0, 5, 100_000])
def test_timed_passes_give_their_pages_back(home: Path, tiny_model: Path, n_cached: int) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        n_free = llm.telemetry.n_free_pages
        stages = llm.telemetry.time_stages(n_cached)
        assert [stage.stage for stage in stages] == ["embed", "blk.0", "blk.1", "head"]
        assert all(stage.products_s > 0 for stage in stages[1:])
        assert all(stage.attention_s > 0 for stage in stages[1:-1])
        assert llm.telemetry.n_free_pages == n_free
