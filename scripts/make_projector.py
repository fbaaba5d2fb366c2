"""Makes projector files with random weights, for measurements: encoders of published shapes, whose speed and memory do
not depend on the values of weights.

Run: `python scripts/make_projector.py smolvlm OUT.gguf [--type f16|q8_0] [--width 576]`. Shapes: smolvlm (SmolVLM 256M
and 500M), siglip-so400m (Gemma 3), qwen3vl-2b, pixtral. Names, keys and types of tensors are those of llama.cpp's
converter. `--width` is that of the language model, by default the starter model's: `edgeinfer run -m STARTER --mmproj
OUT.gguf -f photo.png "What is this?"` then answers, with nonsense. `--layers` leaves layers out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np

SPREAD = 0.02
"""Of biases and of factors of norms."""
STARTER_WIDTH = 576
TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}


@dataclass(frozen=True, slots=True)
class Shape:
    """An encoder. `projector`: its type; `image`: pixels along each side; `keys`: those that others lack.

    `gated`: feed-forward branches with a gate, norms and products without biases. `fused`: one matrix for queries, keys
    and values. `frames`: kernels of patches. `positions`: rows of the table of positions, 0 for none.
    """

    projector: str
    name: str
    layers: int
    width: int
    heads: int
    ffn: int
    image: int
    patch: int
    positions: int
    keys: dict[str, int | float | bool | list[bool]] = field(default_factory=dict)
    gated: bool = False
    fused: bool = False
    frames: int = 1
    mean: float = 0.5
    deviation: float = 0.5


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of random numbers: a matrix with `rows`, or a vector (0). `mean`: of a vector. `kind`: "" for any."""

    name: str
    rows: int
    columns: int
    mean: float = 0.0
    kind: str = ""


DEEP = (5, 11, 17)
"""Layers of Qwen3-VL-2B whose rows enter later layers of the language model."""
SHAPES = {
    "smolvlm": Shape(
        *("idefics3", "SmolVLM", 12, 768, 12, 3072, 512, 16, 1024),
        {"projector.scale_factor": 4, "preproc_image_size": 2048},
    ),
    "siglip-so400m": Shape("gemma3", "Gemma 3", 27, 1152, 16, 4304, 896, 14, 4096),
    "qwen3vl-2b": Shape(
        *("qwen3vl_merger", "Qwen3-VL-2B", 24, 1024, 16, 4096, 768, 16, 2304),
        {"spatial_merge_size": 2, "is_deepstack_layers": [number in DEEP for number in range(24)]},
        fused=True,
        frames=2,
    ),
    "pixtral": Shape(
        *("pixtral", "Pixtral", 24, 1024, 16, 4096, 1024, 16, 0),
        {"rope.freq_base": 10000.0},
        gated=True,
        mean=0.45,
        deviation=0.27,
    ),
}


def layers(shape: Shape) -> Iterator[Tensor]:
    """The tensors of patches, positions and layers."""
    width, ffn = shape.width, shape.ffn
    if shape.positions:
        yield Tensor("v.position_embd.weight", shape.positions, width, kind="F32")
    for number in range(shape.layers):
        prefix = f"v.blk.{number}."
        parts = {"attn_qkv": (3 * width, width)} if shape.fused else {f"attn_{part}": (width, width) for part in "qkv"}
        parts |= {"attn_out": (width, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn)}
        parts |= {"ffn_gate": (ffn, width)} if shape.gated else {}
        for name, (rows, columns) in parts.items():
            yield from product(f"{prefix}{name}", rows, columns, bias=not shape.gated)
        for name in ("ln1", "ln2"):
            yield from norm(f"{prefix}{name}", width, bias=not shape.gated)


def product(name: str, rows: int, columns: int, *, bias: bool = True) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", rows, columns)
    if bias:
        yield Tensor(f"{name}.bias", 0, rows)


def norm(name: str, width: int, *, bias: bool = True) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", 0, width, 1.0)
    if bias:
        yield Tensor(f"{name}.bias", 0, width)


def of_smolvlm(shape: Shape, out: int) -> Iterator[Tensor]:
    yield from norm("v.post_ln", shape.width)
    factor = shape.keys["projector.scale_factor"]
    assert isinstance(factor, int)
    yield Tensor("mm.model.fc.weight", out, shape.width * factor**2)


