"""Measures seconds per image of an image encoder: edgeinfer, llama.cpp's mtmd and ONNX Runtime, by turns.

Run: `python scripts/measure_encoder.py [--shape siglip-so400m] [--text MODEL.gguf] [--rounds 5] [--threads 2]`. The
encoder has random weights, as speed does not depend on them: a projector file for llama.cpp (its type is gemma3, which
takes one image of a fixed size), of which edgeinfer runs the encoder alone, and the same layers as an ONNX graph with
float32 weights, fused as ONNX Runtime fuses them. `--type` is the type of the matrices in the file. llama.cpp needs a
text model to open a projector, any small one, whose width `--text` determines. `--layers N` leaves layers out. With
`--ops` edgeinfer's time is shown by kind of op. The rows of edgeinfer are compared with those of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu import DEVICE
from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, PagedKV, Precision, Rows, Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.gguf import GGUFFile

Floats = NDArray[np.float32]
Encode = Callable[[], Floats | None]
PATCHES = "patches.weight"
"""The patch embedding as a matrix; llama.cpp reads it as a convolution, by its own name."""
POOLED = 4
"""Patches along each side that become one row of the language model, in projectors of type gemma3."""
EPSILON = 1e-6
SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an encoder; `side`: patches along each side of the image, `patch`: pixels along each side of a patch."""

    layers: int
    width: int
    heads: int
    ffn: int
    side: int
    patch: int

    @property
    def tokens(self) -> int:
        return self.side**2

    @property
    def patch_width(self) -> int:
        return 3 * self.patch**2

    @property
    def multiply_adds(self) -> int:
        """Of the matrices of all layers."""
        return self.layers * self.tokens * (4 * self.width**2 + 2 * self.width * self.ffn)


SHAPES = {
    "siglip-so400m": Shape(27, 1152, 16, 4304, 32, 14),
    "qwen3-vl-2b": Shape(24, 1024, 16, 4096, 28, 16),
    "tiny": Shape(2, 144, 2, 304, 8, 14),
}
"""448 x 448 pixels; Qwen3-VL's without the rotation of its queries and keys."""


