"""Neurons in another order: every record is at its position, and no damaged order is ever used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.backends.cpu.bundles.bundling import Bundling, find_damage, mend
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.header import checksum, header_of, identity_of
from edgeinfer.backends.cpu.bundles.writing import PartFile, pack_bundles
from edgeinfer.backends.cpu.neurons.order import Orders, natural, order_bytes
from edgeinfer.errors import BadBundle
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA
from tests.unit.backends.cpu.bundles.bundle_models import Packable, packable, page_memory
from tests.unit.backends.cpu.neurons.neuron_layers import layers_of, runs

MODEL = "llama-relu-sparse-q8_0"


@pytest.fixture
def model() -> Iterator[Packable]:
    with packable(DATA / f"{MODEL}.gguf") as opened:
        yield opened


def shuffled(model: Packable, seed: int = 1) -> Orders:
    draw = np.random.default_rng(seed)
    return tuple(draw.permutation(len(order)).astype(np.int32) for order in natural(layers_of(model.model)))


def packed(model: Packable, path: Path, library: KernelLibrary, orders: Orders | None) -> Path:
    args = model.model.file, model.contents, model.fingerprint, library, 2, no_progress
    return pack_bundles(path, *args, None if orders is None else order_bytes(orders)).path


def records(bundles: BundleFile, layer: int) -> np.ndarray:
    """Of all neurons of a layer, as they lie: uint8[n_neurons, record_bytes]."""
    source, parts = bundles.source(), []
    for bundle in runs(bundles.contents, layer):
        memory = page_memory(bundle.padded_bytes)
        bundles.read(bundle.number, memory, source)
        parts.append(np.frombuffer(memory, np.uint8, bundle.nbytes).copy())
    source.close()
    return np.concatenate(parts).reshape(-1, bundles.contents.layers[layer].record_bytes)


def test_every_record_is_at_its_position(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    orders = shuffled(model)
    with (
        model.open(packed(model, tmp_path / "plain.bundles", library, None)) as plain,
        model.open(packed(model, tmp_path / "ordered.bundles", library, orders)) as ordered,
    ):
        assert np.array_equal(plain.table, order_bytes(natural(layers_of(model.model))))
        assert np.array_equal(ordered.table, order_bytes(orders))
        for layer, order in enumerate(orders):
            assert np.array_equal(records(ordered, layer), records(plain, layer)[order])
        assert find_damage(ordered, no_progress) == []


def test_any_changed_byte_of_the_order_is_found(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    path = packed(model, tmp_path / "it.bundles", library, shuffled(model))
    whole, start = path.read_bytes(), identity_of(model.contents, model.fingerprint).record_table_offset
    assert len(whole) - start == 4 * sum(map(len, natural(layers_of(model.model))))
    for place in range(start, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(BadBundle, match=r"order of neurons is damaged.*--repair"):
            model.open(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(BadBundle, match="cut short"):
        model.open(path)


@pytest.mark.parametrize("wrong", [0, -1, 10**6])
def test_an_order_that_is_no_permutation_is_refused_whatever_its_checksum(
    model: Packable, library: KernelLibrary, tmp_path: Path, wrong: int
) -> None:
    orders = shuffled(model)
    path, identity = (
        packed(model, tmp_path / "it.bundles", library, orders),
        identity_of(model.contents, model.fingerprint),
    )
    with model.open(path) as bundles:
        sums = [bundles.checksum(bundle.number) for bundle in model.contents.bundles]
    numbers = np.concatenate(orders)
    numbers[0 if orders[0][0] != wrong else 1] = wrong  # 0 is there already
    data = numbers.view(np.uint8)
    changed = bytearray(path.read_bytes())
    changed[identity.record_table_offset :] = data.tobytes()
    header = header_of(identity, bytes(16), np.array([*sums, checksum(data)], np.uint64))
    changed[: len(header)] = header
    path.write_bytes(changed)
    with pytest.raises(BadBundle, match=r"missing or there twice.*--repair"):
        model.open(path)


def test_damaged_neurons_are_mended_in_their_order(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    orders = shuffled(model)
    path = packed(model, tmp_path / "it.bundles", library, orders)
    before = path.read_bytes()
    own = runs(model.contents, 0)
    changed = bytearray(before)
    with model.open(path) as bundles:
        changed[bundles.offset(own[0].number) + 5] ^= 1
    path.write_bytes(changed)
    with model.open(path) as bundles:
        assert [damage.bundle for damage in find_damage(bundles, no_progress)] == own[:1]
        assembly = Assembly(model.model.file, model.contents, library, bundles.table)
        assert mend(bundles, own[:1], assembly, no_progress)
    assert path.read_bytes() == before


def test_half_a_file_of_another_order_is_not_gone_on_with(
    model: Packable, library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = packed(model, tmp_path / "whole.bundles", library, shuffled(model, 2)).read_bytes()
    path, finish = tmp_path / "it.bundles", PartFile.finish

    def stopped(_part: PartFile, _order: np.ndarray) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PartFile, "finish", stopped)
    with pytest.raises(KeyboardInterrupt):
        packed(model, path, library, shuffled(model, 1))
    monkeypatch.setattr(PartFile, "finish", finish)
    packed(model, path, library, shuffled(model, 2))
    assert path.read_bytes() == expected


def test_models_without_single_neurons_have_no_order(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "llama-q8_0.gguf") as model:
        path = packed(model, tmp_path / "it.bundles", library, None)
        identity = identity_of(model.contents, model.fingerprint)
        assert path.stat().st_size == identity.record_table_offset == identity.file_bytes
        with model.open(path) as bundles:
            assert len(bundles.table) == 0


def test_neurons_that_are_packed_again_lie_in_the_same_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    with open_model(DATA / "llama-relu-q4_0.gguf") as model:
        bundling = Bundling(model, tmp_path / "model.bundles", 2)
        orders = tuple(draw.permutation(layer.layout.n_neurons).astype(np.int32) for layer in layers_of(model))
        bundling.pack_with(order_bytes(orders), no_progress)
        whole = bundling.path.read_bytes()
        with bundling.open() as bundles:
            identity = identity_of(bundles.contents, fingerprint(model.file))
            checksums = [bundles.checksum(number) for number in range(identity.n_entries)]
        checksums[1] += 1
        with bundling.path.open("r+b") as file:
            file.write(header_of(identity, bytes(16), np.array(checksums, np.uint64)))
        assert bundling.repair(no_progress).state == "packed"
        assert bundling.path.read_bytes() == whole
