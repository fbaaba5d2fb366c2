"""A device that fails in the middle: the text goes on from the same token on another, and its user is told once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run import evaluators
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.rescue import Rescued
from edgeinfer.errors import DeviceFailed, DeviceUnavailable, DoesNotFit, EdgeInferError
from edgeinfer.graph.step import Batch, Step
from edgeinfer.load_options import LoadOptions
from tests.unit.engine.lane import SlotDevice, SlotLane, row_logits
from tests.unit.engine.run.test_executor import chain

LIMITS = Limits(n_context=256, n_pages=12, max_tokens=32, max_outputs=16)


class FailingLane(SlotLane):
    """Breaks down at its `last` run, or when keys and values are copied after `copies` times."""

    last = copies = 10**9
    failure: Exception = DeviceFailed("the driver was reset")

    def run(self, step: Step) -> np.ndarray:
        self.last -= 1
        if self.last <= 0:
            raise self.failure
        return super().run(step)

    def copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self.copies -= 1
        if self.copies <= 0:
            raise self.failure
        super().copy_slots(sources, targets)


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


def test_capabilities_are_one_record_until_another_device_goes_on() -> None:
    rescued, _ = make(2)
    sequence, before = rescued.create(), rescued.capabilities
    assert rescued.capabilities is before
    assert before.eventful is rescued
    assert before.step_times is not None
    for token in range(3):
        rescued.evaluate(chain(sequence, token, [token]))
        rescued.commit(sequence, np.zeros(1, np.int32))
    after = rescued.capabilities
    assert rescued.device == "cpu"
    assert rescued.capabilities is after
    assert after.eventful is rescued
    assert after.step_times is not before.step_times
    rescued.close()


@pytest.mark.parametrize("copies", [1, 2])
def test_a_device_may_fail_when_tokens_are_kept(copies: int) -> None:
    with Executor(SlotDevice(), SlotLane(LIMITS.n_pages), LIMITS, "model") as plain:
        expected = play(plain)
    rescued, lane = make(10**9)
    lane.copies = copies
    assert play(rescued) == expected
    assert rescued.device == "cpu"
    rescued.close()


def test_a_shortage_of_memory_in_a_pass_is_a_failure_too() -> None:
    rescued, lane = make(3)
    lane.failure = MemoryError()
    play(rescued)
    assert rescued.take_notices() == ("gpu failed and was dropped; cpu goes on (it ran out of memory)",)
    rescued.close()


def test_a_device_that_cannot_be_opened_says_so_and_takes_no_text() -> None:
    def refuse() -> Executor:
        raise DeviceUnavailable("no compiler")

    lane = FailingLane(LIMITS.n_pages)
    rescued = Rescued(Executor(SlotDevice(), lane, LIMITS, "model"), refuse)
    sequence = rescued.create()
    lane.last = 1
    with pytest.raises(DeviceFailed, match=r"the driver was reset.*nothing else can go on: no compiler"):
        rescued.evaluate(chain(sequence, 0, [1, 2]))


def test_the_text_is_kept_until_there_is_memory_to_go_on() -> None:
    """While another device does not fit, every pass says so; sequences may be made, branched and dropped meanwhile."""
    with Executor(SlotDevice(), SlotLane(LIMITS.n_pages), LIMITS, "model") as plain:
        one = plain.create()
        plain.evaluate(chain(one, 0, [1, 2, 3]))
        plain.commit(one, np.arange(3, dtype=np.int32))
        expected = plain.evaluate(chain(one, 3, [4])).copy()
    has_room = False

    def opened() -> Executor:
        if not has_room:
            raise DoesNotFit("2 GB too much")
        device = SlotDevice()
        device.name = "cpu"
        return Executor(device, SlotLane(LIMITS.n_pages), LIMITS, "model")

    lane = FailingLane(LIMITS.n_pages)
    rescued = Rescued(Executor(SlotDevice(), lane, LIMITS, "model"), opened)
    one = rescued.create()
    rescued.evaluate(chain(one, 0, [1, 2, 3]))
    lane.copies = 1
    lane.last = 1
    rescued.commit(one, np.arange(3, dtype=np.int32))
    for _ in range(2):
        with pytest.raises(DoesNotFit, match=r"the driver was reset.*2 GB too much; the text so far is kept"):
            rescued.evaluate(chain(one, 3, [4]))
    two, three = rescued.branch(one), rescued.create()
    assert rescued.n_cached(one) == rescued.n_cached(two) == 3
    with pytest.raises(DoesNotFit):
        rescued.save(one)
    has_room = True
    assert rescued.evaluate(chain(one, 3, [4])).tobytes() == expected.tobytes()
    assert rescued.evaluate(chain(two, 3, [4])).tobytes() == expected.tobytes()
    assert rescued.evaluate(chain(three, 0, [1, 2, 3])).shape == (1, expected.shape[1])
    assert rescued.device == "cpu"
    rescued.close()


def test_memory_is_looked_at_before_the_cpu_goes_on(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    """What the cpu would take is known from the header: it is not left to the system to end the process."""
    subject = evaluators.open_subject(tiny_model, LoadOptions(device="onnx", n_context=128))
    opened: list[str] = []

    def open_slots(*arguments: object) -> Executor:
        """Opens a slot device under any name."""
        opened.append(str(arguments[0]))
        lane, device = FailingLane(LIMITS.n_pages), SlotDevice()
        lane.last, device.name = 1, str(arguments[0])
        return Executor(device, lane, LIMITS, "model")

    monkeypatch.setattr("edgeinfer.engine.opening.evaluator.open_executor", open_slots)
    monkeypatch.setattr("edgeinfer.engine.opening.evaluator.available_bytes", lambda: 1000)
    with subject.file:
        evaluator = open_evaluator(subject, LIMITS, DeviceOptions(), LoadOptions(device="onnx"))
        with pytest.raises(DoesNotFit, match="the model needs"):
            evaluator.evaluate(chain(evaluator.create(), 0, [1, 2]))
        assert opened == ["onnx"]
        evaluator.close()


def test_a_state_says_which_device_saved_it() -> None:
    """Between devices of which one is rescued and one not, whichever way, and between two of a kind."""

    def made(name: str, *, is_rescued: bool) -> Executor | Rescued:
        device = SlotDevice()
        device.name = name
        executor = Executor(device, SlotLane(LIMITS.n_pages), LIMITS, "model")
        return Rescued(executor, lambda: executor) if is_rescued else executor

    for first, second in (("gpu", "cpu"), ("cpu", "gpu"), ("npu+cpu", "gpu"), ("cpu", "reference")):
        saving, reading = (made(name, is_rescued="pu" in name and name != "cpu") for name in (first, second))
        sequence = saving.create()
        saving.evaluate(chain(sequence, 0, [1, 2, 3]))
        saving.commit(sequence, np.arange(3, dtype=np.int32))
        state = saving.save(sequence)
        words = rf"saved by the device {re.escape(first)}; load .* --device {first.replace('+', ',')} .*start again"
        target = reading.create()
        with pytest.raises(EdgeInferError, match=words):
            reading.restore(target, state)
        assert reading.n_cached(target) == 0
        saving.close()
        reading.close()


def test_sequences_that_do_not_fit_together_any_more_are_read_as_there_is_room() -> None:
    """Branches shared their pages; elsewhere each is read on its own, and none takes another's place."""
    device, lane = SlotDevice(), FailingLane(LIMITS.n_pages)
    few = Limits(n_context=256, n_pages=3, max_tokens=32, max_outputs=16)
    rescued = Rescued(
        Executor(device, lane, LIMITS, "model"), lambda: Executor(SlotDevice(), SlotLane(3), few, "model")
    )
    one = rescued.create()
    for start in range(0, 128, 32):
        rescued.evaluate(chain(one, start, list(range(32))))
        rescued.commit(one, np.arange(32, dtype=np.int32))
    two = rescued.branch(one)
    lane.last = 1
    expected = row_logits([*range(32)] * 4 + [5], 64)
    assert rescued.evaluate(chain(one, 128, [5]))[0].tolist() == expected.tolist()
    rescued.commit(one, np.zeros(1, np.int32))
    with pytest.raises(DoesNotFit):
        rescued.evaluate(chain(two, 128, [6]))
    assert rescued.n_cached(two) == 128
    three = rescued.create()
    rescued.truncate(one, 0)
    assert rescued.evaluate(chain(two, 128, [6]))[0].tolist() == row_logits([*range(32)] * 4 + [6], 64).tolist()
    assert rescued.n_cached(three) == 0
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
