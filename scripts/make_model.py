"""Makes models for measurements: a random llama of a chosen shape, or another file's weights in another quant format.

Run: `python scripts/make_model.py --shape 1b --type Q4_0 OUT.gguf` writes random weights (2048 wide, 16 layers, 8192
FFN, 32/8 heads, tied head) with the starter model's tokenizer; --width, --layers, … change the shape. Shapes of
families whose layers differ from llama's (`scripts/shapes`) keep the family's sizes, except for the vocabulary, which
is the tokenizer's. With --experts 64 --active 8 (and --arch qwen3moe, olmoe or llama) each layer has that many experts
of the shape's FFN width; with --zeros 0.9 the model has ReLU and gate biases that make nine of ten activations zero
(docs/GGUF_KEYS.md). `python scripts/make_model.py --requantise Q4_K_M SOURCE.gguf OUT.gguf` converts a file. Formats
that the gguf package cannot write, and every conversion, go through llama-cpp-python, which gives some tensors (a tied
head, parts of K formats) more bits; with --pure all matrices have the same type. Formats of one to three bits, and
NVFP4, take ggml long: their matrices repeat their first rows. Speed does not depend on the values of weights.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import ModuleType

import gguf
import numpy as np
from block_formats import LOW_TYPES, quantise
from numpy.typing import NDArray
from shapes import SHAPES
from shapes.shape import Shape

from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import load_settings

MIXED = "MXFP4_MOE"
"""llama.cpp's name for experts in MXFP4 with other matrices in Q8_0."""
LOW = tuple(sorted(kind.name for kind in LOW_TYPES))
WRITTEN_HERE = (MIXED, "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Formats that the gguf package can write; random weights in others, except LOW, are written as F16 and converted."""
DRAWN_ROWS = 256
"""Rows of a matrix in a format of LOW that differ."""
NORM_EPSILON = 1e-5
BIAS_SPREAD = 1.0
"""Spread of gate biases; gate values without bias spread by about 1, so some neurons are active often, most hardly."""
ROPE_BASE = 10000.0
ROUTER_GAIN = 2.0
"""Spread of a router's scores."""


SIZES = ("width", "layers", "ffn", "heads", "kv_heads", "context", "vocabulary", "experts", "active")
"""Sizes that the command line may change."""


Adjust = Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
"""Changes random values before they are written: (name, float32[rows, columns]) -> the same shape."""


def as_drawn(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """An `Adjust` that changes nothing."""
    return values


def gate_biases(draw: np.random.Generator, count: int, zeros: float) -> NDArray[np.float32]:
    """Biases with which this share of normally distributed gates is at most zero."""
    centre = -NormalDist(0.0, (1 + BIAS_SPREAD**2) ** 0.5).inv_cdf(zeros)
    return (draw.standard_normal(count) * BIAS_SPREAD + centre).astype(np.float32)


def write_random(
    shape: Shape,
    kind: str,
    tokenizer: Path,
    out: Path,
    seed: int,
    zeros: float | None = None,
    adjust: Adjust = as_drawn,
) -> None:
    """Write a model with random weights; every matrix has type `kind`, except for routers, which are F32.

    `zeros`: share of activations that ReLU makes zero.
    """
    tokenizer_file = gguf.GGUFReader(tokenizer)
    vocabulary = shape.vocabulary or len(tokenizer_file.fields["tokenizer.ggml.tokens"].data)
    shape = replace(shape, vocabulary=vocabulary)
    writer = gguf.GGUFWriter(out, shape.arch)
    writer.add_name(f"random {shape.width}x{shape.layers}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.dense_ffn or shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    if shape.layout is not None:
        shape.layout.add_keys(writer, shape)
    else:
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(vocabulary)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.active)
        writer.add_expert_feed_forward_length(shape.ffn)
    if shape.dense_layers:
        writer.add_leading_dense_block_count(shape.dense_layers)
    file_types = {member.name.removeprefix("MOSTLY_").removeprefix("ALL_"): member for member in gguf.LlamaFileType}
    writer.add_file_type(file_types[kind])
    copy_tokenizer(tokenizer_file, writer)
    draw = np.random.default_rng(seed)
    for name, rows, columns in shape.matrices(vocabulary):
        quantised = gguf.GGMLQuantizationType[kind_of(name, kind)]
        n_drawn = min(rows, DRAWN_ROWS) if kind in LOW else rows
        values = adjust(name, draw.standard_normal((n_drawn, columns), dtype=np.float32) * np.float32(columns**-0.5))
        stored = repeated(quantise(values, quantised), rows)
        if name.endswith("_exps"):
            stored = stored.reshape(shape.experts, rows // shape.experts, -1)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=quantised)
    for name in shape.routers():
        values = draw.standard_normal((shape.experts, shape.width), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", adjust(name, values * np.float32(ROUTER_GAIN * shape.width**-0.5)))
    for name, width in shape.norms():
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    if shape.layout is not None:
        shape.layout.add_exact(writer, shape, draw)
    if zeros is not None:
        writer.add_string("llama.feed_forward_activation", "relu")
        for layer in range(shape.layers):
            writer.add_tensor(f"blk.{layer}.ffn_gate.bias", gate_biases(draw, shape.ffn, zeros))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def repeated(stored: NDArray[np.uint8], rows: int) -> NDArray[np.uint8]:
    """A matrix of that many rows: these, again and again."""
    return np.resize(stored, (rows, stored.shape[1]))


def kind_of(name: str, kind: str) -> str:
    """The type of a matrix in a file of this type."""
    return kind if kind != MIXED else "MXFP4" if name.endswith("_exps") else "Q8_0"


def copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy every tokenizer key of a file."""
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)


def llama_library() -> ModuleType:
    """llama-cpp-python's module. Raises EdgeInferError if it is not installed."""
    try:
        import llama_cpp
    except ImportError:
        raise EdgeInferError(
            "this conversion needs llama-cpp-python: pip install 'edgeinfer[llamacpp]'; "
            f"random weights need it only for types other than {', '.join(WRITTEN_HERE)}"
        ) from None
    module: ModuleType = llama_cpp
    return module


def convert(kind: str, source: Path, out: Path, *, pure: bool, threads: int) -> None:
    """Write the weights of `source` in another format. Raises EdgeInferError if there is no such format."""
    library = llama_library()
    prefix = re.compile("LLAMA_FTYPE_(MOSTLY|ALL)_")
    values = {prefix.sub("", name): name for name in dir(library) if prefix.match(name)}
    if kind not in values:
        raise EdgeInferError(f"{kind} is not a format of llama-cpp-python; it has {', '.join(sorted(values))}")
    if not source.is_file():
        raise EdgeInferError(f"{source} is not a file")
    wanted = library.llama_model_quantize_default_params()
    wanted.ftype = getattr(library, values[kind])
    wanted.allow_requantize, wanted.pure, wanted.nthread = True, pure, threads
    failed = library.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(wanted))
    if failed:
        raise EdgeInferError(f"llama.cpp could not convert {source} to {kind}; its lines above say why")


def make(options: argparse.Namespace) -> None:
    """Make the model that the command line asks for."""
    if options.requantise:
        if len(options.paths) != 2:
            raise EdgeInferError("--requantise takes two paths: SOURCE OUT")
        source, out = (Path(path) for path in options.paths)
        convert(options.requantise.upper(), source, out, pure=options.pure, threads=options.threads)
        return
    if len(options.paths) != 1:
        raise EdgeInferError("give one path to write to (and --requantise TYPE to convert a file)")
    given = {name: getattr(options, name) for name in SIZES}
    shape = replace(SHAPES[options.shape], **{name: value for name, value in given.items() if value})
    if shape.layout is not None and (options.experts or options.zeros):
        raise EdgeInferError(f"{options.shape} has layers of its own; --experts and --zeros are for others")
    if options.experts:
        if not 0 < shape.active <= shape.experts:
            raise EdgeInferError(f"--experts {shape.experts} needs --active, from 1 to {shape.experts}")
        shape = replace(shape, arch=options.arch)
    kind, out, zeros = options.type.upper(), Path(options.paths[0]), options.zeros
    if zeros is not None and not 0 < zeros < 1:
        raise EdgeInferError(f"--zeros is {zeros}; give a share between 0 and 1, such as 0.9")
    tokenizer = choose_model(load_settings({"model": options.tokenizer})).path
    if kind in LOW:
        llama_library()
    if kind in (*WRITTEN_HERE, *LOW):
        write_random(shape, kind, tokenizer, out, options.seed, zeros)
        return
    llama_library()
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        exact = Path(folder) / "f16.gguf"
        write_random(shape, "F16", tokenizer, exact, options.seed, zeros)
        convert(kind, exact, out, pure=options.pure, threads=options.threads)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="OUT, or SOURCE OUT with --requantise")
    parser.add_argument("--requantise", metavar="TYPE", help="convert SOURCE to this type: Q4_0, Q4_K_M, Q8_0, F16 …")
    parser.add_argument("--pure", action="store_true", help="one type for all matrices (conversions only)")
    parser.add_argument("--threads", type=int, default=0, help="threads of a conversion (default: all)")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--type", default="Q4_0", help="type of random weights")
    parser.add_argument("--tokenizer", metavar="MODEL", help="whose tokenizer to copy (default: the last used model)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", choices=("llama", "olmoe", "qwen3moe"), default="qwen3moe", help="with --experts")
    parser.add_argument("--zeros", type=float, metavar="SHARE", help="ReLU, and this share of activations zero")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the shape's")
    try:
        make(parser.parse_args())
    except EdgeInferError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
