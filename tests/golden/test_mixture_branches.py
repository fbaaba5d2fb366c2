"""Mixtures that give their sum in a buffer of its own, which is added afterwards, give the logits of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.zero import Zero
from edgeinfer.models.load import open_model
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from tests.golden.goldens import Golden, Player

NAMES = ("mixtral-f16", "qwen2moe-f32", "gpt-oss-f32", "glm4moe-f32")
"""No expert for all tokens, one with a score, biases, one that is whole."""
TOLERANCES = {"reference": 1e-5, "cpu": 2e-3}


def add_apart(mixture: Mixture, g: ModelGraph, scale: float = 1.0) -> None:
    """`Mixture.add` by way of a branch."""
    assert scale == 1.0
    mixture.branch(g)
    g.add(Add("branch", "x", g.sizes.width))


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mixture, "add", add_apart)
        yield Golden.read(request.param)


@pytest.mark.parametrize("device", TOLERANCES)
def test_a_branch_that_is_added_afterwards(golden: Golden, device: str) -> None:
    with open_model(golden.model, golden.n_context) as model:
        assert sum(isinstance(op, Zero) for op in model.spec.ops()) >= model.spec.n_layers - 1
    opened = ReferenceDevice() if device == "reference" else CpuDevice(DeviceOptions(n_workers=2))
    with Player(opened, golden) as player:
        found = [player.feed(part) for part in np.split(golden.tokens, [40, 41, 45])]
        assert golden.error(np.concatenate(found)) < TOLERANCES[device]
