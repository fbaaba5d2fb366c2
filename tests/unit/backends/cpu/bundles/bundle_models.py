"""Packing a model for tests: where its bundles go, and its panels as they are packed at load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.writing import Packed, pack_bundles
from edgeinfer.backends.cpu.memory.packing import PackedWeights
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.offload.bundle import PAGE_BYTES
from edgeinfer.offload.bundle_file import ByteSource
from edgeinfer.steps import Progress, no_progress
from tests.golden.goldens import DATA

GOLDEN_MODELS = sorted(DATA.glob("*.gguf"))


@dataclass(frozen=True, slots=True)
class Packable:
    """An open model and what its bundle file must hold."""

    model: Model
    contents: Contents
    fingerprint: str

    def pack(self, path: Path, library: KernelLibrary, progress: Progress = no_progress) -> Packed:
        return pack_bundles(path, self.model.file, self.contents, self.fingerprint, library, 2, progress)

    def open(self, path: Path) -> BundleFile:
        return BundleFile.open(path, self.contents, self.fingerprint)

    def packed(self, library: KernelLibrary) -> PackedWeights:
        """The matrices packed as they are at load."""
        store = PackedWeights(self.model.file, "portable", library)
        store.pack([(matrix.key[0], matrix.heads) for matrix in self.contents.matrices.values()], 2, no_progress)
        return store


@contextmanager
def packable(path: Path) -> Iterator[Packable]:
    """A model file opened to be packed."""
    with open_model(path) as model:
        yield Packable(model, contents_of(model.spec, model.file.tensors), fingerprint(model.file))


def page_memory(n_bytes: int) -> memoryview:
    """Memory that begins at a page, as direct reads want it."""
    raw = aligned((n_bytes + PAGE_BYTES,), np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES
    return memoryview(raw[start : start + n_bytes])


def assert_holds(bundles: BundleFile, source: ByteSource, expected: PackedWeights) -> None:
    """Read every bundle; its parts are bit for bit the panels that packing at load makes."""
    seen = 0
    for bundle in bundles.contents.bundles:
        memory = page_memory(bundle.padded_bytes)
        bundles.read(bundle.number, memory, source)
        data = np.frombuffer(memory, np.uint8)
        for part in bundle.parts:
            matrix = bundles.contents.matrices[part.key]
            panels = expected.matrix(part.key[0], matrix.heads).data[part.first : part.first + part.n_panels]
            assert np.array_equal(data[part.offset : part.offset + panels.nbytes], panels.ravel())
            seen += panels.nbytes
    assert seen == expected.resident_bytes
