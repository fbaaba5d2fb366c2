"""Layers by active neurons alone give the bits of whole products, and cut activations those of their definition."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.neurons.kernels.layout import neuron_layout
from edgeinfer.backends.meanings import round_activations
from edgeinfer.graph import activations
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.load import open_model
from edgeinfer.models.quants import FORMATS
from edgeinfer.models.variants import SMOOTH
from tests.golden.goldens import Golden
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, UNTOUCHED, buffer, call, count_of, same_bits
from tests.unit.backends.cpu.neurons.sparse_layers import Floats, Layer, drawn, gates, random_matrix

TOKENS = (1, 2, 3, 8, 17)
ZEROS = (0.0, 0.5, 0.9, 1.0)
LAYERS = [
    ("q4_0", "q4_0", 96, 352),
    ("q4_1", "q4_1", 352, 352),
    ("q8_0", "q8_0", 64, 320),
    ("q5_0", "q5_1", 96, 352),
    ("q4_0", "q5_0", 96, 352),
    ("q8_0", "iq4_nl", 96, 352),
    ("q4_k", "q8_0", 256, 352),
    ("q6_k", "q4_0", 256, 352),
    ("q4_0", "f16", 96, 350),
    ("q8_0", "f32", 96, 350),
    (None, "q4_0", 96, 352),
    (None, "q4_1", 45, 352),
    (None, "q8_0", 96, 320),
    (None, "bf16", 96, 350),
    (None, "f32", 45, 350),
]
"""Formats of up and down matrix, width and neurons: odd numbers of blocks and units, padded rows."""


def check(layer: Layer, n_tokens: int, zeros: float, *, has_bias: bool = False, accumulate: int = 0) -> None:
    """Both ways, of random activations."""
    normed, seed = drawn(n_tokens, layer.width, seed=3), int(10 * zeros) + n_tokens
    check_of(layer, normed, gates(n_tokens, layer.n_neurons, zeros, seed), has_bias=has_bias, accumulate=accumulate)


def check_of(layer: Layer, normed: Floats, gate: Floats, *, has_bias: bool = False, accumulate: int = 0) -> None:
    """Both ways, with different workers and cuts."""
    n_tokens = len(normed)
    bias = drawn(1, layer.n_neurons, seed=4)[0] if has_bias and layer.up is not None else None
    before = buffer(drawn(n_tokens + 1, layer.width, seed=5))
    ends = {"accumulate": accumulate, "bias": buffer(drawn(1, layer.width, seed=6))[0], "bias_stride": 128 * has_bias}
    whole = before.copy()
    hidden = layer.whole(normed, gate, bias, whole, **ends)
    n_active = int(np.count_nonzero((gate > 0).any(axis=0)))
    assert len(layer.activated(gate, 1)[1]) == n_active
    assert not same_bits(whole[:n_tokens], before[:n_tokens])
    for workers, cuts in ((1, []), (2, [3]), (3, [1, 2, 8]), (5, [])):
        out = before.copy()
        found = layer.sparse(normed, gate, bias, out, workers, cuts, **ends)
        assert np.array_equal(found, hidden)
        assert not (found == UNTOUCHED).any()
        assert same_bits(out, whole)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize(("up", "down", "width", "n_neurons"), LAYERS)
def test_sparse_layers_have_the_bits_of_whole_ones(
    library: KernelLibrary, up: str | None, down: str, width: int, n_neurons: int, zeros: float
) -> None:
    layer = Layer.random(library, RUNNABLE[0], up, down, width, n_neurons)
    for n_tokens in TOKENS:
        check(layer, n_tokens, zeros, accumulate=n_tokens % 2, has_bias=n_tokens != 3)


@pytest.mark.parametrize("name", ["opt-sparse-q4_0", "llama-relu-sparse-q4_1", "llama-relu-sparse-q8_0"])
def test_layers_of_golden_models(library: KernelLibrary, name: str) -> None:
    """Matrices of a file with the zeros that its biases make."""
    with open_model(Golden.read(name).model) as model:
        ops = [op for op in model.spec.stages[2].ops if isinstance(op, MatMul)]
        before = next(op for op in ops if op.out == ("gate" if len(ops) == 7 else "up"))
        up = next((op.weight for op in ops if op.out == "up"), None) if len(ops) == 7 else None
        down = ops[-1].weight
        assert before.bias is not None
        matrix, bias = weights.matrix(model.file, before.weight), weights.vector(model.file, before.bias)
        keys = [None if each is None else model.file.tensors[each.tensor].type_name.lower() for each in (up, down)]
        raw = [None if each is None else weights.raw_rows(model.file, each).copy() for each in (up, down)]
    assert keys[1] is not None
    assert raw[1] is not None
    layout = neuron_layout(None if keys[0] is None else FORMATS.get(keys[0]), FORMATS.get(keys[1]), *matrix.shape[::-1])
    assert layout is not None
    layer = Layer(library, RUNNABLE[0], keys[0], keys[1], matrix.shape[1], len(matrix), raw[0], raw[1], layout)
    for n_tokens in (1, 5):
        normed = drawn(n_tokens, layer.width, seed=n_tokens)
        gate = round_activations(normed) @ matrix.T + bias
        assert 0.75 < np.mean(gate <= 0) < 1
        check_of(layer, normed, gate)


@pytest.mark.parametrize("isa", RUNNABLE[1:])
@pytest.mark.parametrize("key", ["q4_0", "q8_0"])
def test_instruction_sets(library: KernelLibrary, key: str, isa: str) -> None:
    layer = Layer.random(library, isa, key, key, 160, 224)
    for n_tokens in (1, 7):
        check(layer, n_tokens, 0.7)


@pytest.mark.parametrize("n_tokens", [50, 64, 79])
@pytest.mark.parametrize("key", ["q4_0", "q4_1", "q8_0"])
def test_activations_in_large_tiles(library: KernelLibrary, key: str, n_tokens: int) -> None:
    """As they lie where there are tile registers."""
    layer = Layer.random(library, RUNNABLE[0], key, key, 96, 224)
    normed, gate = drawn(n_tokens, 96, seed=1), gates(n_tokens, 224, 0.9, 2)
    whole, out = buffer(np.zeros((n_tokens, 96), np.float32)), buffer(np.zeros((n_tokens, 96), np.float32))
    hidden = layer.whole(normed, gate, None, whole)
    assert np.array_equal(layer.sparse(normed, gate, None, out, 2, [2], tiled=1), hidden)
    assert same_bits(out, whole)


@pytest.mark.parametrize("key", ["q4_0", "q4_1", "q8_0", "q6_k"])
def test_gates_that_were_multiplied_with_the_up_matrix(library: KernelLibrary, key: str) -> None:
    """What dense models run: one kernel for both products and the activation."""
    layer = Layer.random(library, RUNNABLE[0], key, "q4_0", 256, 160)
    gate_rows, normed = random_matrix(key, 160, 256, 7), drawn(5, 256, seed=8)
    hidden, whole, out = layer.fused(gate_rows, normed), *(buffer(np.zeros((5, 256), np.float32)) for _ in range(2))
    layer.down_product(hidden, whole)
    found = layer.sparse(normed, layer.gate_product(gate_rows, normed), None, out, 2, [])
    assert 0.3 < np.mean(hidden == 0) < 0.7
    assert np.array_equal(found, hidden)
    assert same_bits(out, whole)


@pytest.mark.parametrize("down", ["q4_0", "q8_0", "f16"])
def test_no_active_neuron_can_be_left_out(library: KernelLibrary, down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer.random(library, RUNNABLE[0], None, down, 64, 128)
    normed, gate = drawn(3, 64, seed=1), gates(3, 128, 0.9, 2)
    whole, out = buffer(np.zeros((3, 64), np.float32)), buffer(np.zeros((3, 64), np.float32))
    layer.whole(normed, gate, None, whole)
    values, active = layer.activated(gate, 1)
    for missing in (0, len(active) // 2, len(active) - 1):
        monkeypatch.setattr(Layer, "activated", lambda *_, gone=missing: (values, np.delete(active, gone)))
        layer.sparse(normed, gate, None, out, 1, [])
        assert not same_bits(out, whole)


@pytest.mark.parametrize("strange", [np.nan, np.inf, 1e-40])
def test_every_value_that_is_not_zero_is_active(library: KernelLibrary, strange: float) -> None:
    layer = Layer.random(library, RUNNABLE[0], None, "f32", 64, 70)
    values = buffer(np.zeros((2, 70), np.float32))
    values[1, [3, 31, 32, 69]] = strange
    values[0, [5, 68]] = 0.0, -0.0
    assert layer.listed(values, 3).tolist() == [3, 31, 32, 69]


ROWS, WIDTH = 6, 90
THRESHOLDS = (0.05, 0.2, 3.0)


def with_extremes(seed: int) -> np.ndarray:
    """Ordinary values, with extremes among them."""
    values = 2 * np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)
    values[0, :8] = [0.0, -0.0, 1e-30, 20.0, -20.0, np.nan, 1e4, -1e4]
    return values


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("is_gated", [True, False])
def test_small_activations_are_zero(library: KernelLibrary, activation: str, threshold: float, is_gated: bool) -> None:
    gate, up = buffer(with_extremes(1)), buffer(np.nan_to_num(with_extremes(2)))
    plain = np.zeros_like(gate)
    sizes = {"stride": gate.strides[0], "n_vectors": gate.shape[1] // 16, "count": count_of(ROWS - 1)}
    call(library, catalogue.ACT[activation], 1, source=gate, other=gate, out=plain, **sizes)
    cut = activations.cut(plain, threshold)  # of our own activations, so that bits can be compared
    with np.errstate(invalid="ignore"):
        expected = cut * up if is_gated else cut
    kernel = (catalogue.CUT_GATED if is_gated else catalogue.CUT_ACT)[activation]
    for workers in (1, 2, 3, 5):
        out, kept = np.full_like(gate, 7.0), np.zeros((workers, records.COUNT_LINE // 8), np.int64)
        fields = {"source": gate, "other": up if is_gated else gate, "out": out, "kept": kept, "threshold": threshold}
        for _ in range(2):
            call(library, kernel, workers, **fields, **sizes)
        assert same_bits(out[: ROWS - 1], expected[: ROWS - 1])
        assert np.all(out[ROWS - 1] == 7.0)
        assert kept[:, 0].sum() == 2 * np.count_nonzero(cut[: ROWS - 1])
        assert not kept[:, 1:].any()
    assert 0 < np.count_nonzero(cut[: ROWS - 1]) < (ROWS - 1) * WIDTH


def test_a_value_at_the_threshold_is_kept() -> None:
    values = np.array([0.25, -0.25, np.nextafter(np.float32(0.25), np.float32(0)), np.nan], np.float32)
    assert activations.cut(values, 0.25).tolist() == [0.25, -0.25, 0.0, 0.0]
    assert activations.cut(values, 0.0) is values
