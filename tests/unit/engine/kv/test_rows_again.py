"""Rows of numbers that must be read again: after a device failed, after its process died, out of a saved state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.isolation.isolated import Isolated
from edgeinfer.engine.measure.power_limiter import PowerLimiter
from edgeinfer.engine.run.evaluators import SequenceEvaluator, open_subject
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.rescue import Rescued
from edgeinfer.errors import DeviceFailed, UnsupportedModel
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.decoder_folder import DecoderFolder
from edgeinfer.models.gguf import GGUFFile
from tests.golden.goldens import distance
from tests.golden.row_goldens import LIMITS, NAMES, RowGolden, executor, feed
from tests.unit.engine.isolation.test_isolation import crash

CLOSE = 1e-5
"""The reference device sums in an order that depends on the pass."""


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> RowGolden:
    return RowGolden.read(request.param)


@pytest.fixture
def direct(golden: RowGolden) -> Iterator[Executor]:
    with executor(ReferenceDevice(), golden.model) as found:
        yield found


class Failing:
    """An executor that fails once it is told to."""

    def __init__(self, inner: Executor) -> None:
        self._inner, self.fails = inner, False

    def __getattr__(self, name: str) -> object:
        if self.fails and name in ("evaluate", "restore"):
            raise DeviceFailed("the driver was reset")
        return getattr(self._inner, name)


def journey(evaluator: SequenceEvaluator, golden: RowGolden, trouble: object = None) -> list[np.ndarray]:
    """A text in parts, cut back into its first image, branched; `trouble` comes in the middle of it."""
    one, text = evaluator.create(), golden.text
    found = [feed(evaluator, one, text.part(0, 50))]
    reached = evaluator.truncate(one, 30)
    found.append(feed(evaluator, one, text.part(reached, 52))[30 - reached :])
    two = evaluator.branch(one)
    state = evaluator.save(one)
    if callable(trouble):
        trouble()
    found.append(feed(evaluator, one, text.part(52, 55)))
    found.append(feed(evaluator, two, text.part(52, 80)))
    evaluator.truncate(one, 0)
    evaluator.restore(one, state)
    found.append(feed(evaluator, one, text.part(52, 57)))
    return found


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return max(map(distance, found, expected)) < CLOSE


def test_a_text_goes_on_where_a_device_fails(direct: Executor, golden: RowGolden) -> None:
    expected = journey(direct, golden)
    with executor(ReferenceDevice(), golden.model) as first, executor(ReferenceDevice(), golden.model) as second:
        failing = Failing(first)
        rescued = Rescued(failing, lambda: second)  # type: ignore[arg-type]

        def fail() -> None:
            failing.fails = True

        assert close(journey(rescued, golden, fail), expected)
        assert len(rescued.take_notices()) == 1


def test_a_saved_state_keeps_what_must_be_read_again(direct: Executor, golden: RowGolden) -> None:
    expected = feed(direct, direct.create(), golden.text)[60:]
    with executor(ReferenceDevice(), golden.model) as first, executor(ReferenceDevice(), golden.model) as second:
        failing = Failing(first)
        rescued = Rescued(failing, lambda: second)  # type: ignore[arg-type]
        one, two = rescued.create(), rescued.create()
        feed(rescued, one, golden.text.part(0, 60))
        rescued.restore(two, rescued.save(one))
        failing.fails = True
        assert distance(feed(rescued, two, golden.text.part(60, 80)), expected) < CLOSE


def isolated(file: GGUFFile | DecoderFolder, *, rows: bool) -> Isolated:
    load = LoadOptions(device="reference", mode="max", rows=rows)
    return Isolated.open(file, LIMITS, DeviceOptions(n_workers=1), load, ("performance",), PowerLimiter.free(1))


def test_another_process_reads_rows_again(direct: Executor, golden: RowGolden) -> None:
    expected = journey(direct, golden)
    load = LoadOptions(device="reference", n_context=LIMITS.n_context, rows=True)
    with open_subject(golden.model, load).file as file:
        with isolated(file, rows=True) as apart:
            assert close(journey(apart, golden, lambda: crash(apart)), expected)
            assert len(apart.take_notices()) == 1
        with isolated(file, rows=False) as apart:
            sequence = apart.create()
            with pytest.raises(UnsupportedModel, match="token ids alone"):
                feed(apart, sequence, golden.text)
