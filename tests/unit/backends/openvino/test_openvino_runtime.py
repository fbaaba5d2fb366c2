"""What graphs are compiled with, by what a model is made of and what the processor has."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.models.load import open_model

pytest.importorskip("openvino")
from edgeinfer.backends.openvino.runtime import properties_of

DATA = Path(__file__).parents[3] / "golden" / "data"


def precision(name: str, has_bf16: bool) -> object:
    model = open_model(DATA / f"{name}.gguf")
    limits = Limits(n_context=64, n_pages=4)
    found = properties_of(model.spec, model.file.tensors, limits, DeviceOptions(), "CPU", has_bf16)
    return found.get("INFERENCE_PRECISION_HINT")


def test_files_of_float32_are_computed_in_float32() -> None:
    assert precision("gemma3-f32", has_bf16=False) == "f32"


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "f32"), (False, None)])
def test_gates_too_narrow_for_bfloat16_are_computed_in_float32(has_bf16: bool, expected: str | None) -> None:
    assert precision("gemma3-bf16", has_bf16) == expected


@pytest.mark.parametrize("name", ["gemma3-k", "qwen3-bf16", "qwen3-q8_0"])
def test_other_models_are_left_to_openvino(name: str) -> None:
    assert precision(name, has_bf16=True) is None
