"""The encoder of the script that measures image encoders, on the cpu, against the same layers in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.weights import matrix, vector
from edgeinfer.graph.operands import Precision, Weight
from edgeinfer.models.gguf import GGUFFile
from scripts.measure_encoder import EPSILON, PATCHES, SHAPES, Ours, main, spec_of, write_file

SHAPE = SHAPES["tiny"]
Doubles = NDArray[np.float64]


@pytest.fixture(scope="module", params=["F16", "BF16", "F32"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / f"{request.param}.gguf"
    write_file(SHAPE, request.param, 64, path)
    return path


def patches() -> NDArray[np.float32]:
    return np.random.default_rng(3).uniform(-1, 1, (SHAPE.tokens, SHAPE.patch_width)).astype(np.float32)


def rows(path: Path, precision: Precision, threads: int = 2) -> NDArray[np.float32]:
    """What the cpu makes of the patches."""
    encoder = Ours(path, spec_of(SHAPE).with_precision(precision), patches(), threads)
    try:
        return encoder.encode()
    finally:
        encoder.close()


def plainly(path: Path) -> Doubles:
    """The same in float64."""
    width, ffn, heads = SHAPE.width, SHAPE.ffn, SHAPE.heads
    with GGUFFile.open(path) as file:

        def product(source: Doubles, name: str, n_rows: int, columns: int) -> Doubles:
            weight = matrix(file, Weight(f"{name}.weight", 0, n_rows, columns)).astype(np.float64)
            return source @ weight.T + vector(file, Weight(f"{name}.bias", 0, n_rows, 1))

        def norm(source: Doubles, name: str) -> Doubles:
            weight, bias = (vector(file, Weight(f"{name}.{part}", 0, width, 1)) for part in ("weight", "bias"))
            centred = source - source.mean(axis=1, keepdims=True)
            return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON) * weight + bias

        x = patches().astype(np.float64) @ matrix(file, Weight(PATCHES, 0, width, SHAPE.patch_width)).T
        x = x + vector(file, Weight("v.patch_embd.bias", 0, width, 1))
        x = x + matrix(file, Weight("v.position_embd.weight", 0, SHAPE.tokens, width))
        for number in range(SHAPE.layers):
            name = f"v.blk.{number}"
            normed = norm(x, f"{name}.ln1")
            query, key, value = (
                product(normed, f"{name}.attn_{part}", width, width).reshape(-1, heads, width // heads)
                for part in "qkv"
            )
            scores = np.einsum("qhk,shk->hqs", query, key) * (width // heads) ** -0.5
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            attended = np.einsum("hqs,shk->qhk", shares, value).reshape(-1, width)
            x = x + product(attended, f"{name}.attn_out", width, width)
            up = product(norm(x, f"{name}.ln2"), f"{name}.ffn_up", ffn, width)
            hidden = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            x = x + product(hidden, f"{name}.ffn_down", width, ffn)
        return norm(x, "v.post_ln")


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_rows_are_those_of_float64(encoder: Path, precision: Precision) -> None:
    found, expected = rows(encoder, precision), plainly(encoder)
    assert np.linalg.norm(found - expected) <= 3e-4 * np.linalg.norm(expected)  # keys and values are float16
    assert np.array_equal(rows(encoder, precision, 1), found)


def test_the_script_shows_seconds_and_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "tiny", "--alone", "--ops", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "edgeinfer" in shown
    assert "Attention" in shown
