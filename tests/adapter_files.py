"""LoRA adapters with random weights for a model file, and the model they are merged into, written by gguf."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

ALPHA = 6.0
EMBEDDING = "token_embd.weight"
EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|gate_up|down)_exps\.weight")
MATRIX = re.compile(r"(blk\.\d+\.(attn|ffn|ssm)_.*|output)\.weight")
Floats = NDArray[np.float32]


def embedding_too(tensor: Any) -> bool:
    """The same and the embedding."""
    return tensor.name == EMBEDDING or adaptable(tensor)


def adaptable(tensor: Any) -> bool:
    """Whether an adapter may change a tensor: matrices but the embedding and convolutions, and those of experts."""
    is_matrix = bool(MATRIX.fullmatch(tensor.name)) and len(tensor.shape) == 2 and "conv" not in tensor.name
    return is_matrix or of_experts(tensor)


def of_experts(tensor: Any) -> bool:
    """Whether a tensor has a matrix for each expert."""
    return bool(EXPERTS.fullmatch(tensor.name))


def write_adapter(
    model: Path,
    path: Path,
    *,
    rank: int = 4,
    seed: int = 0,
    wanted: Callable[[Any], bool] = adaptable,
    alpha: float = ALPHA,
    architecture: str | None = None,
    norms: bool = False,
    rounds: bool = False,
) -> Path:
    """Write an adapter of the matrices that are `wanted`. `norms`: with norms, as mergekit-extract-lora writes them.

    `rounds`: matrices whose rows are of whole blocks are Q8_0.
    """
    reader, rng = gguf.GGUFReader(model), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture or reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor in reader.tensors:
        if wanted(tensor):
            *stack, rows, columns = (int(number) for number in reversed(tensor.shape))
            size = 0.4 / np.sqrt(rank)
            down = rng.standard_normal((*stack, rank, columns), np.float32) / columns**0.5
            up = rng.standard_normal((*stack, rows, rank), np.float32) * np.float32(size)
            if tensor.name == EMBEDDING:  # its rows are looked up: those of B become those of A
                up, down = down.T, up
            for part, values in (("lora_a", down), ("lora_b", up)):
                is_rounded = rounds and not values.shape[-1] % 32
                kind = gguf.GGMLQuantizationType.Q8_0 if is_rounded else gguf.GGMLQuantizationType.F32
                data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
                writer.add_tensor(f"{tensor.name}.{part}", data, raw_dtype=kind)
        elif norms and tensor.name.endswith("_norm.weight"):
            writer.add_tensor(tensor.name, np.ones(tensor.shape, np.float32))
    return _write(writer, path)


def write_merged(model: Path, path: Path, adapters: dict[Path, float]) -> Path:
    """Write a float32 model with the adapters added to its matrices, each times its scale."""
    reader = gguf.GGUFReader(model)
    added: dict[str, Floats] = {}
    for adapter, scale in adapters.items():
        tensors = {each.name: each.data for each in gguf.GGUFReader(adapter).tensors}
        for name in {name.rpartition(".lora_")[0] for name in tensors}:
            down, up = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
            product = down @ up.T if name == EMBEDDING else up @ down
            added[name] = added.get(name, np.float32(0)) + np.float32(scale * ALPHA / up.shape[-1]) * product
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for each in reader.tensors:
        data = each.data + added[each.name] if each.name in added else each.data
        writer.add_tensor(each.name, np.ascontiguousarray(data), raw_dtype=each.tensor_type)
    return _write(writer, path)


def _write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
