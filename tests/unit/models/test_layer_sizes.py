"""Sizes that differ by layer: arrays of a header, ops of those sizes, and buffers of one size each."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import BufferLayout
from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import spec_of
from tests.unit.models.headers import keyed, llama_tensors, sizes, tensor

ARRAYS = {
    "attention__head_count": [4, 2],
    "attention__head_count_kv": [2, 1],
    "attention__key_length": 8,
    "attention__value_length": 8,
    "feed_forward_length": [48, 40],
    "attention__sliding_window": [0, 16],
}


def growing_tensors() -> dict[str, TensorInfo]:
    """The tensor table of a llama whose second layer is smaller."""
    smaller = llama_tensors(query=16, kv=8, ffn=40)
    return llama_tensors() | {name: info for name, info in smaller.items() if name.startswith("blk.1.")}


def test_arrays_give_each_layer_its_sizes(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "llama", sizes(**ARRAYS)), growing_tensors())
    attending = [op for op in spec.ops() if isinstance(op, Attention)]
    assert [(op.heads, op.kv_heads, op.window) for op in attending] == [(4, 2, None), (2, 1, 16)]
    assert [op.width for op in spec.ops() if isinstance(op, GatedAct)] == [48, 40]
    assert spec.kv == (PagedKV(2, 8, 8), PagedKV(1, 8, 8, 16))
    assert (spec.heads, spec.kv_heads, spec.ffn_width) == (4, 2, 48)


def test_buffers_of_another_size_have_names_of_their_own(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "llama", sizes(**ARRAYS)), growing_tensors())
    widths = {buffer.name: buffer.width for buffer in spec.buffers}
    first, second = (op.query for op in spec.ops() if isinstance(op, Attention))
    assert (first, widths[first], widths[second]) == ("query", 32, 16)
    one_size = spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors())
    assert len(spec.buffers) == len(one_size.buffers) + 7


def test_buffers_of_another_size_take_no_memory_of_their_own(tmp_path: Path) -> None:
    heads = {"attention__head_count_kv": 2, "attention__key_length": 64, "attention__value_length": 64}
    arrays = {"attention__head_count": [2, 4], "feed_forward_length": [128, 256]}
    table = llama_tensors(width=64, query=256, kv=128, ffn=256)
    table |= {
        name: info
        for name, info in llama_tensors(width=64, query=128, kv=128, ffn=128).items()
        if name.startswith("blk.0.")
    }
    spec = spec_of(keyed(tmp_path, "llama", sizes(embedding_length=64, **heads, **arrays)), table)
    one = {"attention__head_count": 4, "feed_forward_length": 256}
    table = llama_tensors(width=64, query=256, kv=128, ffn=256)
    largest = spec_of(keyed(tmp_path, "llama", sizes(embedding_length=64, **heads, **one)), table)
    layouts = [BufferLayout(each, table, Limits(128, 4, 32, 4)) for each in (spec, largest)]
    assert len(layouts[0].places) == 5
    assert layouts[0].total_bytes == layouts[1].total_bytes


def test_arrays_of_equal_numbers_are_as_one_number(tmp_path: Path) -> None:
    arrays = {"attention__head_count": [4, 4], "attention__head_count_kv": [2, 2], "feed_forward_length": [48, 48]}
    found = spec_of(keyed(tmp_path, "llama", sizes(**arrays)), llama_tensors())
    assert found == spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors())


@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length", "attention.sliding_window"]
)
def test_an_array_of_the_wrong_length_is_refused_by_its_key(tmp_path: Path, key: str) -> None:
    changes = {key.replace(".", "__"): [2, 2, 2]}
    with pytest.raises(BadGGUF, match=rf"llama\.{key} has 3 entries for 2 layers"):
        spec_of(keyed(tmp_path, "llama", sizes(**changes)), llama_tensors())


def test_arrays_have_an_entry_for_blocks_that_guess_too(tmp_path: Path) -> None:
    changes = ARRAYS | {"block_count": 3, "nextn_predict_layers": 1, "attention__sliding_window": 0}
    arrays = ("attention__head_count", "attention__head_count_kv", "feed_forward_length")
    changes |= {key: [*ARRAYS[key], 1] for key in arrays}  # type: ignore[misc]
    table = growing_tensors() | {"blk.2.nextn.eh_proj.weight": tensor("blk.2.nextn.eh_proj.weight", 32, 64)}
    spec = spec_of(keyed(tmp_path, "llama", sizes(**changes)), table)
    assert (spec.n_layers, spec.ffn_width) == (2, 48)
