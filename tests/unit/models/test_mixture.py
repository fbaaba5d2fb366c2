"""Mixtures of experts: what a header may say, files with a tensor for each expert, and the work of a pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.layout.expert_panels import expert_panels
from edgeinfer.errors import BadGGUF, EdgeInferError, UnsupportedModel
from edgeinfer.graph.op import share_read
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import open_model, spec_of
from edgeinfer.models.work import pass_work, unread_bytes
from edgeinfer.scheduling.cost.work import work_of
from tests.golden.goldens import DATA, Golden, Player
from tests.unit.models.headers import keyed, llama_tensors, sizes, tensor

COUNTS = {"expert_count": 8, "expert_used_count": 2}


def mixture_tensors() -> dict[str, TensorInfo]:
    """The tensor table of a small Mixtral."""
    kept = {name: info for name, info in llama_tensors().items() if ".ffn_" not in name or "norm" in name}
    for layer in range(2):
        for name, shape in {"gate": (8, 48, 32), "up": (8, 48, 32), "down": (8, 32, 48)}.items():
            kept[f"blk.{layer}.ffn_{name}_exps.weight"] = tensor(f"blk.{layer}.ffn_{name}_exps.weight", *shape)
        kept[f"blk.{layer}.ffn_gate_inp.weight"] = tensor(f"blk.{layer}.ffn_gate_inp.weight", 8, 32)
    return kept


def test_sizes_and_shares_come_from_the_header(tmp_path: Path) -> None:
    own = {"expert_weights_norm": False, "expert_weights_scale": 2.5}
    spec = spec_of(keyed(tmp_path, "llama", sizes(**COUNTS, **own)), mixture_tensors())
    routers = [op for op in spec.ops() if isinstance(op, Router)]
    assert routers == [Router("scores", "shares", 8, 2, "softmax", False, 2.5)] * 2
    experts = next(op for op in spec.ops() if isinstance(op, Experts))
    assert [(each.start, each.stop) for each in experts.down[:3]] == [(0, 32), (32, 64), (64, 96)]


WRONG = {
    "more experts used than there are": ({**COUNTS, "expert_used_count": 9}, r"expert_used_count is 9; .* 1 and 8"),
    "none used": ({**COUNTS, "expert_used_count": 0}, "expert_used_count is 0"),
    "how many are used is missing": ({"expert_count": 8}, "expert_used_count"),
    "too many experts": ({**COUNTS, "expert_count": 1 << 20}, "expert_count is 1048576"),
    "another number of experts": ({**COUNTS, "expert_count": 6}, r"shape \(8, 32\); .* \(6, 32\)"),
    "another width": ({**COUNTS, "expert_feed_forward_length": 40}, r"shape \(8, 48, 32\); .* \(8, 40, 32\)"),
    "uneven groups": ({**COUNTS, "expert_group_count": 3}, "expert_group_count is 3: 8 experts"),
    "more groups than experts": ({**COUNTS, "expert_group_count": 9}, "expert_group_count is 9; .* 0 and 8"),
    "more groups than there are": (
        {**COUNTS, "expert_group_count": 4, "expert_group_used_count": 5},
        "expert_group_used_count is 5; .* 0 and 4",
    ),
    "groups with too few experts": (
        {**COUNTS, "expert_used_count": 3, "expert_group_count": 4, "expert_group_used_count": 1},
        "expert_group_used_count is 1: these groups have 2 experts, and a token has 3",
    ),
    "another gating": ({**COUNTS, "expert_gating_func": 4}, "gating function 4; edgeinfer has softmax"),
}


def test_groups_come_from_the_header(tmp_path: Path) -> None:
    keys = {"expert_group_count": 4, "expert_group_used_count": 2}
    spec = spec_of(keyed(tmp_path, "llama", sizes(**COUNTS, **keys)), mixture_tensors())
    assert {(op.groups, op.active_groups) for op in spec.ops() if isinstance(op, Router)} == {(4, 2)}
    all_used = keyed(tmp_path, "llama", sizes(**COUNTS, **keys | {"expert_group_used_count": 4}))
    assert spec_of(all_used, mixture_tensors()) == spec_of(keyed(tmp_path, "llama", sizes(**COUNTS)), mixture_tensors())


@pytest.mark.parametrize("case", WRONG)
def test_an_impossible_mixture_is_refused(tmp_path: Path, case: str) -> None:
    keys, message = WRONG[case]
    with pytest.raises(EdgeInferError, match=message):
        spec_of(keyed(tmp_path, "llama", sizes(**keys)), mixture_tensors())


@pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe", "olmoe"])
def test_a_mixture_without_experts_is_refused(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(BadGGUF, match=r"expert_(used_)?count"):
        spec_of(keyed(tmp_path, architecture, sizes(architecture)), mixture_tensors())


def test_experts_of_a_layer_in_different_formats_are_refused_by_the_cpu(tmp_path: Path) -> None:
    tensors = {name: info for name, info in mixture_tensors().items() if "_exps" not in name}
    for layer in range(2):
        for expert in range(8):
            for name, shape in {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}.items():
                kind = {"ggml_type": 1, "type_name": "F16"} if expert == 5 else {}
                found = tensor(f"blk.{layer}.ffn_{name}.{expert}.weight", *shape, **kind)  # type: ignore[arg-type]
                tensors[found.name] = found
    spec = spec_of(keyed(tmp_path, "llama", sizes(**COUNTS)), tensors)
    op = next(op for op in spec.ops() if isinstance(op, Experts))
    with pytest.raises(UnsupportedModel, match=r"ffn_gate\.\d\.weight and .* different formats"):
        expert_panels(op, tensors)


def split_experts(source: Path, path: Path) -> None:
    """Write a file whose stacked tensors are cut into one for each expert, as old files have them."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for each in reader.tensors:
        parts = {each.name: each.data}
        if each.name.endswith("_exps.weight"):
            stem = each.name.removesuffix("_exps.weight")
            parts = {f"{stem}.{expert}.weight": part for expert, part in enumerate(each.data)}
        for name, part in parts.items():
            writer.add_tensor(name, np.ascontiguousarray(part), raw_dtype=each.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_tensor_for_each_expert_gives_the_same_bits(tmp_path: Path) -> None:
    golden = Golden.read("mixtral-q8_0")
    path = tmp_path / "old.gguf"
    split_experts(golden.model, path)
    found = []
    for file in (golden.model, path):
        with Player(CpuDevice(DeviceOptions(n_workers=2)), replace(golden, model=file)) as player:
            found.append(player.feed(golden.tokens).tobytes())
    assert found[0] == found[1]
    with open_model(path) as model:
        assert sum(name.endswith(".3.weight") for name in model.file.tensors) == 6


def test_a_pass_reads_the_experts_that_its_tokens_are_expected_to_have() -> None:
    assert share_read(64, 8, 1) == 0.125
    assert share_read(4, 4, 1) == 1.0
    assert share_read(64, 8, 2) == pytest.approx(1 - 0.875**2)
    with open_model(DATA / "qwen3moe-q8_0.gguf") as model:
        spec, tensors = model.spec, model.file.tensors
    experts = sum(info.nbytes for name, info in tensors.items() if "_exps" in name)
    one, many = (pass_work(spec, tensors, count, 0) for count in (1, 200))
    assert unread_bytes(spec, tensors, 1) == pytest.approx(experts * 5 / 8)
    rows = 199 * tensors["token_embd.weight"].nbytes // spec.n_vocab
    assert many.weight_bytes - one.weight_bytes == pytest.approx(experts * 5 / 8 + rows, abs=2)
    used = [product for stage in work_of(spec, tensors).stages for product in stage.shape.products]
    assert sum(product.n_bytes for product in used if product.experts > 1) == experts
    assert {product.share_used for product in used if product.experts > 1} == {3 / 8}


def test_an_afmoe_without_a_window_is_refused_for_nothing_says_which_layers_rotate(tmp_path: Path) -> None:
    keys = sizes("afmoe", **COUNTS, expert_shared_count=1)
    with pytest.raises(BadGGUF, match=r"afmoe\.attention\.sliding_window"):
        spec_of(keyed(tmp_path, "afmoe", keys), mixture_tensors())
