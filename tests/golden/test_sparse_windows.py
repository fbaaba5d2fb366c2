"""Layers of single neurons from a bundle file, with windows of a few of them: the bits of the model in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.backends.cpu.neurons.reading import NeuronReading
from edgeinfer.errors import DeviceFailed
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.neurons.window import NeuronWindow
from scripts.sparse_model import SparseShape, write_sparse
from tests.golden.few_neurons import FewNeurons
from tests.golden.goldens import BRANCHING, DATA, Golden, Player

N_CONTEXT = 512
SHAPE = SparseShape(128, 2, 1088, 4, 2, 256)
KINDS = ("Q4_0", "Q4_1", "Q8_0")
TOKENS = np.random.default_rng(4).integers(0, SHAPE.vocabulary, 140).astype(np.int32)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """A model with many neurons. What it should say is what it says in memory: no golden has so many."""
    path = tmp_path_factory.mktemp("sparse") / f"{request.param}.gguf"
    write_sparse(replace(SHAPE, kind=request.param), DATA / "llama-relu-q4_0.gguf", path)
    nothing = np.zeros(0, np.float32)
    return Golden(path.stem, path, N_CONTEXT, TOKENS, TOKENS, nothing, nothing)


@pytest.fixture(scope="module")
def expected(model: Golden) -> list[np.ndarray]:
    with Player(CpuDevice(DeviceOptions(n_workers=2)), model) as player:
        return answers(player)


def answers(player: Player) -> list[np.ndarray]:
    """Logits of tokens one by one, of a prompt long enough for whole tiles, of a few tokens, and of a tree."""
    found = [player.feed(TOKENS[place : place + 1]) for place in range(8)]
    found += [player.feed(TOKENS[8:100]), player.feed(TOKENS[100:103])]
    found += [player.feed(TOKENS[place : place + 1]) for place in range(103, 106)]
    found.append(player.look(TOKENS[106:118], BRANCHING))
    return found


@contextmanager
def streamed(model: Golden, share: float, n_workers: int = 2) -> Iterator[tuple[Player, StreamedLane]]:
    device = FewNeurons(model.model.with_suffix(".bundles"), share, n_workers)
    with Player(device, model) as player:
        assert isinstance(player.lane, StreamedLane)
        yield player, player.lane


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_bits_do_not_depend_on_the_window(model: Golden, expected: list[np.ndarray], share: float) -> None:
    with streamed(model, share) as (player, lane):
        found = answers(player)
        reading = lane.reading
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    all_neurons = SHAPE.layers * SHAPE.ffn
    if share == 1.0:
        assert reading.n_records_read <= all_neurons
    else:
        assert reading.n_records_read > all_neurons  # some more than once
    assert reading.n_wanted == reading.n_found + reading.n_records_read


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bits_of_few_neurons_do_not_depend_on_workers(
    model: Golden, expected: list[np.ndarray], n_workers: int
) -> None:
    with streamed(model, 0.05, n_workers) as (player, _):
        found = answers(player)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_bits_stay_when_room_for_neurons_is_given_back(model: Golden, expected: list[np.ndarray]) -> None:
    with streamed(model, 0.6) as (player, lane):
        for wanted in (1 << 16, 1 << 17, 1 << 40):
            player.begin()
            player.feed(TOKENS[:100])
            assert lane.shrink(wanted) > 0
            player.begin()
            found = answers(player)
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
        assert lane.shrink(1 << 40) == 0


def test_single_tokens_read_what_fires_and_what_stays_is_found(model: Golden) -> None:
    with streamed(model, 0.5) as (player, lane):
        player.feed(TOKENS[:100])  # all runs are checked now
        before = lane.reading
        for place in range(100, 110):
            player.feed(TOKENS[place : place + 1])
        after = lane.reading
    dense = after.record_dense_bytes - before.record_dense_bytes
    fired = after.record_pass_bytes - before.record_pass_bytes
    assert after.record_token_bytes - before.record_token_bytes == fired  # of one token at a time
    assert 0.05 < fired / dense < 0.2
    assert 0 < after.n_found - before.n_found < after.n_wanted - before.n_wanted
    assert after.record_read_bytes - before.record_read_bytes < 0.7 * dense


def neurons_of(lane: StreamedLane) -> NeuronWindow:
    """The neurons that a lane has in memory."""
    assert isinstance(lane._records, NeuronReading)
    return lane._records._window


def test_a_read_error_breaks_the_pass_off_and_the_next_is_right(model: Golden, expected: list[np.ndarray]) -> None:
    with streamed(model, 0.05) as (player, lane):
        source, failed = neurons_of(lane)._source, 0
        read, read_records = source.read, source.read_records

        def fail(*_: object) -> None:
            raise DeviceFailed("the disk does not answer")

        def fail_for_neurons(bundle: Bundle, into: memoryview) -> None:
            fail() if not bundle.is_dense else read(bundle, into)

        for name, faulty in (("read", fail_for_neurons), ("read_records", fail)):
            if name == "read_records":
                player.feed(TOKENS[:100])
                player._cached[0] = 0
            setattr(source, name, faulty)
            with pytest.raises(DeviceFailed, match="does not answer"):
                answers(player)
            failed += 1
            player._cached[0] = 0
            source.read, source.read_records = read, read_records  # type: ignore[method-assign]
        found = answers(player)
    assert failed == 2
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_pass_may_be_broken_off_between_layers(model: Golden, expected: list[np.ndarray]) -> None:
    with streamed(model, 0.05) as (player, lane):
        window = neurons_of(lane)
        have, calls = window.have, 0

        def interrupted(layer: int, neurons: np.ndarray) -> np.ndarray:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise KeyboardInterrupt
            return have(layer, neurons)

        window.have = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            player.feed(TOKENS[:100])
        window.have = have  # type: ignore[method-assign]
        found = answers(player)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