def of_gemma3(shape: Shape, out: int) -> Iterator[Tensor]:
    yield from norm("v.post_ln", shape.width)
    yield Tensor("mm.input_projection.weight", shape.width, out, kind="F16")
    yield Tensor("mm.soft_emb_norm.weight", 0, shape.width, 1.0)


def of_qwen3vl(shape: Shape, out: int) -> Iterator[Tensor]:
    joined, deep = 4 * shape.width, [number for number in DEEP if number < shape.layers]
    yield from norm("v.post_ln", shape.width)
    mergers = ["mm.0", "mm.2"], *([f"v.deepstack.{number}.fc{n}" for n in (1, 2)] for number in deep)
    for first, second in mergers:
        yield from product(first, joined, joined)
        yield from product(second, out, joined)
    for number in deep:
        yield from norm(f"v.deepstack.{number}.norm", joined)


def of_pixtral(shape: Shape, out: int) -> Iterator[Tensor]:
    yield from norm("v.pre_ln", shape.width, bias=False)
    yield from product("mm.1", out, shape.width)
    yield from product("mm.2", out, out)
    yield Tensor("v.token_embd.img_break", 0, out)


ENDS: dict[str, Callable[[Shape, int], Iterator[Tensor]]] = {
    "idefics3": of_smolvlm,
    "gemma3": of_gemma3,
    "qwen3vl_merger": of_qwen3vl,
    "pixtral": of_pixtral,
}
"""What comes after the layers, by the type of the projector; takes the language model's width."""


def write(shape: Shape, kind: str, out_width: int, path: Path, seed: int = 0) -> None:
    """Write a file whose matrices are of `kind` (of F16 where rows are no multiple of a block)."""
    writer = gguf.GGUFWriter(path, "clip")
    draw = np.random.default_rng(seed)
    add_keys(writer, shape, out_width)
    for frame in range(shape.frames):
        kernel = draw.standard_normal((shape.width, 3, shape.patch, shape.patch), np.float32)
        kernel *= np.float32((3 * shape.patch**2 * shape.frames) ** -0.5)
        writer.add_tensor("v.patch_embd.weight" + (f".{frame}" if frame else ""), kernel)
    if not shape.gated:
        writer.add_tensor("v.patch_embd.bias", np.float32(SPREAD) * draw.standard_normal(shape.width, np.float32))
    for tensor in (*layers(shape), *ENDS[shape.projector](shape, out_width)):
        if not tensor.rows:
            values = np.float32(SPREAD) * draw.standard_normal(tensor.columns, np.float32) + np.float32(tensor.mean)
            writer.add_tensor(tensor.name, values.astype(np.float32))
            continue
        values = draw.standard_normal((tensor.rows, tensor.columns), np.float32) * np.float32(tensor.columns**-0.5)
        own = tensor.kind or (kind if kind != "Q8_0" or tensor.columns % 32 == 0 else "F16")
        form = gguf.GGMLQuantizationType[own]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_keys(writer: gguf.GGUFWriter, shape: Shape, out_width: int) -> None:
    """The keys of all projector files, and the shape's own."""
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name(f"{shape.name} (random)")
    writer.add_string("clip.projector_type", shape.projector)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_silu" if shape.gated else "clip.use_gelu", True)
    sizes = {"embedding_length": shape.width, "feed_forward_length": shape.ffn, "block_count": shape.layers}
    sizes |= {"projection_dim": out_width, "attention.head_count": shape.heads, "patch_size": shape.patch}
    sizes |= {"image_size": shape.image}
    for key, value in (sizes | shape.keys).items():
        name = f"clip.vision.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [shape.mean] * 3)
    writer.add_array("clip.vision.image_std", [shape.deviation] * 3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="f16", help="of matrices")
    parser.add_argument("--width", type=int, default=STARTER_WIDTH, help="of the language model")
    parser.add_argument("--layers", type=int, help="fewer than the shape's")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    shape = replace(shape, layers=options.layers or shape.layers)
    write(shape, TYPES[options.type], options.width, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
