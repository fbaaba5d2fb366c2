"""Adds what published checkpoints contain beyond what transformers writes or supports.

In: the folder of a checkpoint, and its random generator. Out: more files, tensors and keys in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Extra = Callable[[Path, np.random.Generator], None]
INNER = 96


def _configuration(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held, indent=1))


def _tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    held = load_file(path)
    change(held)
    save_file({key: value.contiguous() for key, value in held.items()}, path, metadata={"format": "pt"})


def without_rows_and_experts(folder: Path, random: np.random.Generator) -> None:
    """Add the keys of Gemma 4's text that are published as empty, and those that transformers writes by layer."""

    def add(held: dict[str, Any]) -> None:
        text = held["text_config"]
        whole = text["per_layer_config"][str(text["num_hidden_layers"] - 1)]
        text |= {"hidden_size_per_layer_input": 0, "enable_moe_block": False, "moe_intermediate_size": None}
        text |= {"global_head_dim": whole["head_dim"], "num_global_key_value_heads": whole["num_key_value_heads"]}

    _configuration(folder, add)


def guess_one_more(folder: Path, random: np.random.Generator) -> None:
    """Add a multi-token-prediction (MTP) layer: a copy of the last layer with attention; its values are not used."""

    def add(held: dict[str, torch.Tensor]) -> None:
        layers = sorted(
            {int(key.split("layers.")[1].split(".")[0]) for key in held if "layers." in key and "visual" not in key}
        )
        attending = next(n for n in reversed(layers) if any(f"layers.{n}.self_attn" in key for key in held))
        width = next(value for key, value in held.items() if key.endswith("embed_tokens.weight")).shape[1]
        for key, value in list(held.items()):
            _, found, rest = key.partition(f"layers.{attending}.")
            if found and "visual" not in key:
                held[f"mtp.layers.0.{rest}"] = value.clone()
        held["mtp.fc.weight"] = torch.zeros(width, 2 * width, dtype=torch.bfloat16)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            held[f"mtp.{name}.weight"] = torch.zeros(width, dtype=torch.bfloat16)

    _tensors(folder, add)


def pack_experts(folder: Path, random: np.random.Generator) -> None:
    """Store gpt-oss's experts as published: blocks of 32 four-bit numbers (MXFP4), each block with a power of two."""

    def pack(held: dict[str, torch.Tensor]) -> None:
        for key in [key for key in held if key.endswith(("gate_up_proj", "down_proj"))]:
            count, columns, rows = held.pop(key).shape  # [E, D, 2F], columns first
            codes = random.integers(0, 256, (count, rows, columns // 32, 16), np.uint8)
            powers = random.integers(121, 125, (count, rows, columns // 32)).astype(np.uint8)
            held[f"{key}_blocks"], held[f"{key}_scales"] = torch.from_numpy(codes), torch.from_numpy(powers)

    def say(held: dict[str, Any]) -> None:
        whole = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        held["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": whole}

    _tensors(folder, pack)
    _configuration(folder, say)


def columns_first(folder: Path, random: np.random.Generator) -> None:
    """Store Qwen3-VL's experts as published, columns first; transformers 5.24 transposes them only when reading."""

    def turn(held: dict[str, torch.Tensor]) -> None:
        for key in held:
            if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                held[key] = held[key].transpose(1, 2)

    _tensors(folder, turn)


def keep_window(folder: Path, random: np.random.Generator) -> None:
    """Store EmbeddingGemma's window as published: transformers halves it when it reads a configuration."""
    _configuration(folder, lambda held: held.update(sliding_window=24))


def pool_by(kind: str) -> Extra:
    """Add the description of pooling that sentence-transformers reads."""

    def add(folder: Path, random: np.random.Generator) -> None:
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        modes = {"pooling_mode_cls_token": kind == "cls", "pooling_mode_mean_tokens": kind == "mean"}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))

    return add


def two_products(folder: Path, random: np.random.Generator) -> None:
    """Add the two matrices by which EmbeddingGemma multiplies a pooled row."""
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    modules = json.loads((folder / "modules.json").read_text())
    for number, (inner, outer) in ((2, (width, INNER)), (3, (INNER, width))):
        name = f"{number}_Dense"
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"in_features": inner, "out_features": outer}))
        values = (random.standard_normal((outer, inner)) * inner**-0.5).astype(np.float32)
        save_file({"linear.weight": torch.from_numpy(values).bfloat16()}, folder / name / "model.safetensors")
        modules.append({"idx": number, "name": str(number), "path": name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def name_class(name: str) -> Extra:
    """Store a class's name as it was published, before transformers had the family."""
    return lambda folder, random: _configuration(folder, lambda held: held.update(architectures=[name]))


def rotate_all(folder: Path, random: np.random.Generator) -> None:
    """Add the key that tells the converter that whole heads are rotated."""
    _configuration(folder, lambda held: held.update(rotary_pct=1.0))


def older_layer_types(folder: Path, random: np.random.Generator) -> None:
    """Name kinds of layers as published, for the converter; transformers reads these names too."""
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    _configuration(folder, lambda held: held.update(layer_types=[names[kind] for kind in held["layer_types"]]))


def dense_pattern(folder: Path, random: np.random.Generator) -> None:
    """Name Nemotron-H's layers by signs, as published; its dense models have no key of experts."""
    signs = {"linear_attention": "M", "full_attention": "*", "mlp": "-"}

    def say(held: dict[str, Any]) -> None:
        kinds = held.pop("layers_block_type", None) or held.pop("layer_types")
        held["hybrid_override_pattern"] = "".join(signs[kind] for kind in kinds)
        held["num_hidden_layers"] = len(kinds)
        for key in [
            key for key in held if key.startswith(("moe_", "n_routed", "n_shared", "num_experts", "num_local"))
        ]:
            del held[key]

    _configuration(folder, say)


def kimi_names(folder: Path, random: np.random.Generator) -> None:
    """Name the matrices of Kimi Linear's dense layers as published; and say how many such layers there are."""

    def rename(held: dict[str, torch.Tensor]) -> None:
        for key in [key for key in held if key.endswith("_proj.weight") and "block_sparse_moe." in key]:
            if not any(part in key for part in ("experts.", "shared_experts.")):
                held[key.replace("block_sparse_moe", "mlp")] = held.pop(key)

    def say(held: dict[str, Any]) -> None:
        held["first_k_dense_replace"] = held.pop("mlp_layer_types").count("dense")
        kinds = held.pop("layer_types")
        numbers = {kind: [at for at, each in enumerate(kinds, 1) if each == kind] for kind in set(kinds)}
        held["linear_attn_config"] = {
            "full_attn_layers": numbers["full_attention"],
            "kda_layers": numbers["linear_attention"],
            "head_dim": held.pop("linear_head_dim"),
            "num_heads": held.pop("linear_num_heads"),
            "short_conv_kernel_size": held.pop("linear_conv_kernel_dim"),
        }

    _tensors(folder, rename)
    _configuration(folder, say)


def older_names(folder: Path, random: np.random.Generator) -> None:
    """Add the keys of nomic-embed's published configuration, whose names transformers' own class does not use."""
    fixed = {
        "n_positions": 8192,
        "activation_function": "swiglu",
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_emb_base": 1000,
        "max_trained_positions": 2048,
    }
    _configuration(folder, lambda held: held.update(fixed))
