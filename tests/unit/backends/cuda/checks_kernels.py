"""Each op as a fragment of its own on the CUDA device, against its NumPy twin; run under the simulator."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.driver import Driver
from edgeinfer.backends.cuda.kernels import intrinsics
from edgeinfer.backends.cuda.layout import IntegerForm, form_of
from edgeinfer.backends.cuda.packing import packed_rows
from edgeinfer.backends.meanings import round_activations, round_numbers
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.graph.activations import ACTIVATIONS
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, PagedKV, Rows, Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.add_scaled import AddScaled
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.layer_norm import LayerNorm, layer_norm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm, rms_norm
from edgeinfer.graph.ops.rope import Rope, rotate
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import FORMATS, BlockFormat, decode_rows, format_of
from edgeinfer.settings import KVKind
from tests.golden.goldens import DATA
from tests.unit.backends.cuda import quick_blocks

Floats = NDArray[np.float32]
FILES = sorted(DATA.glob("*.gguf"))
quick_blocks.install()


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice(Driver())


def file_with(format_name: str) -> tuple[GGUFFile, str]:
    """A file and a matrix of it of this format: a golden file's, or one of random blocks."""
    for path in FILES:
        file = GGUFFile.open(path)
        for name, info in file.tensors.items():
            if len(info.shape) == 2 and format_of(info.ggml_type).name == format_name:
                return file, name
        file.close()
    if format_name == "NVFP4_SCALED64":
        return scaled_file(), "a.weight"
    shape = ModelShape(256, 256, heads=2, kv_heads=1, head_width=128, n_layers=1, n_vocab=32, n_context=64)
    return synthetic_model(shape, format_name, seed=1).file, "blk.0.attn_q.weight"


