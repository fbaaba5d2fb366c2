"""Models for measuring: a random llama of a chosen shape, or another file's weights in another quant format.

Run: `python scripts/make_model.py --shape 1b --type Q4_0 OUT.gguf` writes random weights (2048 wide, 16 layers, 8192
FFN, 32/8 heads, tied head) with the tokenizer of the starter model; --width, --layers, … change the shape. Shapes with
states are lfm2-1.2b and qwen35-0.8b (but for the vocabulary, which is the tokenizer's). With
--experts 64 --active 8 (and --arch qwen3moe, olmoe or llama) every layer has so many experts of the shape's FFN width;
with --zeros 0.9 it has ReLU and biases of the gates, so that nine of ten activations are zero (docs/GGUF_KEYS.md).
`python scripts/make_model.py --requantise Q4_K_M SOURCE.gguf OUT.gguf` converts a file. Formats that the gguf package
cannot write, and every conversion, go through llama-cpp-python, which gives some tensors (a tied head, parts of K
formats) more bits; with --pure all matrices have the one type. Speed does not depend on the values of weights.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from types import ModuleType

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.app.model_choice import choose_model
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import load_settings

WRITTEN_HERE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Formats that the gguf package can write; random weights in others are written as F16 and converted."""
NORM_EPSILON = 1e-5
BIAS_SPREAD = 1.0
"""Of gates' biases, beside values before them that spread by about 1: some neurons are active often, most hardly."""
ROPE_BASE = 10000.0
ROUTER_GAIN = 2.0
"""Spread of a router's scores."""


