"""A device that fails in the middle: the text goes on from the same token on another, and its user is told once."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.base import Batch, Limits, Step
from edgeinfer.engine.executor import Executor
from edgeinfer.engine.rescue import Rescued
from edgeinfer.errors import DeviceFailed, EdgeInferError
from tests.unit.engine.lane import SlotDevice, SlotLane
from tests.unit.engine.test_executor import chain

LIMITS = Limits(n_context=256, n_pages=12, max_tokens=32, max_outputs=16)


class FailingLane(SlotLane):
    """Breaks down at its `last` run."""

    last = 10**9

    def run(self, step: Step) -> np.ndarray:
        self.last -= 1
        if self.last <= 0:
            raise DeviceFailed("the driver was reset")
        return super().run(step)


def make(last: int, fallback_last: int = 10**9) -> tuple[Rescued, FailingLane]:
    def opened(name: str, runs: int) -> tuple[Executor, FailingLane]:
        device, lane = SlotDevice(), FailingLane(LIMITS.n_pages)
        device.name, lane.last = name, runs
        return Executor(device, lane, LIMITS, "model"), lane

    first, lane = opened("gpu", last)
    return Rescued(first, lambda: opened("cpu", fallback_last)[0]), lane


def play(evaluator: Executor | Rescued) -> list[bytes]:
    """Prompts of two sequences, a branch, a draft tree of which a path is kept, a truncation, single tokens."""
    seen = []
    one, two = evaluator.create(), evaluator.create()

    def feed(sequence: int, tokens: list[int]) -> None:
        batch = chain(sequence, evaluator.n_cached(sequence), tokens)
        seen.append(evaluator.evaluate(batch).tobytes())
        evaluator.commit(sequence, np.arange(len(tokens), dtype=np.int32))

    feed(one, list(range(30)))
    feed(two, [7, 8, 9])
    three = evaluator.branch(one)
    feed(three, [40])
    n_cached = evaluator.n_cached(one)
    tokens, parents = np.array([1, 2, 3, 4], np.int32), np.array([-1, 0, 0, 2], np.int32)
    positions = np.array([0, 1, 1, 2], np.int32) + np.int32(n_cached)
    outputs = np.arange(4, dtype=np.int32)
    seen.append(evaluator.evaluate(Batch(tokens, np.full(4, one, np.int32), positions, parents, outputs)).tobytes())
    evaluator.commit(one, np.array([0, 2, 3], np.int32))
    evaluator.truncate(three, 20)
    for token in range(50, 54):
        for sequence in (one, two, three):
            feed(sequence, [token])
    state = evaluator.save(two)
    evaluator.truncate(two, 0)
    evaluator.restore(two, state)
    feed(two, [60])
    evaluator.free(three)
    feed(one, [61])
    return seen


@pytest.mark.parametrize("last", range(1, 20))
def test_the_text_goes_on_from_the_same_token(last: int) -> None:
    device = SlotDevice()
    with Executor(device, SlotLane(LIMITS.n_pages), LIMITS, "model") as plain:
        expected = play(plain)
    rescued, lane = make(last)
    assert play(rescued) == expected
    if last <= len(expected):
        assert rescued.device == "cpu"
        assert lane.closed
        assert rescued.take_notices() == ("gpu failed and was dropped; cpu goes on (the driver was reset)",)
    assert rescued.take_notices() == ()
    rescued.close()


def test_there_is_no_third_device() -> None:
    rescued, _ = make(3, fallback_last=6)
    with pytest.raises(DeviceFailed, match="reset"):
        play(rescued)
    rescued.close()


def test_a_state_that_is_damaged_changes_nothing() -> None:
    rescued, _ = make(10**9)
    sequence = rescued.create()
    rescued.evaluate(chain(sequence, 0, [1, 2, 3]))
    rescued.commit(sequence, np.arange(3, dtype=np.int32))
    state = rescued.save(sequence)
    with pytest.raises(EdgeInferError):
        rescued.restore(sequence, state[:-3] + b"abc")
    assert rescued.n_cached(sequence) == 3
    rescued.close()
