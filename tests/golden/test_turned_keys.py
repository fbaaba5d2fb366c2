"""Cached keys turned to other positions are those of the same text there, on every golden model whose keys can move.

The oracle is the reference device: a text with nothing before it has the same values wherever it stands, and its keys
differ by the rotation alone, in all layers.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice, ReferenceLane
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.key_turns import KeyTurn, key_turns
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import PAGES, RESULTS, Golden, Player, distance

Floats = NDArray[np.float32]
NAMES = [path.stem for path in RESULTS if "@" not in path.stem]
FAMILIES = ("llama-q8_0", "qwen3-k", "minicpm3-q8_0", "deepseek2-q8_0", "gemma3-q8_0", "cohere2-q8_0", "llama4-q8_0")
N_TOKENS, DISTANCE = 40, 64


def refusal(name: str) -> str | None:
    """Why keys of a golden model cannot move."""
    with open_model(Golden.read(name).model, None) as model:
        try:
            key_turns(model.spec)
        except UnsupportedModel as reason:
            return str(reason)
    return None


def counts_positions(spec: ModelSpec) -> bool:
    """Whether tokens see more, or ask louder, by the position itself, so that only the first layer is the same."""
    if any(isinstance(op, Attention) and op.chunked for op in spec.ops()):
        return True
    return any(isinstance(op, Rope) and op.table.growth != 0 for op in spec.ops())


def read_at(lane: ReferenceLane, tokens: NDArray[np.int32], first: int, page: int) -> NDArray[np.int32]:
    """Read a text with nothing before it, from position `first` on, into a page; returns the slots."""
    order = np.arange(len(tokens), dtype=np.int32)
    batch = Batch(tokens, np.zeros_like(order), first + order, order - 1, order[-1:])
    slots = page * PAGE + order
    lane.run(Step(batch, np.zeros_like(order), slots, np.zeros_like(order), np.full((1, PAGES), page, np.int32)))
    return slots


@pytest.mark.parametrize("name", NAMES)
def test_turned_keys_are_those_of_the_text_at_the_other_position(name: str) -> None:
    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        limits = Limits(golden.n_context, PAGES, 256, 256)
        lane = ReferenceDevice().compile(model.spec, model.file, limits)
        if refusal(name) is not None:
            assert lane.capabilities.turning is None
            return
        turns = key_turns(model.spec)
        slots = read_at(lane, golden.tokens[:N_TOKENS], 0, 3)
        there = read_at(lane, golden.tokens[:N_TOKENS], DISTANCE, 5)
        turned, turner = slots + 4 * PAGE, lane.capabilities.turning
        assert turner is not None
        turner.turn_slots(slots, turned, DISTANCE)
        for layer, turn in enumerate(turns[:1] if counts_positions(model.spec) else turns):
            keys, values = lane.keys[layer], lane.cached_values[layer]
            assert distance(values[turned], values[there]) < 1e-4
            assert distance(keys[turned], keys[there]) < 1e-4
            if turn.table is not None and turn.table.scaling != "still":
                assert distance(keys[slots], keys[there]) > 1e-3
        lane.close()


def test_what_cannot_be_turned_is_refused_by_name() -> None:
    """Learned positions, states, keys that are normed after the rotation."""
    found = {name: refusal(name) for name in NAMES}
    refused = {name.split("-")[0] for name, reason in found.items() if reason is not None}
    assert {"opt", "lfm2", "qwen35"} <= refused
    assert {"llama", "qwen3", "gemma3", "minicpm3", "deepseek2", "cohere2", "gpt", "llama4"}.isdisjoint(refused)
    assert "position_embed" in str(found["opt-q8_0"])
    assert "states" in str(found["lfm2-q8_0"])


@pytest.mark.parametrize("kv", ["f16", "q8", "q4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_cpu_goes_on_from_turned_keys_as_the_reference_does(name: str, kv: KVKind) -> None:
    golden, n_read, n_moved = Golden.read(name), 60, 37
    found: dict[str, list[Floats]] = {}
    for device in (CpuDevice(DeviceOptions(n_workers=2)), ReferenceDevice("int8", kv)):
        with Player(device, golden, kv=kv) as player:
            player.feed(golden.tokens[:n_read])
            places = np.arange(9, 9 + n_moved)
            sources = np.array([player._slot(0, place) for place in places], np.int32)
            targets = np.array([player._slot(0, n_read + number) for number in range(n_moved)], np.int32)
            turner = player.lane.capabilities.turning
            assert turner is not None
            player._cached[0] += n_moved
            logits = []
            for by in (n_read - 9, 0):
                turner.turn_slots(sources, targets, by)
                logits.append(player.look(golden.tokens[n_read : n_read + 8], list(range(-1, 7))))
            found[device.name] = logits
        device.close()
    turned, copied = found["cpu"]
    assert distance(turned, found["reference"][0]) < 0.05
    assert distance(copied, turned) > 0.05


def test_a_layer_without_rotation_keeps_its_keys() -> None:
    with open_model(Golden.read("llama4-q8_0").model, None) as model:
        assert KeyTurn() in key_turns(model.spec)