def write_file(shape: Shape, kind: str, text_width: int, path: Path) -> None:
    """Write a projector file with random weights."""
    writer = gguf.GGUFWriter(path, "clip")
    draw, kinds = np.random.default_rng(0), gguf.GGMLQuantizationType
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    sizes = {"embedding_length": shape.width, "feed_forward_length": shape.ffn, "block_count": shape.layers}
    sizes |= {"projection_dim": text_width, "attention.head_count": shape.heads, "patch_size": shape.patch}
    sizes |= {"image_size": shape.side * shape.patch, "projector.scale_factor": POOLED}
    for key, size in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", size)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])

    def add(name: str, rows: int, columns: int, kind: str = kind) -> Floats:
        values = draw.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
        raw = gguf.quants.quantize(values, kinds[kind])
        writer.add_tensor(name, raw, raw_dtype=kinds[kind])
        return values

    def add_vector(name: str, width: int, mean: float = 0.0) -> None:
        writer.add_tensor(name, np.float32(mean) + draw.standard_normal(width, np.float32) * np.float32(SPREAD))

    width, ffn = shape.width, shape.ffn
    patches = add(PATCHES, width, shape.patch_width, "F16" if kind == "F16" else "F32")
    writer.add_tensor("v.patch_embd.weight", patches.reshape(width, 3, shape.patch, shape.patch))
    add_vector("v.patch_embd.bias", width)
    add("v.position_embd.weight", shape.tokens, width, "F32")
    for number in range(shape.layers):
        prefix = f"v.blk.{number}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{prefix}{name}.weight", width, width)
            add_vector(f"{prefix}{name}.bias", width)
        for name, rows, columns in (("ffn_up", ffn, width), ("ffn_down", width, ffn)):
            add(f"{prefix}{name}.weight", rows, columns)
            add_vector(f"{prefix}{name}.bias", rows)
        for name in ("ln1", "ln2"):
            add_vector(f"{prefix}{name}.weight", width, 1.0)
            add_vector(f"{prefix}{name}.bias", width)
    add_vector("v.post_ln.weight", width, 1.0)
    add_vector("v.post_ln.bias", width)
    add("mm.input_projection.weight", width, text_width, "F32")
    add_vector("mm.soft_emb_norm.weight", width, 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def spec_of(shape: Shape) -> ModelSpec:
    """The encoder of the file: rows of patches, and positions beside them, become normed rows."""
    width, ffn, heads, head = shape.width, shape.ffn, shape.heads, shape.width // shape.heads

    def product(source: str, out: str, name: str, rows: int, columns: int, *, adds: bool = False) -> MatMul:
        weight, bias = Weight(f"{name}.weight", 0, rows, columns), Weight(f"{name}.bias", 0, rows, 1)
        return MatMul(source, out, weight, bias, accumulate=adds)

    def norm(source: str, out: str, name: str) -> LayerNorm:
        weight, bias = (Weight(f"{name}.{part}", 0, width, 1) for part in ("weight", "bias"))
        return LayerNorm(source, out, weight, bias, width, EPSILON)

    patches = Weight(PATCHES, 0, width, shape.patch_width), Weight("v.patch_embd.bias", 0, width, 1)
    first: list[Op] = [HiddenRows("patches", shape.patch_width), HiddenRows("x", width, shape.patch_width)]
    stages = [Stage("embed", (*first, MatMul("patches", "x", *patches, accumulate=True)))]
    for number in range(shape.layers):
        name = f"v.blk.{number}"
        ops: list[Op] = [norm("x", "normed", f"{name}.ln1")]
        parts = zip(("query", "key", "value"), "qkv", strict=True)
        ops += [product("normed", part, f"{name}.attn_{letter}", width, width) for part, letter in parts]
        ops.append(StoreKV("key", "value", 0, heads, head, head))
        ops.append(Attention("query", "attended", 0, heads, heads, head, head, head**-0.5, causal=False))
        ops.append(product("attended", "x", f"{name}.attn_out", width, width, adds=True))
        ops += [norm("x", "normed", f"{name}.ln2"), product("normed", "up", f"{name}.ffn_up", ffn, width)]
        ops.append(Act("up", "hidden", ffn, "gelu_tanh"))
        ops.append(product("hidden", "x", f"{name}.ffn_down", width, ffn, adds=True))
        stages.append(Stage(f"blk.{number}", tuple(ops)))
    head_ops = norm("x", "normed", "v.post_ln"), TakeOutputs("normed", "rows", width)
    stages.append(Stage("head", head_ops))
    widths = dict.fromkeys(("x", "normed", "query", "key", "value", "attended"), width)
    widths |= {"patches": shape.patch_width, "up": ffn, "hidden": ffn}
    buffers = (*(Buffer(*each) for each in widths.items()), Buffer("rows", width, Rows.OUTPUTS))
    sizes = (shape.layers, width, heads, heads, head, ffn, width, shape.tokens)
    return ModelSpec("clip", "encoder", *sizes, buffers, tuple(stages), (PagedKV(heads, head, head),), logits="rows")


class Ours:
    """edgeinfer's encoder. Close it."""

    def __init__(self, path: Path, spec: ModelSpec, patches: Floats, threads: int) -> None:
        self._file, n = GGUFFile.open(path), len(patches)
        positions = matrix(self._file, Weight("v.position_embd.weight", 0, n, spec.width))
        self._hidden = np.concatenate([patches, positions], axis=1)
        device = DEVICE.open(DeviceOptions(n_workers=threads))
        limits = Limits(n_context=n, n_pages=-(-n // PAGE), max_tokens=n, max_outputs=n)
        self._lane = device.compile(spec, self._file, limits, progress)
        self._executor = Executor(device, self._lane, limits, "encoder", inputs=spec.inputs)

    def batch(self, sequence: int) -> Batch:
        """The whole image."""
        places = np.arange(len(self._hidden), dtype=np.int32)
        tokens, sequences = np.zeros_like(places), np.full_like(places, sequence)
        return Batch(tokens, sequences, places, places - 1, places, hidden=self._hidden)

    def encode(self) -> Floats:
        """Rows of the image."""
        sequence = self._executor.create()
        try:
            return self._executor.evaluate(self.batch(sequence)).copy()
        finally:
            self._executor.free(sequence)

    def show_ops(self) -> None:
        """Print the seconds of each kind of op."""
        sequence = self._executor.create()
        times = self._lane.capabilities.op_times
        assert times is not None
        placement = self._executor._place(self._lane, self.batch(sequence))  # the public way does not time
        for each in sorted(times.profile(placement.step), key=lambda each: -each.busy_s):
            print(f"    {each.op:12} {each.kernel:28} {each.busy_s:7.3f} s busy {each.waiting_s:7.3f} s waiting")
        self._executor.free(sequence)

    def close(self) -> None:
        self._executor.close()
        self._file.close()


def progress(text: str, done: int, total: int) -> None:
    """Show what takes time."""
    print(f"\r{text} {done}/{total}   ", end="\n" if done == total else "", file=sys.stderr)


def mtmd(path: Path, text: Path, shape: Shape, threads: int) -> Encode:
    """Encodes with llama.cpp. Raises RuntimeError or OSError with the reason why it cannot."""
    import llama_cpp
    from llama_cpp import mtmd_cpp as api

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    for set_log in (api.mtmd_log_set, api.mtmd_helper_log_set):
        set_log(silent, None)
    llama = llama_cpp.Llama(str(text), n_ctx=512, n_threads=threads, verbose=False)
    params = api.mtmd_context_params_default()
    params.use_gpu, params.print_timings, params.n_threads, params.warmup = False, False, threads, False
    context = api.mtmd_init_from_file(str(path).encode(), llama.model, params)
    if not context:
        raise RuntimeError("llama.cpp cannot open the projector file")
    side = shape.side * shape.patch
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), np.uint8)
    bitmap = api.mtmd_bitmap_init(side, side, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    chunks, marker = api.mtmd_input_chunks_init(), api.mtmd_default_marker()
    prompt = api.mtmd_input_text(text=marker, text_len=len(marker), add_special=True, parse_special=True)
    bitmaps = (api.mtmd_bitmap_p_ctypes * 1)(bitmap)
    if api.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1):
        raise RuntimeError("llama.cpp cannot read the image")
    every = [api.mtmd_input_chunks_get(chunks, place) for place in range(api.mtmd_input_chunks_size(chunks))]
    images = [chunk for chunk in every if api.mtmd_input_chunk_get_type(chunk) == api.MTMD_INPUT_CHUNK_TYPE_IMAGE]
    if len(images) != 1:
        raise RuntimeError(f"llama.cpp cuts the image into {len(images)}")

    def encode() -> None:
        if api.mtmd_encode_chunk(context, images[0]):
            raise RuntimeError("llama.cpp cannot encode the image")

    encode.keeps = llama, silent  # type: ignore[attr-defined]
    return encode


def onnx_runtime(path: Path, shape: Shape, patches: Floats, threads: int, folder: Path) -> Encode:
    """Encodes with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with GGUFFile.open(path) as file:
        graph = onnx_graph(file, shape, folder)
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"patches": patches[np.newaxis]})[0][0]  # type: ignore[no-any-return]


def onnx_graph(file: GGUFFile, shape: Shape, folder: Path) -> Path:
    """Write the same encoder as an ONNX graph, with the operators that ONNX Runtime's optimiser would put there."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], []

    def node(kind: str, sources: Sequence[str], out: str, domain: str = "", **attributes: float) -> str:
        nodes.append(helper.make_node(kind, list(sources), [out], domain=domain, **attributes))
        return out

    def constant(name: str, values: Floats) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        return name

    def vector_of(name: str, width: int) -> str:
        return constant(name, vector(file, Weight(name, 0, width, 1)))

    def product(source: str, name: str, rows: int, columns: int, bias: str = "") -> str:
        weight = constant(f"{name}.weight", matrix(file, Weight(f"{name}.weight", 0, rows, columns)).T)
        found = node("MatMul", (source, weight), f"{name} product")
        return node("Add", (found, vector_of(bias or f"{name}.bias", rows)), f"{name} out")

    def norm(source: str, name: str) -> str:
        parts = (vector_of(f"{name}.{part}", shape.width) for part in ("weight", "bias"))
        return node("LayerNormalization", (source, *parts), f"{name} out", axis=-1, epsilon=EPSILON)

    x = product("patches", PATCHES.removesuffix(".weight"), shape.width, shape.patch_width, "v.patch_embd.bias")
    positions = Weight("v.position_embd.weight", 0, shape.tokens, shape.width)
    x = node("Add", (x, constant(positions.tensor, matrix(file, positions))), "x")
    for number in range(shape.layers):
        name = f"v.blk.{number}"
        normed = norm(x, f"{name}.ln1")
        heads = [product(normed, f"{name}.attn_{part}", shape.width, shape.width) for part in "qkv"]
        attended = node("MultiHeadAttention", heads, f"{name} attended", "com.microsoft", num_heads=shape.heads)
        x = node("Add", (x, product(attended, f"{name}.attn_out", shape.width, shape.width)), f"{name} x")
        up = product(norm(x, f"{name}.ln2"), f"{name}.ffn_up", shape.ffn, shape.width)
        hidden = node("FastGelu", (up,), f"{name} hidden", "com.microsoft")
        x = node("Add", (x, product(hidden, f"{name}.ffn_down", shape.width, shape.ffn)), f"{name} y")
    sizes = (1, shape.tokens, shape.patch_width), (1, shape.tokens, shape.width)
    source, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
        for name, size in zip(("patches", norm(x, "v.post_ln")), sizes, strict=True)
    )
    graph = helper.make_graph(nodes, "encoder", [source], [out], constants)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    onnx.save(model, folder / "encoder.onnx", save_as_external_data=True, location="encoder.bin")
    return folder / "encoder.onnx"


