"""Overlap executors over golden models, and the same sequences one by one on one device, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.overlap.choosing import Choosing
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.overlap.passes import paired
from edgeinfer.engine.probing import combination
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.load import Model, open_model
from edgeinfer.scheduling.batch.costs import BatchCosts
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.profile import CPU, Profile
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden, distance

NOISE = 2e-2
"""Relative: another order of sums now and then rounds an activation to another int8, which is most of what is seen."""
NEARLY = 2e-3
"""Relative, where weights are not quantised: only keys and values are rounded, to float16."""
LIMITS = Limits(n_context=4 * PAGE, n_pages=24, max_tokens=64, max_outputs=64)
EACH = 2 * PAGE
"""Tokens that a sequence of these tests may grow to."""


def cpu() -> Device:
    return DEVICES.get("cpu").open(DeviceOptions(n_workers=1))


def accelerator(name: str) -> Device:
    """A device to run products; the reference one rounds as the CPU does, so that any difference is a fault."""
    if name == "reference":
        return ReferenceDevice(activations="int8", kv="f16")
    return DEVICES.get(name).open(DeviceOptions(n_workers=1))


@contextmanager
def overlapping(
    golden: Golden,
    device: Device,
    schedule: str,
    *,
    n_resident: int = 2,
    kv: KVKind = "f16",
    host: Device | None = None,
    limits: Limits = LIMITS,
) -> Iterator[OverlapExecutor]:
    """An executor with room for so many resident sequences of EACH tokens. "auto" predicts for a made-up machine."""
    limits = replace(limits, kv=kv)
    with open_model(golden.model, limits.n_context) as model:
        pages = n_resident * EACH // PAGE, limits.n_pages
        pair = paired(model.spec, model.file, host or cpu(), device, limits, lambda _: pages)
        with OverlapExecutor(pair, "golden", Choosing(costs(model), schedule)) as executor:
            yield executor


def costs(model: Model) -> BatchCosts:
    """Rates of a machine with a GPU."""
    return BatchCosts(machine_profile("t4-xeon8"), work_of(model.spec, model.file.tensors))


@contextmanager
def alone(golden: Golden, device: Device, kv: KVKind = "f16") -> Iterator[Executor]:
    """The same model on one device."""
    limits = replace(LIMITS, kv=kv)
    with (
        open_model(golden.model, limits.n_context) as model,
        Executor(device, device.compile(model.spec, model.file, limits), limits, "golden") as executor,
    ):
        yield executor


def chain(sequence: int, n_cached: int, tokens: Sequence[int]) -> Batch:
    """Tokens that follow one another, with all their logits."""
    order = np.arange(len(tokens), dtype=np.int32)
    return Batch(
        np.array(tokens, np.int32),
        np.full(len(tokens), sequence, np.int32),
        order + np.int32(n_cached),
        order - 1,
        order,
    )


@dataclass(slots=True)
class Journey:
    """A text that a sequence reads in parts; `seen`: the logits that came of it."""

    tokens: NDArray[np.int32]
    parts: tuple[int, ...]
    n_read: int = 0
    under_way: int = 0
    seen: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.n_read + self.under_way >= sum(self.parts)

    def next(self, sequence: int) -> Batch:
        """The next part as a batch."""
        done = np.cumsum((0, *self.parts)).tolist()
        self.under_way = self.parts[done.index(self.n_read)]
        assert self.n_read + self.under_way <= len(self.tokens)
        return chain(sequence, self.n_read, self.tokens[self.n_read : self.n_read + self.under_way].tolist())

    def arrived(self, executor: OverlapExecutor, sequence: int, logits: NDArray[np.float32]) -> None:
        """Keep what was read."""
        assert len(logits) == self.under_way
        self.seen.append(logits.copy())
        executor.commit(sequence, np.arange(self.under_way, dtype=np.int32))
        self.n_read, self.under_way = self.n_read + self.under_way, 0

    def logits(self) -> NDArray[np.float32]:
        return np.concatenate(self.seen)


def travel(executor: OverlapExecutor, journeys: Mapping[int, Journey], most_passes: int = 5000) -> None:
    """Let all sequences read their texts."""
    for _ in range(most_passes):
        idle = [s for s, each in journeys.items() if s not in executor.in_flight and not each.is_over]
        if not idle and not executor.in_flight:
            return
        for sequence, logits in executor.advance([journeys[s].next(s) for s in idle]).items():
            journeys[sequence].arrived(executor, sequence, logits)
    raise AssertionError(f"not done after {most_passes} passes")


def texts(golden: Golden, n_sequences: int, n_tokens: int) -> list[NDArray[np.int32]]:
    """Different texts."""
    return [np.roll(golden.tokens, 11 * number)[:n_tokens] for number in range(n_sequences)]


def assert_as_alone(
    journeys: Mapping[int, Journey], executor: Executor, *, by_row: bool = True, noise: float = NOISE
) -> None:
    """Logits are those of the text read alone: every token's, or all of a text together.

    A runtime that is not batch-invariant differs from itself by more than the noise in single rows.
    """
    for journey in journeys.values():
        sequence, found = executor.create(), journey.logits()
        expected = executor.evaluate(chain(sequence, 0, journey.tokens[: len(found)].tolist()))
        assert distance(found, expected) < noise
        if by_row:
            assert all(distance(row, wanted) < noise for row, wanted in zip(found, expected, strict=True))
        executor.free(sequence)


def pretend_machine(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Pairs of devices are not measured: any accelerator is as fast as a made-up machine's."""
    made_up = machine_profile("t4-xeon8")

    def combined(names: tuple[str, ...], *others: object) -> Profile:
        return replace(made_up, devices=(made_up.cpu, replace(made_up.accelerators[0], name=names[-1])))

    def alone(names: tuple[str, ...], *others: object) -> dict[str, Profile]:
        return {name: made_up if name == CPU else combined((name,)) for name in names}

    monkeypatch.setattr(combination, "combined_profile", combined)
    monkeypatch.setattr(combination, "alone_profiles", alone)
    return made_up
