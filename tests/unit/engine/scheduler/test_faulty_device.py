"""A device that fails or lies, in each pass of several answers: a clear error, exact neighbours, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.errors import DeviceFailed, NotFinite
from edgeinfer.graph.step import Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.lane import SlotDevice
from tests.unit.engine.scheduler.served import N_VOCAB, CountingLane, Served, request, stream_of

WANTED = [request(range(3, 75), 8, 1), request(range(3, 50), 12, 2), request([7, 8], 10, 3, temperature=0.0)]
"""Prompts read in parts, a prefix that two share, and a greedy answer."""


Fault: TypeAlias = "Callable[[FaultyLane, Step, np.ndarray], np.ndarray]"


class FaultyLane(CountingLane):
    """Does `fault` at the `last` run; what a lie wrote to the cache spoils all that attends to it."""

    def __init__(self, n_pages: int, last: int, fault: Fault) -> None:
        super().__init__(n_pages)
        self.last, self.fault = last, fault
        self.spoilt = np.zeros(len(self.slots), bool)

    def run(self, step: Step) -> np.ndarray:
        self.last -= 1
        logits = super().run(step)
        self.spoilt[step.slots] = False
        if self.last == 0:
            logits = self.fault(self, step, logits)
        for row, output in enumerate(step.batch.outputs.tolist()):
            table, n_before = step.tables[step.rows[output]], int(step.batch.positions[output]) + 1
            if any(self.spoilt[table[p // 64] * 64 + p % 64] for p in range(n_before)):
                logits[row] = np.nan
        return logits

    def copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        super().copy_slots(sources, targets)
        self.spoilt[targets] = self.spoilt[sources]


def fails(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    raise DeviceFailed("the driver was reset")


def crashes(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    raise RuntimeError("CUDA error 719")


def is_short_of_memory(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    raise MemoryError


def gives_nan(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    lane.spoilt[step.slots] = True
    return np.full_like(logits, np.nan)


def gives_infinity(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    logits[:, 100] = np.inf
    lane.spoilt[step.slots] = True
    return logits


def loses_a_row(lane: FaultyLane, step: Step, logits: np.ndarray) -> np.ndarray:
    return logits[:-1] if len(logits) else np.zeros((1, N_VOCAB), np.float32)


FAULTS = [fails, crashes, is_short_of_memory, gives_nan, gives_infinity, loses_a_row]


class Faulty(Served):
    """A scheduler over such a lane."""

    def __init__(self, tokenizer: Tokenizer, last: int, fault: Fault) -> None:
        super().__init__(tokenizer)
        self.lane = FaultyLane(self.n_pages, last, fault)
        self.pool = Pool(Executor(SlotDevice(N_VOCAB), self.lane, Limits(256, self.n_pages, 32, 8), "slots"))
        self.scheduler = Scheduler(self.pool)
        self.driver = StepDriver(self.scheduler)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.fixture(scope="module")
def alone(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """What each answer is without faults."""
    return [Served(tokenizer).alone(each).tokens for each in WANTED]


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_end_with_the_error_or_go_on_exactly_and_nothing_is_lost(
    tokenizer: Tokenizer, alone: list[tuple[int, ...]], fault: Fault
) -> None:
    n_failed = n_passes = 0
    for last in range(1, 40):
        served = Faulty(tokenizer, last, fault)
        entered = [served.sequence(each) for each in WANTED]
        served.run(*entered, most=300)
        if served.lane.last > 0:
            break
        n_passes += 1
        for sequence, expected in zip(entered, alone, strict=True):
            if sequence.error is None:
                assert sequence.tokens == expected
            else:
                assert clear(sequence, fault), repr(sequence.error)
                assert sequence.tokens == expected[: len(sequence.tokens)]
                n_failed += 1
        again = [served.sequence(each) for each in WANTED]
        served.run(*again, most=300)
        for sequence, expected in zip(again, alone, strict=True):
            assert sequence.error is None, (last, sequence.error)
            assert sequence.tokens == expected
        served.scheduler.close()
        assert served.pool.executor.n_free_pages == served.n_pages
    assert n_passes > 10
    assert n_failed > n_passes


def clear(sequence: ScheduledSequence, fault: Fault) -> bool:
    """Whether an answer ended with what the fault is told as."""
    told = {fails: DeviceFailed, crashes: RuntimeError, is_short_of_memory: MemoryError, loses_a_row: DeviceFailed}
    return isinstance(sequence.error, told.get(fault, NotFinite))


@pytest.mark.parametrize("last", range(1, 5))
def test_a_session_reads_again_what_was_spoilt(tokenizer: Tokenizer, alone: list[tuple[int, ...]], last: int) -> None:
    """In a part of the prompt without logits, too: the error comes later, and the cache is not trusted any more."""
    served = Faulty(tokenizer, last, gives_nan)
    session = served.pool.open()
    with pytest.raises(NotFinite):
        stream_of(session, tokenizer, WANTED[0], driver=served.driver).read()
    again = stream_of(session, tokenizer, WANTED[0], driver=served.driver)
    again.read()
    assert again.tokens == alone[0]


def test_a_prompt_that_is_only_read_says_so_too(tokenizer: Tokenizer) -> None:
    served = Faulty(tokenizer, 2, gives_nan)
    only_read = served.sequence(replace(WANTED[0], max_tokens=0))
    served.run(only_read)
    assert isinstance(only_read.error, NotFinite)
