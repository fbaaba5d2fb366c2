"""Answers that are preempted: whatever goes wrong on the way out or back costs time and no token."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.run.rescue import Rescued
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.lane import SlotDevice
from tests.unit.engine.run.test_rescue import FailingLane
from tests.unit.engine.scheduler.served import N_VOCAB, Served, request

FIRST, SECOND = request(range(3, 133), 60, 1), request(range(60, 160), 60, 2)
"""Two answers that do not fit together into five pages."""


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.mark.parametrize("broken_off", [MemoryError, KeyboardInterrupt])
def test_an_answer_that_cannot_be_put_away_goes_on(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, broken_off: type[BaseException]
) -> None:
    served = Served(tokenizer, n_pages=5)
    behind = served.sequence(FIRST, "background", shares=False)
    for _ in range(9):
        served.scheduler.step()

    def save(sequence: int) -> bytes:
        monkeypatch.undo()
        raise broken_off

    monkeypatch.setattr(served.pool.executor, "save", save)
    watched = served.sequence(SECOND, shares=False)
    if broken_off is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            served.scheduler.step()
    served.run(watched, behind)
    served.same(watched, SECOND)
    served.same(behind, FIRST)
    assert behind.n_preempted == 1
    assert served.scheduler.admission.swap.counts.dropped == (broken_off is MemoryError)
    assert served.pool.executor.n_free_pages == 5


def test_what_another_device_kept_is_read_again(tokenizer: Tokenizer) -> None:
    def opened(name: str, last: int) -> Executor:
        device, lane = SlotDevice(N_VOCAB), FailingLane(5, N_VOCAB)
        device.name, lane.last = name, last
        return Executor(device, lane, Limits(256, 5, 32, 8), "model")

    served = Served(tokenizer, n_pages=5)
    served.pool = Pool(Rescued(opened("gpu", 25), lambda: opened("cpu", 10**9)))
    served.scheduler = Scheduler(served.pool)
    served.driver = StepDriver(served.scheduler)
    behind = served.sequence(FIRST, "background", shares=False)
    for _ in range(9):
        served.scheduler.step()
    watched = served.sequence(SECOND, shares=False)
    served.run(watched, behind)
    assert served.pool.executor.device == "cpu"
    served.same(watched, SECOND)
    served.same(behind, FIRST)
    counts = served.scheduler.admission.swap.counts
    assert (counts.in_ram, counts.swapped_in, counts.dropped) == (1, 0, 1)


def test_an_answer_that_has_outgrown_what_was_expected_is_brought_back_once_it_has_room(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, n_pages=10, n_context=1024)
    entered = [served.sequence(request(range(3, 13), 440, seed), shares=False) for seed in range(2)]
    served.run(*entered)
    assert [sequence.n_preempted for sequence in entered] == [0, 1]
    assert sum(served.lane.sizes) == 2 * (10 + 439)  # nothing was read again
