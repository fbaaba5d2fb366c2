"""Files whose tensors are joined, as some converters write them, give the bits of those that are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.models.load import open_model
from tests.golden.goldens import Golden, Player

QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
EXPERTS = ("ffn_gate_exps.weight", "ffn_up_exps.weight")


def join(source: Path, path: Path, architecture: str, joined: Mapping[str, tuple[str, ...]]) -> None:
    """Write a file whose tensors of those names are one in each layer, by rows."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    tensors = {each.name: each for each in reader.tensors}
    taken = {name for names in joined.values() for name in names}
    for name, each in tensors.items():
        prefix, _, part = name.rpartition("blk.")[2].partition(".")
        if part not in taken:
            writer.add_tensor(name, np.ascontiguousarray(each.data), raw_dtype=each.tensor_type)
        for whole, names in joined.items():
            if part == names[0]:
                parts = [tensors[f"blk.{prefix}.{other}"].data for other in names]
                data = np.concatenate(parts, axis=-2)
                writer.add_tensor(f"blk.{prefix}.{whole}", data, raw_dtype=each.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "architecture", "joined"),
    [
        ("qwen2-q8_0", "qwen2", {"attn_qkv.weight": QKV}),
        ("llama-bias-q8_0", "llama", {"attn_qkv.weight": QKV}),
        ("qwen3moe-q8_0", "qwen3moe", {"ffn_gate_up_exps.weight": EXPERTS}),
    ],
)
def test_joined_tensors_give_the_same_bits(
    tmp_path: Path, name: str, architecture: str, joined: dict[str, tuple[str, ...]]
) -> None:
    golden, path = Golden.read(name), tmp_path / "joined.gguf"
    join(golden.model, path, architecture, joined)
    found = []
    for file in (golden.model, path):
        with Player(CpuDevice(DeviceOptions(n_workers=2)), replace(golden, model=file)) as player:
            found.append(player.feed(golden.tokens).tobytes())
    assert found[0] == found[1]
    with open_model(path) as model:
        assert set(joined) <= {key.split(".", 2)[2] for key in model.file.tensors if key.startswith("blk.0.")}
    if name != "qwen3moe-q8_0":
        with open_model(path) as model:
            assert "blk.0.attn_q.bias" in model.file.tensors
