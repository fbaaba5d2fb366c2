"""Sequences on both sides, by each schedule: every token's logits are those of the model on one device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgeinfer.backends.base import USUAL_KV, Device
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.scheduling.batch.schedules import SCHEDULES
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden, distance
from tests.unit.engine.overlap.journeys import (
    EACH,
    NEARLY,
    Journey,
    accelerator,
    alone,
    assert_as_alone,
    chain,
    cpu,
    overlapping,
    texts,
    travel,
)

FAMILIES = ("llama-k", "qwen2-q4_0", "gemma2-q8_0", "gemma3-q8_0", "phi3-f16", "mistral-window-q8_0", "qwen3-q8_0")
PLAIN = ("llama-f32", "gemma2-f32", "gemma3-f32", "phi3-f32", "qwen2-f32")
EVERY = (*SCHEDULES, "auto")
PARTS = ((9, 1, 1, 7, 1, 1, 20, 1), (30, 1, 1, 1, 1, 1), (1,) * 12, (40, 1), (2, 3, 1, 1))
GRAPHS = ("openvino", "onnx")


def opened(name: str) -> Device:
    try:
        return accelerator(name)
    except DeviceUnavailable as reason:
        pytest.skip(f"{name}: {reason}")


def journeys(executor: OverlapExecutor, golden: Golden) -> dict[int, Journey]:
    """A journey for each of PARTS; the first ones are resident."""
    return {
        executor.create(EACH): Journey(text, parts)
        for text, parts in zip(texts(golden, len(PARTS), 60), PARTS, strict=True)
    }


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_each_sequence_alone(name: str, schedule: str) -> None:
    golden = Golden.read(name)
    with overlapping(golden, accelerator("reference"), schedule) as executor, alone(golden, cpu()) as single:
        found = journeys(executor, golden)
        assert [executor.is_resident(sequence) for sequence in found] == [True, True, False, False, False]
        travel(executor, found)
        assert_as_alone(found, single)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", PLAIN)
def test_where_nothing_is_quantised_logits_are_nearly_the_same(name: str, schedule: str) -> None:
    golden = Golden.read(name)
    with overlapping(golden, accelerator("reference"), schedule) as executor, alone(golden, cpu()) as single:
        found = journeys(executor, golden)
        travel(executor, found)
        assert_as_alone(found, single, noise=NEARLY)


@pytest.mark.parametrize("kv", USUAL_KV)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("key", GRAPHS)
def test_graph_runtimes_give_what_transformers_gives(key: str, schedule: str, kv: KVKind) -> None:
    """Half of the sequences on a runtime's own processor; judged by what transformers computes for the same tokens."""
    golden, device = Golden.read("llama-q8_0"), opened(key)
    with overlapping(golden, device, schedule, kv=kv) as executor:
        parts = ((50, 1, 1, 18), (20, 30, 1, 1, 18), (1, 1, 40, 28), (64, 6))
        found = {executor.create(EACH): Journey(golden.tokens[:70], each) for each in parts}
        travel(executor, found)
        for journey in found.values():
            assert distance(journey.logits()[:, golden.columns], golden.logits[:70]) < 0.1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["qwen2-q4_0", "gemma2-q8_0", "phi3-f16"])
def test_families_on_a_graph_runtime(name: str, schedule: str) -> None:
    """The runtime rounds in its own way, so it is compared with itself."""
    golden = Golden.read(name)
    with overlapping(golden, opened("openvino"), schedule) as executor, alone(golden, opened("openvino")) as single:
        found = journeys(executor, golden)
        travel(executor, found)
        assert_as_alone(found, single, by_row=False)


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("n_resident", [0, 5])
def test_all_may_be_on_one_side(n_resident: int, schedule: str) -> None:
    golden = Golden.read("llama-q8_0")
    device = accelerator("reference")
    with overlapping(golden, device, schedule, n_resident=n_resident) as executor, alone(golden, cpu()) as single:
        found = journeys(executor, golden)
        assert sum(map(executor.is_resident, found)) == n_resident
        travel(executor, found)
        assert_as_alone(found, single)


@pytest.mark.parametrize("schedule", EVERY)
def test_greedy_texts_are_equal(schedule: str) -> None:
    """The highest logit is the same one, unless the second is as close as the noise."""
    golden = Golden.read("llama-q8_0")
    with overlapping(golden, accelerator("reference"), schedule) as executor, alone(golden, cpu()) as single:
        prompts = texts(golden, 4, 20)
        found = {executor.create(EACH): Journey(prompt, (20,)) for prompt in prompts}
        for _ in range(12):
            travel(executor, found)
            for journey in found.values():
                journey.tokens = np.append(journey.tokens, np.int32(journey.seen[-1][-1].argmax()))
                journey.parts = (*journey.parts, 1)
        for journey in found.values():
            sequence = single.create()
            logits = single.evaluate(chain(sequence, 0, journey.tokens[:31].tolist()))[19:]
            for row, token in zip(logits, journey.tokens[20:], strict=True):
                assert row.max() - row[token] <= 2e-2 * row.std()


def test_schedules_may_change_while_batches_are_under_way() -> None:
    golden = Golden.read("llama-q8_0")
    with overlapping(golden, accelerator("reference"), "overlap") as executor, alone(golden, cpu()) as single:
        found = journeys(executor, golden)
        for schedule in itertools.cycle(("overlap", "accelerator-only", "overlap", "overlap", "asymmetric")):
            executor.use(schedule)
            idle = [s for s, each in found.items() if s not in executor.in_flight and not each.is_over]
            if not idle and not executor.in_flight:
                break
            for sequence, logits in executor.advance([found[s].next(s) for s in idle]).items():
                found[sequence].arrived(executor, sequence, logits)
        assert_as_alone(found, single)
        assert set(executor.tallies) == set(SCHEDULES)
