"""Odd but valid metadata: other types of numbers and arrays give the same model, or a message that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Kind

from edgeinfer.errors import BadGGUF
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA

SOURCE = DATA / "llama-q8_0.gguf"
Value = tuple[Any, Kind, Kind | None]
N_LAYERS = 2


def with_value(out: Path, key: str, value: Value) -> Path:
    """The golden model with another value of a key, or with a key more."""
    reader, writer = gguf.GGUFReader(SOURCE), gguf.GGUFWriter(out, "llama")
    if key not in reader.fields:
        writer.add_key_value(key, *value)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == Kind.ARRAY else None
        writer.add_key_value(name, *(value if name == key else (field.contents(), field.types[0], element)))
    for tensor in reader.tensors:
        shape = None if tensor.tensor_type in (0, 1) else tensor.data.shape
        writer.add_tensor(tensor.name, tensor.data, raw_shape=shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def said(key: str) -> Any:
    """What the golden model says."""
    return gguf.GGUFReader(SOURCE).fields[f"llama.{key}"].contents()


@pytest.mark.parametrize("kind", [Kind.UINT8, Kind.INT16, Kind.INT32, Kind.UINT64, Kind.INT64])
@pytest.mark.parametrize("key", ["block_count", "attention.head_count", "embedding_length"])
def test_whole_numbers_of_any_width(tmp_path: Path, key: str, kind: Kind) -> None:
    with open_model(with_value(tmp_path / "m.gguf", f"llama.{key}", (said(key), kind, None))) as model:
        assert model.spec.n_layers == N_LAYERS


@pytest.mark.parametrize("element", [Kind.UINT8, Kind.INT32, Kind.UINT64, Kind.INT64])
@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_a_number_for_each_layer(tmp_path: Path, key: str, element: Kind) -> None:
    value = [said(key)] * N_LAYERS, Kind.ARRAY, element
    with open_model(with_value(tmp_path / "m.gguf", f"llama.{key}", value)) as model, open_model(SOURCE) as usual:
        assert model.spec == usual.spec


HARMLESS: dict[str, Value] = {
    "llama.attention.layer_norm_rms_epsilon": (1e-5, Kind.FLOAT64, None),
    "llama.rope.freq_base": (10000, Kind.UINT32, None),
    "split.count": (1, Kind.UINT64, None),
    "general.version": (3, Kind.UINT32, None),
    "general.file_type": ("7", Kind.STRING, None),
    "general.sampling.temp": ("warm", Kind.STRING, None),
    "somebodys.nested": ([[1, 2], [3]], Kind.ARRAY, Kind.ARRAY),
    "llama.attention.sliding_window_pattern": ([True, False], Kind.ARRAY, Kind.BOOL),
    "llama.expert_count": (0, Kind.UINT32, None),
}


@pytest.mark.parametrize("key", HARMLESS)
def test_other_types_that_mean_the_same_or_nothing(tmp_path: Path, key: str) -> None:
    with open_model(with_value(tmp_path / "m.gguf", key, HARMLESS[key])) as model:
        assert model.spec.n_layers == N_LAYERS


WRONG: dict[str, Value] = {
    "llama.block_count": (2.0, Kind.FLOAT32, None),
    "llama.context_length": ("64", Kind.STRING, None),
    "llama.attention.head_count_kv": ([2.0, 2.0], Kind.ARRAY, Kind.FLOAT32),
    "llama.attention.head_count": ([True, True], Kind.ARRAY, Kind.BOOL),
    "llama.feed_forward_length": ([64], Kind.ARRAY, Kind.UINT32),
    "llama.attention.causal": (1, Kind.UINT32, None),
    "split.no": ("0", Kind.STRING, None),
    "general.type": (1, Kind.UINT32, None),
}


@pytest.mark.parametrize("key", WRONG)
def test_what_means_nothing_is_refused_by_its_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadGGUF, match=key.replace(".", r"\.")):
        open_model(with_value(tmp_path / "m.gguf", key, WRONG[key]))
