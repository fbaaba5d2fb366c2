"""`edgeinfer pack --calibrate`: another order of neurons, the same answers, and texts and models that are no use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.neurons.order import Orders, natural, orders_in
from edgeinfer.engine.offload.neurons.order import calibrated
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from scripts.sparse_model import SparseShape, write_sparse
from tests.app.sparse_disks import DISKS, measured
from tests.conftest import write_tiny_llama
from tests.unit.backends.cpu.neurons.neuron_layers import layers_of

SHAPE = SparseShape(256, 6, 4096, 4, 2, 268, group=32)
RAM = ("--ram", "9MB")
TEXT = "the rain in the north is another rain than that in the south. " * 3
T = "0.2"


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module", params=["relu", "silu"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is read by neurons, of itself or with a threshold."""
    folder = tmp_path_factory.mktemp(request.param)
    shape = replace(SHAPE, activation=request.param)
    write_sparse(shape, write_tiny_llama(folder / "tokenizer.gguf"), folder / f"{request.param}.gguf")
    return folder / f"{request.param}.gguf"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def approx(model: Path) -> tuple[str, ...]:
    return ("--approx", T) if model.stem == "silu" else ()


def tokens(model: Path) -> list[int]:
    given = ("--raw", "--temp", "0", "--max-tokens", "12", "--ctx", "128", "--device", "cpu", "--json")
    result = run("run", "-m", str(model), *given, *RAM, *approx(model), "the rain")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["weights_read_bytes"] > 0
    return list(record["tokens"])


def orders(model: Path, path: Path) -> Orders:
    with open_model(model, approx=float(T) if approx(model) else None) as opened:
        contents = contents_of(opened.spec, opened.file.tensors)
        with BundleFile.open(path, contents, fingerprint(opened.file)) as bundles:
            return orders_in(path, bundles.table, layers_of(opened))


def test_a_calibrated_file_is_used_and_changes_no_token(model: Path, text: Path, home: Path) -> None:
    measured(DISKS["by neurons"])
    before = tokens(model)
    (path,) = (home / "bundles").glob("*.bundles")
    is_natural = orders(model, path)
    result = run("pack", str(model), *approx(model), "--calibrate", str(text), "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert (record["state"], record["path"]) == ("packed", str(path))
    assert 0.02 < record["firing_share"] < 0.9
    assert record["n_tokens"] >= 64
    assert record["reads"] < record["reads_by_number"]
    ordered = orders(model, path)
    for one, other in zip(is_natural, ordered, strict=True):
        assert np.array_equal(one, np.arange(SHAPE.ffn))
        assert not np.array_equal(one, other)
    assert tokens(model) == before
    assert all(map(np.array_equal, orders(model, path), ordered))  # running made no other file
    shown = run("pack", str(model), *approx(model), "--verify")
    assert "is whole" in shown.stdout


@pytest.mark.parametrize("model", ["relu"], indirect=True)
def test_what_fires_is_the_same_where_layers_are_read_whole(model: Path) -> None:
    measured(DISKS["whole"])
    with open_model(model) as opened:
        part, whole = (calibrated(opened, "it", TEXT, no_progress, ram_bytes) for ram_bytes in (9_000_000, None))
    assert part.firing_share == whole.firing_share
    assert all(map(np.array_equal, part.orders, whole.orders))


@pytest.mark.parametrize("model", ["relu"], indirect=True)
def test_an_order_can_be_repaired(model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.bundles"
    given = ("pack", str(model), *approx(model), "--out", str(path))
    assert run(*given, "--calibrate", str(text)).exit_code == 0
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    assert run(*given, "--verify").exit_code == 1
    assert run(*given, "--repair").exit_code == 0
    assert path.read_bytes() == whole
    damaged[-1] ^= 1  # the order itself: what is left is the order of numbers
    path.write_bytes(damaged)
    refused = run(*given)
    assert refused.exit_code == 1
    assert "order of neurons is damaged" in refused.stderr
    assert run(*given, "--repair").exit_code == 0
    with open_model(model, approx=float(T) if approx(model) else None) as opened:
        expected = natural(layers_of(opened))
    assert all(map(np.array_equal, orders(model, path), expected))


@pytest.mark.parametrize("model", ["silu"], indirect=True)
def test_texts_and_models_that_are_no_use(model: Path, text: Path, tmp_path: Path) -> None:
    short, odd = tmp_path / "short.txt", tmp_path / "odd.txt"
    short.write_text("the rain")
    odd.write_bytes(b"\xff\xfe\x00")
    given = ("pack", str(model), *approx(model), "--calibrate")
    for path, why in ((short, "tokens, and 64 at least"), (odd, "not UTF-8"), (tmp_path / "none", "cannot be read")):
        result = run(*given, str(path))
        assert result.exit_code == 1
        assert why in result.stderr
    assert "give one of them" in run(*given, str(text), "--verify").stderr
    small = tmp_path / "small.gguf"
    write_sparse(replace(SHAPE, vocabulary=64), write_tiny_llama(tmp_path / "tokenizer.gguf"), small)
    assert "a tokenizer of 268 tokens and a model of 64" in run("pack", str(small), "--calibrate", str(text)).stderr
    plain = run("pack", str(model), "--calibrate", str(text))
    assert plain.exit_code == 1
    assert "--approx makes some" in plain.stderr
