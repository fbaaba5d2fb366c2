"""Kernels compiled while the starter model is downloaded are exactly those that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu import device as device_module
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lowering.needs import kernels_of, usual_kernels
from edgeinfer.engine.opening.evaluator import compile_ahead
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.store import STARTER_TYPES
from tests.golden.goldens import Golden


@pytest.mark.model
def test_the_starter_needs_nothing_else(starter_model: Path) -> None:
    subject, isa = open_subject(starter_model, LoadOptions(device="cpu", n_context=512)), CpuDevice(DeviceOptions()).isa
    assert subject.spec is not None
    needed = kernels_of(subject.spec, subject.file.tensors, "f16", isa)
    usual = {each.name for each in usual_kernels("f16", isa, STARTER_TYPES)}
    assert usual >= {each.name for each in needed}
    assert {name for name in usual - {each.name for each in needed} if not name.endswith("-amx")} == set()


def test_nor_does_a_llama_of_other_types() -> None:
    golden = Golden.read("llama-q8_0")
    subject = open_subject(golden.model, LoadOptions(device="cpu", n_context=golden.n_context))
    isa = CpuDevice(DeviceOptions()).isa
    assert subject.spec is not None
    needed = kernels_of(subject.spec, subject.file.tensors, "q8", isa)
    assert {each.name for each in usual_kernels("q8", isa, (8,))} == {each.name for each in needed}


def test_it_is_in_the_cache_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    library = KernelLibrary(tmp_path)
    monkeypatch.setattr(library, "prepare", lambda wanted, *given: asked.extend(each.name for each in wanted))
    monkeypatch.setattr(device_module, "kernel_library", lambda: library)
    compile_ahead("f16", STARTER_TYPES).join()
    assert any(name.startswith("attend_by_tile-f16") for name in asked)
    assert len(asked) == len(set(asked))