SIZES = ("width", "layers", "ffn", "heads", "kv_heads", "vocabulary", "experts", "active")
"""Sizes that the command line may change."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; its head is tied to the embedding, but for olmoe."""

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    context: int
    vocabulary: int | None = None  # as many as the tokenizer has
    experts: int = 0  # of each layer; 0: dense
    active: int = 0  # experts of a token
    arch: str = "llama"
    hybrid: Hybrid | None = None  # layers of another kind than attention

    def matrices(self, vocabulary: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every matrix; the rows of a layer's experts one after the other."""
        kind, count = ("_exps", self.experts) if self.experts else ("", 1)
        kv_width = self.width // self.heads * self.kv_heads
        yield "token_embd", vocabulary, self.width
        if self.hybrid is not None:
            yield from self.hybrid.matrices(self)
            return
        if self.arch == "olmoe":  # llama.cpp reads none with a tied head
            yield "output", vocabulary, self.width
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q", self.width, self.width
            yield f"blk.{layer}.attn_k", kv_width, self.width
            yield f"blk.{layer}.attn_v", kv_width, self.width
            yield f"blk.{layer}.attn_output", self.width, self.width
            yield f"blk.{layer}.ffn_gate{kind}", count * self.ffn, self.width
            yield f"blk.{layer}.ffn_up{kind}", count * self.ffn, self.width
            yield f"blk.{layer}.ffn_down{kind}", count * self.width, self.ffn

    def norms(self) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        if self.hybrid is not None:
            yield from self.hybrid.norms(self)
            return
        head = self.width // self.heads
        own = {"olmoe": (self.width, head * self.kv_heads), "qwen3moe": (head, head)}.get(self.arch)
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm", self.width
            yield f"blk.{layer}.ffn_norm", self.width
            if own is not None:
                yield f"blk.{layer}.attn_q_norm", own[0]
                yield f"blk.{layer}.attn_k_norm", own[1]
        yield "output_norm", self.width

    def routers(self) -> Iterator[str]:
        """Name of every router."""
        yield from (f"blk.{layer}.ffn_gate_inp" for layer in range(self.layers) if self.experts)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """What most layers of a model have instead of attention, which has heads of `head_width`.

    `attending`: the layers that have attention. `key_heads`, `value_heads`, `state_width`: of gated delta nets; without
    them the other layers are short convolutions.
    """

    attending: tuple[int, ...]
    head_width: int
    taps: int
    key_heads: int = 0
    value_heads: int = 0
    state_width: int = 0

    @property
    def has_delta(self) -> bool:
        """Whether layers are gated delta nets."""
        return self.key_heads > 0

    @property
    def inner(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.state_width

    @property
    def mixed(self) -> int:
        """Width of queries, keys and values of a delta net."""
        return 2 * self.key_heads * self.state_width + self.inner

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers."""
        width, query = shape.width, shape.heads * self.head_width
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            if layer in self.attending:
                yield f"{prefix}attn_q", query * (2 if self.has_delta else 1), width
                for name in ("attn_k", "attn_v"):
                    yield f"{prefix}{name}", shape.kv_heads * self.head_width, width
                yield f"{prefix}attn_output", width, query
            elif self.has_delta:
                yield f"{prefix}attn_qkv", self.mixed, width
                yield f"{prefix}attn_gate", self.inner, width
                yield f"{prefix}ssm_alpha", self.value_heads, width
                yield f"{prefix}ssm_beta", self.value_heads, width
                yield f"{prefix}ssm_out", width, self.inner
            else:
                yield f"{prefix}shortconv.in_proj", 3 * width, width
                yield f"{prefix}shortconv.out_proj", width, width
            yield f"{prefix}ffn_gate", shape.ffn, width
            yield f"{prefix}ffn_up", shape.ffn, width
            yield f"{prefix}ffn_down", width, shape.ffn

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        for layer in range(shape.layers):
            yield f"blk.{layer}.attn_norm", shape.width
            yield f"blk.{layer}.{'post_attention_norm' if self.has_delta else 'ffn_norm'}", shape.width
            if layer in self.attending:
                yield f"blk.{layer}.attn_q_norm", self.head_width
                yield f"blk.{layer}.attn_k_norm", self.head_width
            elif self.has_delta:
                yield f"blk.{layer}.ssm_norm", self.state_width
        yield "output_norm" if self.has_delta else "token_embd_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """The keys that other families have not."""
        if self.has_delta:
            writer.add_ssm_conv_kernel(self.taps)
            writer.add_ssm_state_size(self.state_width)
            writer.add_ssm_group_count(self.key_heads)
            writer.add_ssm_time_step_rank(self.value_heads)
            writer.add_ssm_inner_size(self.inner)
            writer.add_uint32(f"{shape.arch}.full_attention_interval", self.attending[0] + 1)
            writer.add_key_length(self.head_width)
            writer.add_value_length(self.head_width)
            writer.add_rope_dimension_count(self.head_width // 4)
            writer.add_rope_dimension_sections([11, 11, 10, 0])
            writer.add_head_count_kv(shape.kv_heads)
        else:
            writer.add_shortconv_l_cache(self.taps)
            writer.add_rope_dimension_count(self.head_width)
            writer.add_head_count_kv([shape.kv_heads * (layer in self.attending) for layer in range(shape.layers)])

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Tensors that are never quantised: kernels of convolutions, and what decays are made of."""
        for layer in sorted({*range(shape.layers)} - {*self.attending}):
            width = self.mixed if self.has_delta else shape.width
            kernel = draw.standard_normal((width, self.taps), dtype=np.float32) * np.float32(self.taps**-0.5)
            writer.add_tensor(f"blk.{layer}.{'ssm_conv1d' if self.has_delta else 'shortconv.conv'}.weight", kernel)
            if self.has_delta:
                rates = -np.exp(draw.standard_normal(self.value_heads) - 2.0).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.ssm_a", rates)
                writer.add_tensor(f"blk.{layer}.ssm_dt.bias", np.zeros(self.value_heads, np.float32))


LFM2 = Hybrid(attending=(2, 5, 8, 10, 12, 14), head_width=64, taps=3)
QWEN35 = Hybrid((3, 7, 11, 15, 19, 23), head_width=256, taps=4, key_heads=16, value_heads=16, state_width=128)
SHAPES = {
    "135m": Shape(576, 30, 1536, 9, 3, 8192),
    "1b": Shape(2048, 16, 8192, 32, 8, 8192),
    "3b": Shape(3072, 28, 8192, 24, 8, 8192),
    "7b": Shape(4096, 32, 11008, 32, 32, 8192),
    "lfm2-1.2b": Shape(2048, 16, 8192, 32, 8, 32768, arch="lfm2", hybrid=LFM2),
    "qwen35-0.8b": Shape(1024, 24, 3584, 8, 2, 32768, arch="qwen35", hybrid=QWEN35),
}


Adjust = Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
"""Changes random values before they are written: (name, float32[rows, columns]) -> the same shape."""


def as_drawn(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """An `Adjust` that changes nothing."""
    return values


def gate_biases(draw: np.random.Generator, count: int, zeros: float) -> NDArray[np.float32]:
    """Biases that leave this share of normally distributed gates not above zero."""
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
    """Write a model with random weights; every matrix is of type `kind`, but for routers, which are F32.

    `zeros`: share of activations that ReLU makes zero.
    """
    tokenizer_file = gguf.GGUFReader(tokenizer)
    vocabulary = shape.vocabulary or len(tokenizer_file.fields["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(out, shape.arch)
    writer.add_name(f"random {shape.width}x{shape.layers}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    if shape.hybrid is not None:
        shape.hybrid.add_keys(writer, shape)
    else:
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(vocabulary)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.active)
        writer.add_expert_feed_forward_length(shape.ffn)
    file_types = {member.name.removeprefix("MOSTLY_").removeprefix("ALL_"): member for member in gguf.LlamaFileType}
    writer.add_file_type(file_types[kind])
    copy_tokenizer(tokenizer_file, writer)
    draw = np.random.default_rng(seed)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, rows, columns in shape.matrices(vocabulary):
        values = adjust(name, draw.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5))
        stored = gguf.quants.quantize(values, quantised)
        if name.endswith("_exps"):
            stored = stored.reshape(shape.experts, rows // shape.experts, -1)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=quantised)
    for name in shape.routers():
        values = draw.standard_normal((shape.experts, shape.width), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", adjust(name, values * np.float32(ROUTER_GAIN * shape.width**-0.5)))
    for name, width in shape.norms():
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    if shape.hybrid is not None:
        shape.hybrid.add_exact(writer, shape, draw)
    if zeros is not None:
        writer.add_string("llama.feed_forward_activation", "relu")
        for layer in range(shape.layers):
            writer.add_tensor(f"blk.{layer}.ffn_gate.bias", gate_biases(draw, shape.ffn, zeros))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy every tokenizer key of a file."""
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)


def llama_library() -> ModuleType:
    """llama-cpp-python's own module. Raises EdgeInferError where it is not installed."""
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
    """Write the weights of `source` in another format. Raises EdgeInferError for a format there is not."""
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
    """Do what the command line asks."""
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
    if shape.hybrid is not None and (options.layers or options.experts or options.zeros):
        raise EdgeInferError(f"{options.shape} has layers of its own; --layers, --experts and --zeros are for others")
    if shape.experts:
        if not 0 < shape.active <= shape.experts:
            raise EdgeInferError(f"--experts {shape.experts} needs --active, from 1 to {shape.experts}")
        shape = replace(shape, arch=options.arch)
    kind, out, zeros = options.type.upper(), Path(options.paths[0]), options.zeros
    if zeros is not None and not 0 < zeros < 1:
        raise EdgeInferError(f"--zeros is {zeros}; give a share between 0 and 1, such as 0.9")
    tokenizer = choose_model(load_settings({"model": options.tokenizer})).path
    if kind in WRITTEN_HERE:
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
