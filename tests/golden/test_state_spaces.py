"""Recurrences in chunks, trees and common passes; the CPU's bits are the same; wrong state spaces are off."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lowering.needs import DEVICE_OPS
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.models.load import open_model
from tests.golden.goldens import BRANCHING, PATHS, Golden, Player, distance
from tests.golden.test_converted import FOLDER, golden

HYBRIDS = ("granitehybrid", "granitehybrid-moe", "falcon-h1", "nemotron-h", "nemotron-h-moe", "nemotron-h-latent")
NAMES = (*HYBRIDS, "mamba2", "mamba", "falcon-mamba", "jamba")
Edit = Callable[[Op], Op | None]


@pytest.fixture(scope="module", params=(*NAMES, "kimi-linear"))
def expected(request: pytest.FixtureRequest) -> Golden:
    return golden(FOLDER / f"{request.param}.npz")


@pytest.fixture(scope="module", params=["reference", "cpu 1", "cpu 2"])
def compiled(request: pytest.FixtureRequest, expected: Golden) -> Iterator[Player]:
    kind, _, workers = request.param.partition(" ")
    device = ReferenceDevice() if kind == "reference" else CpuDevice(DeviceOptions(n_workers=int(workers)))
    with Player(device, expected) as player:
        yield player


@pytest.fixture
def player(compiled: Player) -> Player:
    compiled.begin()
    return compiled


@pytest.fixture
def allowed(request: pytest.FixtureRequest) -> float:
    """The CPU gives the same bits in any batch."""
    return 1e-5 if "reference" in request.node.name else 0.0


def test_chunks_and_single_tokens_are_as_one_pass(player: Player, expected: Golden, allowed: float) -> None:
    whole = player.feed(expected.tokens)
    for places in ([5, 6, 29, 45], range(1, len(expected.tokens))):
        player.begin()
        parts = [player.feed(chunk) for chunk in np.split(expected.tokens, places)]
        assert distance(np.concatenate(parts), whole) <= allowed


def test_a_tree_gives_each_node_its_path(player: Player, expected: Golden, allowed: float) -> None:
    prefix, tokens = expected.tokens[:20], expected.tokens[20:32]
    player.feed(prefix)
    tree = player.look(tokens, BRANCHING)
    assert distance(player.look(tokens, BRANCHING), tree) <= allowed
    for path in PATHS:
        player.begin()
        plain = player.feed(np.concatenate([prefix, tokens[path]]))[len(prefix) :]
        assert all(distance(tree[node], row) <= allowed for node, row in zip(path, plain, strict=True))


def test_sequences_of_one_pass_do_not_see_each_other(player: Player, expected: Golden, allowed: float) -> None:
    first, second = expected.tokens[:30], expected.tokens[30:]
    player.begin(2)
    player.feed(first[:11], 0)
    together = player.feed_together({0: first[11:], 1: second})
    alone = []
    for tokens in (first, second):
        player.begin()
        alone.append(player.feed(tokens))
    assert distance(together, np.concatenate([alone[0][11:], alone[1]])) <= allowed


def test_workers_make_no_difference(expected: Golden) -> None:
    found = []
    for n_workers in (1, 3):
        with Player(CpuDevice(DeviceOptions(n_workers=n_workers)), expected) as player:
            found.append(player.feed(expected.tokens))
    assert np.array_equal(*found)


@pytest.mark.parametrize(("field", "why"), [("head_width", "heads of multiples of 16"), ("state_width", "states of")])
def test_the_cpu_refuses_sizes_that_its_kernels_do_not_have(field: str, why: str) -> None:
    with open_model(FOLDER / "granitehybrid-bf16.gguf") as model:
        op = next(op for op in model.spec.ops() if isinstance(op, StateSpace))
    DEVICE_OPS.check([op])
    with pytest.raises(UnsupportedModel, match=why):
        DEVICE_OPS.check([replace(op, **{field: 24})])


def test_without_attention_no_keys_and_values_are_kept() -> None:
    for name in ("mamba2", "mamba", "falcon-mamba"):
        with open_model(FOLDER / f"{name}-bf16.gguf") as model:
            spec = model.spec
        assert spec.kv == ()
        assert (spec.kv_bytes_per_token(), len(spec.states)) == (0, 2 * spec.n_layers)


@pytest.mark.parametrize("device", ["cuda", "onnx", "openvino"])
def test_devices_without_the_op_refuse_it_by_name(device: str) -> None:
    try:
        ops = importlib.import_module(f"edgeinfer.backends.{device}.ops").DEVICE_OPS
    except ImportError as reason:  # the device's dependencies are not installed
        pytest.skip(str(reason))
    with open_model(FOLDER / "granitehybrid-bf16.gguf") as model:
        op = next(op for op in model.spec.ops() if isinstance(op, StateSpace))
    with pytest.raises(UnsupportedModel, match=f"{device} cannot run the op state_space"):
        ops.check([op])


def without_skip(op: Op) -> Op:
    """Another vector where x is added."""
    return replace(op, skip=op.rate) if isinstance(op, StateSpace) else op


def without_shift(op: Op) -> Op:
    """Another vector where steps are shifted."""
    return replace(op, shift=replace(op.skip)) if isinstance(op, StateSpace) else op


def other_skip(op: Op) -> Op:
    """Another vector where x is added."""
    return replace(op, skip=op.shift) if isinstance(op, StateSpace) else op


def swapped(op: Op) -> Op:
    """b and c in each other's place."""
    return replace(op, apart=op.apart[::-1]) if isinstance(op, StateSpace) and op.apart is not None else op


def without_inner_norms(op: Op) -> Op | None:
    """No norms of b, c and the row that steps are computed from."""
    return None if isinstance(op, RMSNorm) and op.source in ("ssm_b", "ssm_c", "ssm_dt") else op


def without_bias(op: Op) -> Op | None:
    """No bias of convolutions."""
    return None if isinstance(op, AddVector) else op


def without_norm(op: Op) -> Op | None:
    """No norm after the gate."""
    return None if isinstance(op, RMSNorm) and op.source == "ssm" else op


def whole_norm(op: Op) -> Op:
    """All groups normed as one."""
    return replace(op, width=op.width * op.groups, groups=1, own=False) if isinstance(op, RMSNorm) and op.own else op


def other_scale(op: Op) -> Op:
    """Another scale of scores."""
    return replace(op, scale=0.1) if isinstance(op, Attention) else op


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        *((name, mistake) for name in (*HYBRIDS, "mamba2") for mistake in (without_skip, without_shift)),
        *((name, without_bias) for name in NAMES),
        *((name, other_scale) for name in (*HYBRIDS, "jamba")),
        *((name, mistake) for name in ("mamba", "falcon-mamba", "jamba") for mistake in (other_skip, swapped)),
        *((name, without_inner_norms) for name in ("falcon-mamba", "jamba")),
        ("granitehybrid", without_norm),
        ("mamba2", without_norm),
        ("mamba2", whole_norm),
        ("nemotron-h", without_norm),
        ("nemotron-h", whole_norm),
    ],
)
def test_wrong_variants_are_off(name: str, mistake: Edit) -> None:
    right = golden(FOLDER / f"{name}.npz")
    with open_model(right.model, right.n_context) as model:
        spec = model.spec
    stages = tuple(
        replace(stage, ops=tuple(op for op in map(mistake, stage.ops) if op is not None)) for stage in spec.stages
    )
    with Player(ReferenceDevice(), right, replace(spec, stages=stages)) as player:
        assert right.error(player.feed(right.tokens)) > 1e-3
