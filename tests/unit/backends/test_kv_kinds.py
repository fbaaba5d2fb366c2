"""Which KV caches devices can have: the rest is refused by name, for a plan as for a model."""

from __future__ import annotations

from typing import get_args

import pytest

from edgeinfer.backends.base import DEVICES, require_kv
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.opening import device_choice
from edgeinfer.errors import BadSetting
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden

EVERY = ("cpu", "reference", "llamacpp")


@pytest.mark.parametrize("kv", get_args(KVKind))
def test_devices_have_the_caches_they_name(kv: KVKind) -> None:
    for name, kind in DEVICES.entries().items():
        assert set(kind.kv_kinds) == set(get_args(KVKind) if name in EVERY else ("f16", "q8"))
    require_kv(",".join(EVERY), kv)


def test_one_of_several_devices_is_refused_with_what_works() -> None:
    with pytest.raises(BadSetting, match="the device openvino has no q4 cache: use --kv f16 or q8, or --device cpu"):
        require_kv("cpu,openvino", "q4")
    golden = Golden.read("llama-q8_0")
    with open_model(golden.model, golden.n_context) as model:
        limits = limits_for(golden.n_context, kv="q8q4", spec=model.spec)
        with pytest.raises(BadSetting, match="the device cuda has no q8q4 cache"):
            memory_need("cuda", model.spec, model.file.tensors, limits)


def test_a_plan_counts_the_bytes_of_the_cache() -> None:
    golden = Golden.read("phi3-f16")
    with open_model(golden.model, golden.n_context) as model:
        widths = [(layer.kv_heads, layer.key_width, layer.value_width) for layer in model.spec.kv]
        numbers = sum(heads * (padded(key, 32) + padded(value, 32)) for heads, key, value in widths)
        for kv in ("q8", "q8q4", "q4"):
            limits = limits_for(golden.n_context, kv=kv, spec=model.spec)
            need = memory_need("cpu", model.spec, model.file.tensors, limits)
            assert need.kv_bytes_per_token == numbers * KV_ELEMENT_BYTES[kv]


def test_auto_compares_only_devices_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "_installed", lambda: ["onnx:1", "openvino:1"])
    assert device_choice.entrant_kinds("q8") == ("cpu", "onnx", "openvino")
    assert device_choice.entrant_kinds("q4") == ("cpu",)


def test_the_earlier_spelling_is_read() -> None:
    assert LoadOptions(kv="int8").kv == "q8"  # type: ignore[arg-type]
