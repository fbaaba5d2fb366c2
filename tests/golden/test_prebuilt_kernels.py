"""The kernels that wheels are made of (`all_kernels`) are all that a golden model needs, with every instruction set."""

from __future__ import annotations

from typing import get_args

import pytest

from edgeinfer.backends.cpu.lowering.needs import FILLING, all_kernels, kernels_of
from edgeinfer.jit import targets
from edgeinfer.jit.code import CodeSource
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import DATA, RESULTS

NAMES = sorted({path.stem.partition("@")[0] for path in RESULTS})


@pytest.mark.parametrize("isa", targets.NEEDS)
def test_every_model_finds_its_kernels(isa: str) -> None:
    there = {kernel.name for kernel in all_kernels(isa)}
    assert {kernel.name for kernel in FILLING} <= there
    for name in NAMES:
        with open_model(DATA / f"{name}.gguf") as model:
            for kv in get_args(KVKind):
                needed = kernels_of(model.spec, model.file.tensors, kv, isa)
                assert {kernel.name for kernel in needed} <= there, name


@pytest.mark.parametrize("isa", targets.NEEDS)
def test_every_kernel_can_be_compiled_elsewhere(isa: str) -> None:
    assert all(isinstance(kernel.load, CodeSource) for kernel in all_kernels(isa))