def scaled_file() -> GGUFFile:
    """A matrix of NVFP4 whose rows are no multiple of 256, with its scale."""
    raw = np.random.default_rng(0).integers(0x20, 0x30, (32, 3 * 36), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaled.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("a.weight", raw, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
        writer.add_tensor("a.scale", np.full(1, 0.3, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return GGUFFile.open(path)


def spec_of(
    ops: tuple[Op, ...], buffers: tuple[Buffer, ...], kv: tuple[PagedKV, ...] = (), heads: int = 1
) -> ModelSpec:
    return ModelSpec(
        *("llama", "part", 1, 32, heads, 1, 16, 32, 264, 256), buffers, (Stage("part", ops),), kv, buffers[-1].name
    )


def step_of(n_tokens: int, first: int = 0, outputs: tuple[int, ...] = (), tokens: object = None) -> Step:
    """The next tokens of one sequence whose pages lie in no order."""
    table = np.array([[2, 0, 3]], np.int32)
    positions = np.arange(first, first + n_tokens, dtype=np.int32)
    slots = (table[0, positions // PAGE] * PAGE + positions % PAGE).astype(np.int32)
    zeros = np.zeros(n_tokens, np.int32)
    ids = zeros if tokens is None else np.array(tokens, np.int32)
    batch = Batch(ids, zeros, positions, np.arange(-1, n_tokens - 1, dtype=np.int32), np.array(outputs, np.int32))
    return Step(batch, zeros, slots, np.full(n_tokens, first, np.int32), table)


def run(
    device: CudaDevice, file: GGUFFile, spec: ModelSpec, inputs: Mapping[str, Floats], output: str, step: Step
) -> Floats:
    """What a fragment of these ops makes of some inputs."""
    fragment = Fragment(spec, tuple(inputs), (output,))
    lane = device.compile_fragment(fragment, file, Limits(192, 4, 16, 8))
    lane.submit(step, inputs)
    found = lane.wait()[output].copy()
    lane.close()
    return found


def normal(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def close(found: Floats, expected: Floats, tolerance: float = 3e-6) -> bool:
    """Within `tolerance` of the size of the expected numbers."""
    return bool(np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected))


FORMAT_NAMES = [entry.name for entry in FORMATS.entries().values()]


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name != "MXFP4"])
def test_products(device: CudaDevice, name: str) -> None:
    """Seven rows, and token counts for every tile; the bits of a token do not depend on the others."""
    file, tensor = file_with(name)
    columns = file.tensors[tensor].shape[1]
    weight = Weight(tensor, 1, 8, columns)
    spec = spec_of((MatMul("x", "y", weight),), (Buffer("x", columns), Buffer("y", 7)))
    x = normal(11, columns)
    found = {count: run(device, file, spec, {"x": x[:count]}, "y", step_of(count)) for count in (1, 2, 3, 11)}
    source = round_activations(x) if isinstance(format_of(file.tensors[tensor].ggml_type), BlockFormat) else x
    assert close(found[11], source @ weights.matrix(file, weight).T)
    for count, rows in found.items():
        assert rows.tobytes() == found[11][:count].tobytes()


def test_products_with_float32_scales(device: CudaDevice) -> None:
    """MXFP4, of which no golden file has a matrix: random blocks, by the kernel alone."""
    quant = FORMATS.get("mxfp4")
    assert isinstance(quant, BlockFormat)
    random = np.random.default_rng(5)
    raw = random.integers(0, 256, (5, 3, 17), dtype=np.uint8)
    raw[..., 0] = random.integers(120, 131, (5, 3))
    raw = raw.reshape(5, -1)
    form = form_of(quant)
    assert isinstance(form, IntegerForm)
    assert form.scales == "float"
    packed = packed_rows(raw, quant, form)
    x = normal(2, 96)
    scale = np.abs(x.reshape(2, 3, 32)).max(axis=-1) / np.float32(127)
    codes = np.rint(round_activations(x).reshape(2, 3, 32) / scale[..., None]).astype(np.int8)
    sums = codes.reshape(2, 6, 16).sum(axis=-1, dtype=np.int32)
    out = np.zeros(10, np.float32)
    words, numbers = packed["codes"].reshape(-1).view(np.uint32), packed["scales"].reshape(-1).view(np.float32)
    kernel = device.driver.kernels.get("products", "integer_product", *form.constants, 2)
    high = packed["high"].reshape(-1).view(np.uint32)
    sources = (words, high, numbers, words.view(np.uint16), codes.reshape(-1).view(np.uint32), scale.reshape(-1))
    grid, block = (2, 1, 1), (device.driver.sizes.lanes, 4)
    kernel[grid, block, device.driver.stream()](*sources, sums.reshape(-1), out, out, 5, 3, 2, 5, 0)
    assert close(out.reshape(2, 5), round_activations(x) @ decode_rows(raw, quant).T)


@pytest.mark.parametrize("model", ["qwen2-q4_0", "qwen2-f16"])
def test_products_with_bias_that_are_added(device: CudaDevice, model: str) -> None:
    file = GGUFFile.open(DATA / f"{model}.gguf")
    columns = file.tensors["blk.0.attn_q.weight"].shape[1]
    weight, bias = Weight("blk.0.attn_q.weight", 3, 24, columns), Weight("blk.0.attn_q.bias", 3, 24, 1)
    spec = spec_of((MatMul("x", "y", weight, bias, accumulate=True),), (Buffer("x", columns), Buffer("y", 21)))
    x, y = normal(3, columns), normal(3, 21)
    found = run(device, file, spec, {"x": x, "y": y}, "y", step_of(3))
    source = x if model.endswith("f16") else round_activations(x)
    assert close(found, y + source @ weights.matrix(file, weight).T + weights.vector(file, bias))


def test_products_of_blocks_of_zeros(device: CudaDevice) -> None:
    file = GGUFFile.open(DATA / "qwen2-q4_0.gguf")
    weight = Weight("blk.0.attn_q.weight", 0, 4, 64)
    spec = spec_of((MatMul("x", "y", weight),), (Buffer("x", 64), Buffer("y", 4)))
    x = np.zeros((2, 64), np.float32)
    x[1, 40] = 1e-31
    assert not run(device, file, spec, {"x": x}, "y", step_of(2)).any()


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name != "MXFP4"])
def test_embeddings(device: CudaDevice, name: str) -> None:
    file, tensor = file_with(name)
    n_rows, columns = file.tensors[tensor].shape
    weight, tokens = Weight(tensor, 0, n_rows, columns), [5, 0, n_rows - 1]
    spec = spec_of((Embed(weight, "x", 1.5),), (Buffer("x", columns),))
    found = run(device, file, spec, {}, "x", step_of(3, tokens=tokens))
    expected = weights.matrix(file, weight)[tokens] * np.float32(1.5)
    assert np.allclose(found, expected, rtol=3e-7, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("model", ["opt-q4_0", "opt-f16"])
def test_learned_positions(device: CudaDevice, model: str) -> None:
    """From position 62 on, which is row 64 of the table."""
    file, width = GGUFFile.open(DATA / f"{model}.gguf"), 64 if model == "opt-q4_0" else 32
    table, learned = Weight("token_embd.weight", 0, 264, width), Weight("position_embd.weight", 2, 98, width)
    spec = spec_of((Embed(table, "x"), PositionEmbed(learned, "x")), (Buffer("x", width),))
    found = run(device, file, spec, {}, "x", step_of(3, 62, tokens=[7, 1, 200]))
    expected = weights.matrix(file, table)[[7, 1, 200]] + weights.matrix(file, learned)[62:65]
    assert np.allclose(found, expected, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("out", ["x", "y"])
@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, False), (False, True)])
def test_layer_norms(device: CudaDevice, out: str, weighted: bool, biased: bool) -> None:
    file = GGUFFile.open(DATA / "opt-f32.gguf")
    weight = Weight("blk.0.attn_norm.weight", 0, 20, 1) if weighted else None
    bias = Weight("blk.0.attn_norm.bias", 0, 20, 1) if biased else None
    op = LayerNorm("x", out, weight, bias, 20, 1e-5)
    x = normal(3, 20) + np.float32(2)
    found = run(device, file, spec_of((op,), (Buffer("x", 20), Buffer("y", 20))), {"x": x}, out, step_of(3))
    held = (None if part is None else weights.vector(file, part) for part in (weight, bias))
    assert close(found, layer_norm(x, *held, 1e-5), 2e-6)


@pytest.mark.parametrize(
    ("groups", "width", "out", "weighted"),
    [(1, 20, "y", True), (3, 16, "y", True), (1, 20, "x", True), (3, 16, "x", False)],
)
def test_norms(device: CudaDevice, groups: int, width: int, out: str, weighted: bool) -> None:
    file = GGUFFile.open(DATA / "llama-q8_0.gguf")
    weight, total = Weight("blk.0.attn_norm.weight", 0, width, 1) if weighted else None, groups * width
    op = RMSNorm("x", out, weight, width, 1e-5, groups)
    x = normal(3, total)
    found = run(device, file, spec_of((op,), (Buffer("x", total), Buffer("y", total))), {"x": x}, out, step_of(3))
    held = None if weight is None else weights.vector(file, weight)
    assert close(found, rms_norm(x, held, groups, 1e-5), 1e-6)


def test_rotations(device: CudaDevice) -> None:
    """Heads of 20 of which 12 turn, from position 62 on."""
    table = RopeTable(10000.0, 12)
    x = normal(4, 60)
    spec = spec_of((Rope("x", 3, 20, table),), (Buffer("x", 60),))
    found = run(device, GGUFFile.open(FILES[0]), spec, {"x": x}, "x", step_of(4, 62))
    assert close(found, rotate(x, 3, *(part[62:66] for part in rope.rotations(table, 192))), 1e-6)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(device: CudaDevice, activation: str) -> None:
    gate, up = normal(3, 45) * np.float32(8), normal(3, 45)
    gate[0, :3] = -100, 100, -87.5
    op = GatedAct("gate", "up", "out", 45, activation)  # type: ignore[arg-type]
    plain = Act("gate", "out", 45, op.activation)
    buffers = tuple(Buffer(name, 45) for name in ("gate", "up", "out"))
    found = run(device, GGUFFile.open(FILES[0]), spec_of((op,), buffers), {"gate": gate, "up": up}, "out", step_of(3))
    assert np.allclose(found, ACTIVATIONS[activation](gate) * up, rtol=1e-5, atol=1e-5)
    found = run(device, GGUFFile.open(FILES[0]), spec_of((plain,), buffers), {"gate": gate}, "out", step_of(3))
    assert np.allclose(found, ACTIVATIONS[activation](gate), rtol=1e-5, atol=1e-5)


def test_sums_caps_scales_and_taken_rows(device: CudaDevice) -> None:
    buffers = (Buffer("a", 45), Buffer("b", 45), Buffer("c", 45, Rows.OUTPUTS))
    sums = Add("a", "b", 45), AddScaled("a", "b", 45, adapter=0, factor=0.5, scale=-3.0)
    ops = (*sums, SoftCap("b", 45, 3.0), Scale("b", 45, 0.5), TakeOutputs("b", "c", 45))
    a, b = normal(4, 45), normal(5, 45)[:4] * np.float32(5)
    step = step_of(4, outputs=(1, 3))
    found = run(device, GGUFFile.open(FILES[0]), spec_of(ops, buffers), {"a": a, "b": b}, "c", step)
    assert close(found, (np.float32(1.5) * np.tanh((b - a / 2) / np.float32(3)))[[1, 3]], 1e-6)


def attended(q: Floats, k: Floats, v: Floats, kv: KVKind, op: Attention) -> Floats:
    """Attention of all positions by the formula, over keys and values rounded as the cache rounds them."""
    k, v = (x.reshape(len(x), op.kv_heads, -1) for x in (k, v))
    k, v = (half_rounded(x) if kv == "f16" else round_numbers(x, "q8") for x in (k, v))
    out = np.zeros((len(q), op.heads, op.value_width), np.float32)
    for token in range(len(q)):
        lowest = 0 if op.window is None else max(0, token - op.window + 1)
        for head in range(op.heads):
            group = head * op.kv_heads // op.heads
            query = q[token].reshape(op.heads, -1)[head] * np.float32(op.scale)
            scores = k[lowest : token + 1, group] @ query
            scores = scores if op.soft_cap is None else op.soft_cap * np.tanh(scores / op.soft_cap)
            powers = np.exp(scores - scores.max())
            out[token, head] = powers @ v[lowest : token + 1, group] / powers.sum()
    return out.reshape(len(q), -1)


def half_rounded(x: Floats) -> Floats:
    rounded: Floats = x.astype(np.float16).astype(np.float32)
    return rounded


@pytest.mark.parametrize(
    ("kv", "window", "cap", "widths", "heads"),
    [
        ("f16", None, None, (20, 20), 4),
        ("q8", 30, 4.0, (36, 36), 2),
        ("f16", 12, 9.0, (8, 8), 18),
        ("f16", None, None, (48, 33), 4),
        ("q8", None, None, (36, 72), 2),
    ],
)
def test_attention(
    device: CudaDevice, kv: KVKind, window: int | None, cap: float | None, widths: tuple[int, int], heads: int
) -> None:
    """Nine tokens after 58 of two kv heads, in a pass that does not split attention and in passes that do."""
    op, (key, value) = Attention("q", "out", 0, heads, 2, *widths, 0.3, window, cap), widths
    buffers = (Buffer("q", heads * key), Buffer("k", 2 * key), Buffer("v", 2 * value), Buffer("out", heads * value))
    store, kv_layer = StoreKV("k", "v", 0, 2, *widths), (PagedKV(2, *widths, window),)
    q, k, v = normal(67, heads * key), normal(68, 2 * key)[:67], normal(69, 2 * value)[:67]
    limits, file = Limits(192, 4, 64, 8, kv), GGUFFile.open(FILES[0])
    filling = device.compile_fragment(
        Fragment(spec_of((store,), buffers, kv_layer, heads), ("k", "v"), ()), file, limits
    )
    filling.submit(step_of(58), {"k": k[:58], "v": v[:58]})
    filling.wait()
    pages = np.arange(4, dtype=np.int32)
    fragment = Fragment(spec_of((store, op), buffers, kv_layer, heads), ("q", "k", "v"), ("out",))
    found: list[Floats] = []
    for cuts in ((58, 67), (58, 59, 67)):
        lane = device.compile_fragment(fragment, file, limits)
        lane.write_pages(pages, filling.read_pages(pages))
        parts: list[Floats] = []
        for first, end in itertools.pairwise(cuts):
            rows = slice(first, end)
            lane.submit(step_of(end - first, first), {"q": q[rows], "k": k[rows], "v": v[rows]})
            parts.append(lane.wait()["out"].copy())
        found.append(np.concatenate(parts))
        lane.close()
    assert found[0].tobytes() == found[1].tobytes()
    assert close(found[0], attended(q, k, v, kv, op)[58:], 3e-6)


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_slots_are_copied_in_order(device: CudaDevice, kv: KVKind) -> None:
    spec = dataclasses.replace(spec_of((), (Buffer("x", 32),)), kv=(PagedKV(2, 20, 20), PagedKV(1, 33, 7)))
    lane = device.compile_fragment(Fragment(spec, (), ()), GGUFFile.open(FILES[0]), Limits(192, 3, 16, 8, kv))
    pages = np.arange(3, dtype=np.int32)
    contents = np.random.default_rng(0).integers(0, 256, lane.read_pages(pages).shape, dtype=np.uint8)
    lane.write_pages(pages, contents)
    lane.copy_slots(np.array([3, 70, 5, 9], np.int32), np.array([70, 100, 3, 5], np.int32))
    twin = slots_of(contents, spec, kv)
    for source, target in ((3, 70), (70, 100), (5, 3), (9, 5)):
        for pool in twin:
            pool[target] = pool[source]
    for found, expected in zip(slots_of(lane.read_pages(pages), spec, kv), twin, strict=True):
        assert np.array_equal(found, expected)
    lane.close()


def slots_of(contents: NDArray[np.uint8], spec: ModelSpec, kv: KVKind) -> list[NDArray[np.uint8]]:
    """Pages as the slots of each pool: keys, their scales, values and theirs, layer after layer."""
    pools: list[NDArray[np.uint8]] = []
    start = 0
    for layer in spec.kv:
        for width in (layer.key_width, layer.value_width):
            numbers = layer.kv_heads * -(-width // (8 if kv == "f16" else 32)) * (16 if kv == "f16" else 32)
            scales = 0 if kv == "f16" else layer.kv_heads * -(-width // 32) * 2
            for size in (numbers, scales):
                part = contents[:, start : start + size * PAGE]
                pools.append(part.reshape(len(contents) * PAGE, size).copy())
                start += size * PAGE
    assert start == contents.shape[1]
    return pools


def test_dot_products_of_bytes() -> None:
    numbers = np.random.default_rng(3).integers(-128, 128, (2, 200, 4)).astype(np.int8)
    numbers[:, 0] = -128
    words = numbers.view(np.uint32)[..., 0]
    expected = (numbers[0].astype(np.int32) * numbers[1].astype(np.int32)).sum(axis=1) + 7
    assert [intrinsics.dp4a(a, b, np.int32(7)) for a, b in zip(*words, strict=True)] == expected.tolist()


def test_bit_patterns_of_floats() -> None:
    bits = np.arange(0, 65536, 7, dtype=np.uint16)
    finite = bits[np.isfinite(bits.view(np.float16))]
    assert all(intrinsics.half_of(b) == b.view(np.float16) for b in finite)
    assert all(intrinsics.half_bits(b.view(np.float16).astype(np.float32)) == b for b in finite)
    assert intrinsics.float_of(np.uint32(0x3FC00000)) == 1.5
    assert intrinsics.half_bits(np.float32(1e30)) == 0x7C00


def test_loads_are_aligned() -> None:
    numbers = np.arange(8, dtype=np.uint32)
    assert intrinsics.load4(numbers, 4) == (4, 5, 6, 7)
    assert intrinsics.load2(numbers, 2) == (2, 3)
    with pytest.raises(AssertionError):
        intrinsics.load4(numbers, 2)
