"""Rotary frequencies against transformers: stored for the golden models, and computed where transformers is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import Stage
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import open_model
from edgeinfer.models.rope import frequencies, growing_table, rope_table, rotations

GOLDENS = Path(__file__).parents[2] / "golden" / "data"
RESULTS = sorted(GOLDENS.glob("*.npz"))


def window_of(stage: Stage) -> int | None:
    """Of its attention."""
    (window,) = [op.window for op in stage.ops if isinstance(op, Attention)]
    return window


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.stem)
def test_tables_of_golden_models(results: Path) -> None:
    with np.load(results) as held:
        n_context, expected = int(held["n_context"]), dict(held)
    if "judge" in expected:
        pytest.skip("llama.cpp does not tell its tables")
    with open_model(GOLDENS / f"{results.stem.partition('@')[0]}.gguf", n_context) as model:
        rotated = [(op, stage) for stage in model.spec.stages for op in stage.ops if isinstance(op, Rope)]
        layers = [(op, window_of(stage)) for op, stage in rotated if op.table.scaling != "still"]
        if "frequencies" not in expected and "local_frequencies" not in expected:
            assert not layers  # positions are learned
            return
        assert layers
        for op, window in layers:
            local = "local_frequencies" in expected and window is not None
            table = frequencies(op.table, weights.rope_factors(model.file, op.table))
            known = expected["local_frequencies" if local else "frequencies"]
            np.testing.assert_allclose(table, known, rtol=1e-6, atol=1e-30)  # what does not turn at all is near zero
            assert op.table.magnitude == pytest.approx(1.0 if local else float(expected["magnitude"]), rel=1e-6)


def transformers_tables(kind: str, width: int, base: float, **settings: object) -> tuple[np.ndarray, float]:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    own = {"rope_type": kind, "rope_theta": base, **settings}
    config = LlamaConfig(hidden_size=4 * width, num_attention_heads=4, head_dim=width, rope_parameters=own)
    inverse, magnitude = rope.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return inverse.numpy(), magnitude


@pytest.mark.parametrize("factor", [1.5, 4.0, 32.0])
@pytest.mark.parametrize("original", [64, 4096, 32768])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (8.0, 2.0), (4.0, 4.0)])
@pytest.mark.parametrize(("width", "base"), [(128, 1e4), (64, 1e6), (16, 5e5)])
def test_yarn_is_transformers(factor: float, original: int, fast: float, slow: float, width: int, base: float) -> None:
    settings = {"factor": factor, "original_max_position_embeddings": original, "beta_fast": fast, "beta_slow": slow}
    expected, _ = transformers_tables("yarn", width, base, **settings)
    table = RopeTable(base, width, "yarn", factor, original, fast, slow)
    np.testing.assert_allclose(frequencies(table), expected, rtol=2e-6)


@pytest.mark.parametrize("factor", [2.0, 7.5])
def test_linear_is_transformers(factor: float) -> None:
    expected, _ = transformers_tables("linear", 64, 1e4, factor=factor)
    np.testing.assert_allclose(frequencies(RopeTable(1e4, 64, "linear", factor)), expected, rtol=1e-6)


def test_factors_divide() -> None:
    factors = np.array([1.0, 2.0, 4.0], np.float32)
    table = RopeTable(1e4, 6, factors="rope_freqs.weight")
    np.testing.assert_allclose(frequencies(table, factors), frequencies(RopeTable(1e4, 6)) / factors)


@pytest.mark.parametrize("factors", [[1.0, 0.0], [1.0, -2.0], [1.0, np.nan], [1.0, np.inf], [1.0], [1.0, 1.0, 1.0]])
def test_bad_factors_are_refused(factors: list[float]) -> None:
    table = RopeTable(1e4, 4, factors="rope_freqs.weight")
    with pytest.raises(BadGGUF, match=r"rope_freqs\.weight must hold 2 finite numbers"):
        frequencies(table, np.array(factors, np.float32))


def test_rotations_are_exact_far_out() -> None:
    table = RopeTable(1e6, 8, magnitude=1.25)
    cosines, sines = rotations(table, 100_001)
    angles = np.arange(100_001, dtype=np.float64)[:, None] * 1e6 ** -(np.arange(0, 8, 2) / 8)
    assert cosines.dtype == sines.dtype == np.float32
    np.testing.assert_allclose(cosines, 1.25 * np.cos(angles), atol=2e-7)
    np.testing.assert_allclose(sines, 1.25 * np.sin(angles), atol=2e-7)


def test_rotations_from_a_later_position_are_the_same() -> None:
    table = RopeTable(1e4, 10)
    for whole, part in zip(rotations(table, 700), rotations(table, 700, first=333), strict=True):
        assert part.tobytes() == whole[333:].tobytes()


@pytest.mark.parametrize(("n_context", "grows"), [(20, False), (21, True)])
def test_queries_grow_only_beyond_the_original_context(n_context: int, grows: bool) -> None:
    with open_model(GOLDENS / "mistral3-f32.gguf", n_context) as model:
        tables = {op.table for op in model.spec.ops() if isinstance(op, Rope)}
    assert sorted(table.growth_period for table in tables) == ([0, 20] if grows else [0])


def test_growing_rotations_are_those_of_the_table_times_the_growth() -> None:
    table = RopeTable(1e4, 16)
    plain, grown = (np.stack(rotations(each, 65)) for each in (table, replace(table, growth=0.5, growth_period=32)))
    np.testing.assert_array_equal(grown[:, :32], plain[:, :32])
    np.testing.assert_allclose(grown[:, 32:64], plain[:, 32:64] * (1 + 0.5 * np.log(2)), rtol=1e-6)
    np.testing.assert_allclose(grown[:, 64], plain[:, 64] * (1 + 0.5 * np.log(3)), rtol=1e-6)


def test_parts_of_heads_do_not_grow() -> None:
    with open_model(GOLDENS / "mistral3-f32.gguf", 64) as model:
        hp = Hyperparameters(model.file.metadata, model.file.tensors, 64)
        with pytest.raises(UnsupportedModel, match=r"temperature_scale is 0\.4.* whole heads are rotated"):
            growing_table(hp, rope_table(hp, 4), 8)


@pytest.mark.parametrize(("family", "name"), [("qwen2_vl", "Qwen2VLVision"), ("pixtral", "PixtralVision")])
def test_frequencies_that_begin_again_for_each_axis_are_transformers(family: str, name: str) -> None:
    configs = pytest.importorskip(f"transformers.models.{family}.configuration_{family}")
    models = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    import torch

    rotary = getattr(models, f"{name}RotaryEmbedding")(getattr(configs, f"{name}Config")())
    places = np.indices((5, 7)).reshape(2, -1)  # heights and widths
    cosines, _ = rotary(torch.zeros(1), torch.from_numpy(places.T.copy()))
    half = cosines.shape[-1] // 2
    quarter, pair = half // 2, np.arange(half)
    steps = pair % quarter if family == "qwen2_vl" else 2 * (pair % quarter) + pair // quarter
    width = half if family == "qwen2_vl" else 2 * half
    table = RopeTable(1e4, 2 * half, given=tuple((1e4 ** (-2.0 * steps / width)).tolist()))
    axes = RopeSections(0, quarter, half - quarter).axes()
    found = rotations(table, 7)[0][np.stack([places[0] * 0, *places])[axes].T, pair]
    np.testing.assert_allclose(found, cosines.numpy().reshape(-1, 2 * half)[:, :half], atol=2e-6)


def test_given_frequencies_are_scaled_and_rotate_as_others() -> None:
    plain = RopeTable(1e4, 8)
    given = RopeTable(7.0, 8, given=tuple(frequencies(plain).tolist()))
    for one, other in zip(rotations(plain, 90), rotations(given, 90), strict=True):
        assert one.tobytes() == other.tobytes()
    halved = replace(given, scaling="linear", factor=2.0)
    np.testing.assert_array_equal(frequencies(halved), frequencies(plain) / 2)


@pytest.mark.parametrize("n_given", [1, 3, 5])
def test_another_number_of_frequencies_than_pairs_is_refused(n_given: int) -> None:
    with pytest.raises(ValueError, match=f"{n_given} frequencies for 4 rotary pairs"):
        frequencies(RopeTable(1e4, 8, given=(1.0,) * n_given))
