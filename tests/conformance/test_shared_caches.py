"""Layers that attend to the keys and values of an earlier layer: on every device, beside layers that keep them again.

A model is changed so that its last layer has queries alone. Once it reads the cache of the first layer; once it stores
the same rows, which are still in their buffers, in a cache of its own. Both must say the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import DEVICES, Device, Limits
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.overlap.parts import parts_of
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.blocks import attention
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import open_model
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.settings import KVKind
from tests.golden.goldens import BRANCHING, PAGES, Golden, Player, distance, fed

NAMES = ("llama-q8_0", "mistral-window-q8_0", "minicpm3-q8_0")
OF_KEYS = {"key", "value", "latent_key", "rotated_key", "plain_key"}


def changed(spec: ModelSpec, *, shares: bool) -> ModelSpec:
    """The model with keys and values made by its first layer alone; its last layer shares the cache or has its own."""
    *before, last, head = spec.stages
    ops: list[Op] = []
    for op in last.ops:
        if isinstance(op, Attention):
            ops.append(replace(op, layer=0) if shares else op)
        elif not (op.writes & OF_KEYS or (shares and isinstance(op, StoreKV))):
            ops.append(op)
    kv = spec.kv[:1] if shares else spec.kv
    return replace(spec, stages=(*before, replace(last, ops=tuple(ops)), head), kv=kv)


def spec_of(golden: Golden, *, shares: bool) -> ModelSpec:
    with open_model(golden.model, golden.n_context) as model:
        return changed(model.spec, shares=shares)


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture(params=["f16", "q8"])
def kv(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def test_a_shared_cache_is_as_good_as_a_copy(computing: Device, golden: Golden, kv: KVKind) -> None:
    shared, copied = (
        fed(computing, golden, spec_of(golden, shares=shares), [10, 11, 40], kv) for shares in (True, False)
    )
    if computing.batch_invariant:
        assert shared.tobytes() == copied.tobytes()
    rounds = computing.name in ("onnx", "openvino")
    assert distance(shared, copied) < (2e-2 if rounds else 1e-6)
    with open_model(golden.model, golden.n_context) as model:
        assert distance(shared, fed(computing, golden, model.spec, [10, 11, 40], kv)) > 0.05


def test_chunks_and_trees_are_read_as_the_text_is(computing: Device, golden: Golden, kv: KVKind) -> None:
    spec = spec_of(golden, shares=True)
    whole, parts = (fed(computing, golden, spec, cuts, kv) for cuts in ([], [1, 4, 13, 50]))
    if computing.batch_invariant:
        assert whole.tobytes() == parts.tobytes()
    assert distance(whole, parts) < 0.05
    with Player(computing, golden, spec, kv=kv) as player:
        player.feed(golden.tokens[:60])
        tree = player.look(golden.tokens[60:72], BRANCHING)
    with Player(computing, golden, spec, kv=kv) as player:
        path = player.feed(np.concatenate([golden.tokens[:60], golden.tokens[[60, 61, 62, 65]]]))[-1]
    if computing.batch_invariant:
        assert tree[5].tobytes() == path.tobytes()
    assert distance(tree[5], path) < 0.05


def test_devices_agree(computing: Device, golden: Golden, kv: KVKind) -> None:
    spec = spec_of(golden, shares=True)
    expected = fed(ReferenceDevice(), golden, spec, [], kv)
    assert distance(fed(computing, golden, spec, [10, 11, 40], kv), expected) < 0.1


def test_pages_of_a_shared_cache_are_kept_once(computing: Device, golden: Golden) -> None:
    spec, limits = spec_of(golden, shares=True), Limits(golden.n_context, PAGES, 256, 256)
    with open_model(golden.model, golden.n_context) as model:
        footprint, tensors = DEVICES.get(computing.name).footprint, model.file.tensors
        once, twice = (footprint(each, tensors, limits).kv_bytes for each in (spec, model.spec))
        if computing.name == "openvino":  # several layers read float32
            twice *= 2
        assert once * len(model.spec.kv) == twice
        assert work_of(spec, tensors).kv_bytes_per_token() == spec.kv_bytes_per_token()
        assert spec.kv_bytes_per_token() * len(model.spec.kv) == model.spec.kv_bytes_per_token()
    pages = np.arange(PAGES, dtype=np.int32)
    with Player(computing, golden, spec) as first, Player(computing, golden, spec) as second:
        first.feed(golden.tokens[:60])
        second.feed(golden.tokens[:60][::-1].copy())
        second.lane.write_pages(pages, first.lane.read_pages(pages))
        rest = [player.feed(golden.tokens[60:]) for player in (first, second)]
    assert distance(rest[1], rest[0]) < 1e-3


def test_several_devices_do_not_share_such_a_model(golden: Golden) -> None:
    spec = spec_of(golden, shares=True)
    assert spec.why_whole == "has layers that attend to the keys and values of others"
    assert spec_of(golden, shares=False).why_whole is None
    with pytest.raises(UnsupportedModel, match=r"blk\.1 attends to keys and values of another layer"):
        parts_of(spec)


def test_a_layer_shares_what_reaches_as_far_as_it_does() -> None:
    golden = Golden.read("mistral-window-q8_0")
    with open_model(golden.model, golden.n_context) as model:
        hp = Hyperparameters(model.file.metadata, model.file.tensors, golden.n_context)
        for window, message in (
            (8, ""),
            (9, "reaches 9 positions .* keeps 8"),
            (None, "reaches all positions .* keeps 8"),
        ):
            g = ModelGraph(hp, Sizes.read(hp))
            g.buffer("normed", g.sizes.width)
            g.stage("blk.0")
            kept = attention(g, None, window=8)
            g.stage("blk.1")
            if message:
                with pytest.raises(BadGGUF, match=message):
                    attention(g, None, window=window, shared=kept)
            else:
                assert attention(g, None, window=window, shared=kept) == kept
                ops = g.spec("attended").stages[1].ops
                assert [op.kind for op in ops] == ["matmul", "attention", "matmul"]
