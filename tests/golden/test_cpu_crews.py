"""The bits of the logits whatever the crew: uneven shares, empty ones, some of the workers, one that is slow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, Crew, DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lane import CpuLane
from edgeinfer.backends.cpu.team import Team
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import Golden, Player

NAMES = ("llama-k", "qwen3-q4_0", "gemma2-k", "phi3-f16")
CREWS = (
    Crew((0, 1, 2), (0, WHOLE // 10, WHOLE // 2, WHOLE)),
    Crew((0, 1, 2), (0, WHOLE * 97 // 100, WHOLE * 98 // 100, WHOLE)),
    Crew((0, 1, 2), (0, 0, 0, WHOLE)),
    Crew((0, 1, 2), (0, 0, WHOLE, WHOLE)),
    Crew((1, 2), (0, WHOLE // 3, WHOLE)),
    Crew((2,), (0, WHOLE)),
    Crew((0,), (0, WHOLE), pinned=False),
)


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice(DeviceOptions(n_workers=3))
    yield opened
    opened.close()


def played(device: CpuDevice, golden: Golden, crews: tuple[Crew, ...]) -> bytes:
    """Logits of a long pass, a tree and tokens one by one, with crews in turn."""
    parts = []
    with Player(device, golden) as player:
        assert isinstance(player.lane, CpuLane)
        turns = iter(range(100))

        def next_crew() -> None:
            player.lane.crew = crews[next(turns) % len(crews)]  # type: ignore[attr-defined]

        next_crew()
        parts.append(player.feed(golden.tokens[:60]))
        next_crew()
        parts.append(player.look(golden.tokens[60:66], [-1, 0, 0, 1, 1, 2]))
        for token in range(60, 68):
            next_crew()
            parts.append(player.feed(golden.tokens[token : token + 1]))
    return np.concatenate(parts).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_crew_changes_no_bit(device: CpuDevice, name: str) -> None:
    golden = Golden.read(name)
    expected = played(device, golden, (Crew.even(3),))
    for crew in CREWS:
        assert played(device, golden, (crew,)) == expected, crew
    assert played(device, golden, CREWS) == expected


def decoded(device: CpuDevice, golden: Golden, options: DeviceOptions, slowness: float) -> tuple[bytes, set[Crew]]:
    """Logits of an executor's prompt and tokens, and the crews that computed them."""
    limits = Limits(golden.n_context, 8)
    tokens = golden.tokens
    with open_model(golden.model, golden.n_context) as model:
        team = Team(2, device.cores, device.library)
        team.slow_down(1, slowness)
        lane = CpuLane(model.spec, model.file, limits, team, device.library, device.isa, no_progress)
        logits, crews = [], set()
        with Executor(device, lane, limits, "golden", options) as executor:
            for _ in range(12):
                sequence = executor.create()
                for start, stop in [(0, 32), *((place, place + 1) for place in range(32, 44))]:
                    logits.append(executor.evaluate(chain(sequence, start, tokens[start:stop])).copy())
                    executor.commit(sequence, np.arange(stop - start, dtype=np.int32))
                    crews.add(lane.crew)
                executor.free(sequence)
    return np.concatenate(logits).tobytes(), crews


def chain(sequence: int, start: int, tokens: NDArray[np.int32]) -> Batch:
    order = np.arange(len(tokens), dtype=np.int32)
    return Batch(tokens, np.full(len(tokens), sequence, np.int32), order + np.int32(start), order - 1, order)


def test_adapting_changes_no_bit() -> None:
    """One worker takes three times as long, so that the shares do change."""
    golden = Golden.read("llama-k")
    device = CpuDevice(DeviceOptions(n_workers=2))
    expected, fixed = decoded(device, golden, DeviceOptions(adapts=False), 1.0)
    adapted, crews = decoded(device, golden, DeviceOptions(), 3.0)
    assert fixed == {Crew.even(2)}
    assert len(crews) > 1
    assert adapted == expected
