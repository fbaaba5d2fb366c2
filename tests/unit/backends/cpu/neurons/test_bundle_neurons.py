"""Layers of single neurons in bundle files: records that hold the bits of the file's rows, checked and mended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.backends.cpu.bundles.bundling import find_damage, mend
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.filling import start_from
from edgeinfer.backends.cpu.memory.packing import PackedWeights
from edgeinfer.backends.cpu.neurons.kernels.layout import codes_of_columns, rows_of_panels
from edgeinfer.backends.cpu.neurons.reading import compiled_reads, read_records
from edgeinfer.errors import BadBundle, DeviceFailed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import paged
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.offload.bundle import PAGE_BYTES
from edgeinfer.offload.neurons.reads import PageReads
from edgeinfer.offload.weights import Prepacked
from edgeinfer.steps import no_progress
from scripts.sparse_model import SparseShape, write_sparse
from tests.golden.goldens import DATA
from tests.unit.backends.cpu.bundles.bundle_faults import Faults
from tests.unit.backends.cpu.bundles.bundle_models import Packable, packable, page_memory
from tests.unit.backends.cpu.neurons.neuron_layers import layers_of, runs

MODELS = ("opt-q4_0", "opt-f16", "llama-relu-q4_0", "llama-relu-sparse-q4_1", "llama-relu2-q8_0", "llama-relu2-k")
SHAPE = SparseShape(128, 2, 1056, 4, 2, 256)


def held(model: Packable, path: Path) -> dict[int, np.ndarray]:
    """The bytes of all bundles of neurons, by their number."""
    with model.open(path) as bundles:
        source, found = bundles.source(), {}
        for bundle in model.contents.bundles:
            if bundle.run is not None:
                memory = page_memory(bundle.padded_bytes)
                bundles.read(bundle.number, memory, source)
                found[bundle.number] = np.frombuffer(memory, np.uint8)[: bundle.nbytes].copy()
        source.close()
    return found


def check_records(model: Packable, path: Path, library: KernelLibrary) -> int:
    """Compare all records with panels and codes of whole matrices; how many there are."""
    file, data, seen = model.model.file, held(model, path), 0
    for number, layer in enumerate(layers_of(model.model)):
        own = runs(model.contents, number)
        records = np.concatenate([data[run.number].reshape(-1, layer.layout.record_bytes) for run in own])
        rows, columns = layer.layout.parts(records)
        down = layer.down.weight
        form, raw = format_of(file.tensors[down.tensor].ggml_type), weights.raw_rows(file, down)
        if isinstance(form, BlockFormat):
            codes = form.unpack(raw)
            assert np.array_equal(codes_of_columns(layer.layout.down, columns, down.n_rows), codes.codes)
            shared = next(
                each for each in model.contents.bundles if each.run and (each.run.layer, each.run.count) == (number, 0)
            )
            assert shared.stays
            scales = data[shared.number].view(np.float16).reshape(-1, layer.layout.n_blocks, -(-down.n_rows // 32) * 32)
            assert np.array_equal(scales[0, : codes.scale.shape[1], : down.n_rows].T, codes.scale)
            if codes.minimum is not None:
                assert np.array_equal(scales[1, : codes.scale.shape[1], : down.n_rows].T, codes.minimum)
        else:
            assert np.array_equal(
                columns.view(raw.dtype).reshape(len(records), -1, 2)[:, : down.n_rows].transpose(1, 0, 2),
                raw.reshape(down.n_rows, -1, 2),
            )
        if layer.up is not None:
            packed = PackedWeights(file, "portable", library)
            packed.pack([(layer.up.weight, None)], 1, no_progress)
            assert layer.layout.up is not None
            expected = rows_of_panels(layer.layout.up, packed.matrix(layer.up.weight, None).data)
            assert np.array_equal(rows, expected[: len(rows)])
        seen += len(records)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_records_hold_the_bits_of_the_file(name: str, library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / f"{name}.gguf") as model:
        packed = model.pack(tmp_path / "model.bundles", library)
        layers = layers_of(model.model)
        assert layers
        assert check_records(model, packed.path, library) == len(layers) * layers[0].layout.n_neurons


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_runs_hold_whole_blocks_and_all_neurons(
    kind: str, library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.backends.cpu.bundles.contents.SMALLEST_BYTES", 40000)
    write_sparse(replace(SHAPE, kind=kind), DATA / "llama-relu-q4_0.gguf", tmp_path / "m.gguf")
    with packable(tmp_path / "m.gguf") as model:
        packed = model.pack(tmp_path / "model.bundles", library)
        for number in range(2):
            own = [run for bundle in runs(model.contents, number) if (run := bundle.run) is not None]
            assert len(own) > 2
            assert [run.first for run in own] == [sum(run.count for run in own[:place]) for place in range(len(own))]
            assert all(run.first % 32 == 0 for run in own)
            assert sum(run.count for run in own) == SHAPE.ffn
        assert check_records(model, packed.path, library) == 2 * SHAPE.ffn


def test_damaged_neurons_are_found_and_mended(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "llama-relu-q4_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        before = path.read_bytes()
        damaged = [bundle for bundle in model.contents.bundles if bundle.run is not None]
        with model.open(path) as bundles:
            assert not find_damage(bundles, no_progress)
            changed = bytearray(before)
            for bundle in damaged:
                changed[bundles.offset(bundle.number) + bundle.nbytes // 2] ^= 4
            path.write_bytes(changed)
        with model.open(path) as bundles:
            assert [each.bundle for each in find_damage(bundles, no_progress)] == damaged
            assembly = Assembly(model.model.file, model.contents, library, bundles.table)
            assert mend(bundles, damaged, assembly, no_progress)
        assert path.read_bytes() == before


def test_a_model_that_fits_is_packed_not_filled(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "llama-relu-q4_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        weights_in_memory = PackedWeights(model.model.file, "portable", library)
        wanted = [(matrix.key[0], matrix.heads) for matrix in model.contents.matrices.values()]
        place = Prepacked(path, model.fingerprint)
        start_from(weights_in_memory, place, model.contents, wanted, 2, no_progress)
        assert weights_in_memory.resident_bytes == 0


def all_pages(model: Packable) -> PageReads:
    """Every page of the neurons of a layer, each of which begins with what is taken from it."""
    run = runs(model.contents, 0)[0]
    n_pages = run.padded_bytes // PAGE_BYTES
    places = run.offset + PAGE_BYTES * np.arange(n_pages)
    numbers, sizes = np.arange(n_pages), np.full(n_pages, PAGE_BYTES)
    records = np.stack([np.zeros(n_pages, np.int64), numbers], axis=1)
    memory = np.zeros((n_pages, 64), np.uint8)
    return PageReads(np.stack([places, sizes, numbers, numbers + 1], axis=1), records, memory)


@pytest.mark.parametrize("direct", [True, False])
def test_pages_are_read_as_they_are(direct: bool, library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "llama-relu-q4_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        with model.open(path) as bundles:
            source, found = bundles.source(direct), []
            for compiled in (compiled_reads(library), None):
                reads = all_pages(model)
                read_records(bundles, reads, paged(PAGE_BYTES), source, compiled)
                found.append(reads.memory)
            source.close()
            start = bundles.offset(runs(model.contents, 0)[0].number)
        data = np.frombuffer(path.read_bytes(), np.uint8)[start : start + len(found[0]) * PAGE_BYTES]
    assert np.array_equal(found[0], data.reshape(-1, PAGE_BYTES)[:, :64])
    assert np.array_equal(found[1], found[0])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_pages_of_a_file_cut_short_meanwhile_are_refused(
    is_compiled: bool, library: KernelLibrary, tmp_path: Path
) -> None:
    with packable(DATA / "llama-relu-q4_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        with model.open(path) as bundles:
            source = bundles.source()
            os.truncate(path, bundles.offset(runs(model.contents, 0)[0].number))
            compiled = compiled_reads(library) if is_compiled else None
            with pytest.raises(BadBundle, match=r"ends after 0 bytes: the file was cut short; .*--repair"):
                read_records(bundles, all_pages(model), paged(PAGE_BYTES), source, compiled)
            source.close()


def test_pages_that_the_disk_cannot_read_are_told(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "llama-relu-q4_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        run = runs(model.contents, 0)[0]
        faults = Faults()
        with BundleFile.open(path, model.contents, model.fingerprint, faults.open) as bundles:
            source = bundles.source()
            faults.fails_at = bundles.offset(run.number) + PAGE_BYTES // 2
            with pytest.raises(DeviceFailed, match=r"a part of a bundle cannot be read: Input/output error"):
                read_records(bundles, all_pages(model), paged(PAGE_BYTES), source, compiled_reads(library))
            source.close()
