"""The CPU device on the starter model: as near to float32 as llama.cpp, and the same bits however it is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.models.load import Model, open_model
from scripts.measure_parity import (
    LONGEST,
    PEER,
    Engine,
    LlamaCpp,
    departure_table,
    departures,
    divergence,
    divergence_table,
    first_of_each,
    greedy_answers,
    passages,
)
from tests.golden.goldens import BRANCHING, Golden, Player, distance
from tests.golden.replay import RecordingDevice, Replay
from tests.unit.backends.cpu.kernel_calls import DISTINCT

pytestmark = pytest.mark.model

POSITIONS = 1000
"""Of the ratio of the two divergences a standard deviation is 0.03 then; it is 1.03."""
N_ANSWERS = 10
LARGEST_RATIO = 1.1
LARGEST_GAP = 0.3


@pytest.fixture(scope="module")
def model(starter_model: Path) -> Iterator[Model]:
    with open_model(starter_model, LONGEST) as opened:
        yield opened


@pytest.fixture(scope="module")
def cpu(model: Model) -> Iterator[Engine]:
    engine = Engine(model, CpuDevice(DeviceOptions(n_workers=2)))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(model: Model) -> Iterator[Engine]:
    engine = Engine(model, ReferenceDevice())
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def text(model: Model, cpu: Engine) -> Golden:
    """One passage; there are no expected logits."""
    tokens = np.array(passages(cpu, model, 140)[0], np.int32)
    nothing = np.zeros(0, np.float32)
    return Golden("starter", model.file.path, 256, tokens, tokens[:0], nothing, nothing)


@pytest.mark.peer
def test_divergence_from_float32_is_that_of_llama_cpp(model: Model, cpu: Engine, reference: Engine) -> None:
    pytest.importorskip("llama_cpp", reason="compares with llama-cpp-python, which is not installed")
    texts = passages(cpu, model, POSITIONS)
    with closing(LlamaCpp(model.file.path)) as peer:
        found = divergence(texts, reference, {"edgeinfer cpu": cpu, PEER: peer})
    print(divergence_table(found))
    assert len(found[PEER]) == POSITIONS
    assert found["edgeinfer cpu"].mean() <= LARGEST_RATIO * found[PEER].mean()


def test_greedy_answers_leave_the_reference_only_where_it_hesitates(
    model: Model, cpu: Engine, reference: Engine
) -> None:
    answers = greedy_answers(cpu, model, N_ANSWERS)
    found = departures(answers, reference, {"edgeinfer cpu": cpu})
    print(departure_table(found, answers))
    assert all(each.gap < LARGEST_GAP for each in first_of_each(found["edgeinfer cpu"]))


def test_logits_equal_the_reference_with_the_same_rounding(text: Golden) -> None:
    replay = Replay()
    chunks = np.split(text.tokens[:100], [70, 71])
    with Player(RecordingDevice(CpuDevice(DeviceOptions(n_workers=2)), replay), text) as player:
        logits = np.concatenate([player.feed(chunk) for chunk in chunks])
    with Player(ReferenceDevice("int8", "f16", replay.rounding), text) as player:
        expected = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5


def played(device: Device, text: Golden, cuts: list[int], worker_pool_size: int = 2) -> bytes:
    with Player(device, text) as player:
        player.lane.worker_pool_size = worker_pool_size  # type: ignore[attr-defined]
        return np.concatenate([player.feed(chunk) for chunk in np.split(text.tokens, cuts)]).tobytes()


def test_a_token_has_the_same_bits_alone_in_any_chunk_and_with_any_worker_pool(text: Golden) -> None:
    device = CpuDevice(DeviceOptions(n_workers=3))
    whole = played(device, text, [])
    for cuts, worker_pool_size in (([64], 1), ([1, 4, 12, 21, 37, 70, 102], 3), ([8 * i for i in range(1, 17)], 2)):
        assert played(device, text, cuts, worker_pool_size) == whole
    assert played(device, text, list(range(1, len(text.tokens))), 2) == whole


def test_tree_nodes_have_the_bits_of_their_paths(text: Golden) -> None:
    device = CpuDevice(DeviceOptions(n_workers=2))
    prefix, tokens = text.tokens[:61], text.tokens[61:73]
    with Player(device, text) as player:
        player.feed(prefix)
        tree = player.look(tokens, BRANCHING)
    for node in (5, 9, 11):
        path = [node]
        while BRANCHING[path[-1]] >= 0:
            path.append(BRANCHING[path[-1]])
        with Player(device, text) as player:
            plain = player.feed(np.concatenate([prefix, tokens[path[::-1]]]))
        assert tree[node].tobytes() == plain[-1].tobytes()


def test_any_instruction_set_gives_the_same_bits(text: Golden) -> None:
    results = {played(CpuDevice(DeviceOptions(), isa), text, [40]) for isa in DISTINCT}
    assert len(results) == 1