def width_of(text: Path | None) -> int:
    """The width of a text model; of none, any."""
    if text is None:
        return 576
    with GGUFFile.open(text) as file:
        return file.tensors["token_embd.weight"].shape[-1]


def measure(ways: dict[str, Encode], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, encode in ways.items():
            began = time.perf_counter()
            encode()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="siglip-so400m")
    parser.add_argument("--type", choices=("F16", "BF16", "F32", "Q8_0"), default="F16")
    parser.add_argument("--layers", type=int, help="fewer than the shape's")
    parser.add_argument("--text", type=Path, help="a small text model for llama.cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ops", action="store_true", help="show edgeinfer's time by kind of op")
    parser.add_argument("--precision", choices=get_args(Precision), default="high", help="of edgeinfer's products")
    parser.add_argument("--alone", action="store_true", help="edgeinfer alone")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    shape = replace(shape, layers=options.layers or shape.layers)
    patches = np.random.default_rng(2).uniform(-1, 1, (shape.tokens, shape.patch_width)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="encoder") as name:
        folder = Path(name)
        path = folder / "mmproj.gguf"
        write_file(shape, options.type, width_of(options.text), path)
        ours = Ours(path, spec_of(shape).with_precision(options.precision), patches, options.threads)
        ways: dict[str, Encode] = {"edgeinfer": ours.encode}
        if not options.alone:
            try:
                ways["ONNX Runtime"] = onnx_runtime(path, shape, patches, options.threads, folder)
            except ImportError as reason:
                print(f"without ONNX Runtime: {reason}")
            try:
                if options.text is None:
                    raise RuntimeError("it needs --text")
                ways["llama.cpp"] = mtmd(path, options.text, shape, options.threads)
            except (ImportError, OSError, RuntimeError) as reason:
                print(f"without llama.cpp: {reason}")
        report(ways, shape, options.rounds)
        if options.ops:
            ours.show_ops()
        ours.close()
    return 0


def report(ways: dict[str, Encode], shape: Shape, rounds: int) -> None:
    """Print seconds, ratios, and how far rows are apart."""
    rows = {name: encode() for name, encode in ways.items()}
    first, judge = rows["edgeinfer"], rows.get("ONNX Runtime")
    if first is not None and judge is not None:
        print(f"rows differ by {np.linalg.norm(first - judge) / np.linalg.norm(judge):.1e} of their size")
    seconds = measure(ways, rounds)
    for name, found in seconds.items():
        ratios = [other / own for own, other in zip(seconds["edgeinfer"], found, strict=True)]
        rate = shape.multiply_adds / min(found) / 1e9
        print(
            f"  {name:13} {statistics.median(found):7.3f} s, at best {min(found):7.3f} s ({rate:4.0f} G multiply-adds/s"
            f" of matrices); edgeinfer {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    sys.exit(main())
