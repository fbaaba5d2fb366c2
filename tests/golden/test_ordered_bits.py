"""Neurons that lie in another order in the bundle file: the bits of the model in memory, and less to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.backends.cpu.neurons.order import Orders, natural, order_bytes
from edgeinfer.backends.cpu.neurons.watching import watch_firing
from edgeinfer.engine.offload.neurons.order import firing_limits, order_of
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.steps import no_progress
from scripts.sparse_model import SparseShape, write_sparse
from tests.golden.few_neurons import FewNeurons
from tests.golden.goldens import DATA, Golden, Player
from tests.golden.test_sparse_windows import TOKENS, answers
from tests.unit.backends.cpu.neurons.neuron_layers import layers_of

SHAPE = SparseShape(256, 2, 2048, 4, 2, 256, group=32, together=0.9)
N_CONTEXT = 512


@pytest.fixture(scope="module", params=["Q4_0", "Q8_0"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """A model with scattered groups of neurons. What it should say is what it says in memory."""
    path = tmp_path_factory.mktemp("ordered") / f"{request.param}.gguf"
    write_sparse(replace(SHAPE, kind=request.param), DATA / "llama-relu-q4_0.gguf", path)
    nothing = np.zeros(0, np.float32)
    return Golden(path.stem, path, N_CONTEXT, TOKENS, TOKENS, nothing, nothing)


@pytest.fixture
def model(golden: Golden) -> Iterator[Model]:
    with open_model(golden.model, N_CONTEXT) as opened:
        yield opened


def pack(model: Model, path: Path, orders: Orders | None) -> Path:
    args = model.file, contents_of(model.spec, model.file.tensors), fingerprint(model.file)
    table = None if orders is None else order_bytes(orders)
    return pack_bundles(path, *args, kernel_library(), 2, no_progress, table).path


def found_orders(model: Model) -> Orders:
    """Orders from tokens that are not those of the test."""
    tokens = np.random.default_rng(9).integers(0, SHAPE.vocabulary, 400).astype(np.int32)
    fired = watch_firing(
        CpuDevice(DeviceOptions()), model, layers_of(model), firing_limits(N_CONTEXT), tokens, no_progress
    )
    assert all(0.05 < table.mean() < 0.2 for table in fired)
    return tuple(order_of(table) for table in fired)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_bits_do_not_depend_on_where_neurons_lie(golden: Golden, model: Model, share: float, tmp_path: Path) -> None:
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden) as player:
        expected = answers(player)
    draw = np.random.default_rng(3)
    orders = natural(layers_of(model))
    path = pack(model, tmp_path / "it.bundles", tuple(draw.permutation(order).astype(np.int32) for order in orders))
    with Player(FewNeurons(path, share), golden) as player:
        assert isinstance(player.lane, StreamedLane)
        found = answers(player)
        reading = player.lane.reading
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert reading.n_records_read > 0


def test_what_fires_is_seen_alike_in_memory_and_from_disk(golden: Golden, model: Model, tmp_path: Path) -> None:
    layers, limits = layers_of(model), firing_limits(N_CONTEXT)
    tokens = TOKENS[:100]
    whole = watch_firing(CpuDevice(DeviceOptions()), model, layers, limits, tokens, no_progress)
    path = pack(model, tmp_path / "it.bundles", None)
    held = FewNeurons(path, 0.4).limits(model.spec, model.file, limits)
    streamed = watch_firing(CpuDevice(DeviceOptions()), model, layers, held, tokens, no_progress)
    for one, other in zip(whole, streamed, strict=True):
        assert not np.any(one & ~other)
        assert np.count_nonzero(other & ~one) < 1e-3 * one.size  # of which the other factor is zero


def test_a_found_order_reads_less_for_unseen_tokens(golden: Golden, model: Model, tmp_path: Path) -> None:
    orders = found_orders(model)
    n_bytes, wanted = list[int](), list[int]()
    for number, each in enumerate((None, orders)):
        path = pack(model, tmp_path / f"{number}.bundles", each)
        with Player(FewNeurons(path, 0.05), golden) as player:
            assert isinstance(player.lane, StreamedLane)
            player.feed(TOKENS[:100])  # all runs are checked now
            before = player.lane.reading
            for place in range(100, 120):
                player.feed(TOKENS[place : place + 1])
            after = player.lane.reading
        wanted.append(after.n_wanted - before.n_wanted)
        n_bytes.append(after.record_read_bytes - before.record_read_bytes)
    assert wanted[0] == wanted[1] > 0
    assert n_bytes[1] < 0.6 * n_bytes[0]
