"""The open bundle file that a lane reads from, past the page cache if possible.

In: the place of a model's bundles, their contents. Out: bundles, records of neurons, and their places in the file.
Knows no lanes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.bundle_file import DiskSource
from edgeinfer.offload.neuron_reads import CompiledReads, PageReads, system_reads
from edgeinfer.offload.weights import OffloadedWeights


class Bundles:
    """An open bundle file that is read past the page cache: the `window.Source` of a lane."""

    def __init__(self, stored: OffloadedWeights, contents: Contents, library: KernelLibrary) -> None:
        """Raises BadBundle if the file cannot be used."""
        self._compiled = compiled_reads(library) if contents.layers else None
        self._file = BundleFile.open(stored.path, contents, stored.fingerprint)
        self.orders = self._file.orders
        try:
            self._source = self._file.source(direct=True)
        except BaseException:
            self._file.close()
            raise

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill `into` with a bundle. Raises DeviceFailed, BadBundle."""
        self._file.read(bundle.number, into, self._source)

    def check(self, bundle: Bundle, data: NDArray[np.uint8]) -> None:
        """Raise BadBundle unless `data` is what was written; checks each bundle once."""
        self._file.check(bundle.number, data)

    def offset(self, bundle: Bundle) -> int:
        """Where a bundle begins in the file."""
        return self._file.offset(bundle.number)

    @property
    def descriptor(self) -> int | None:
        """The file descriptor, if reads go past the page cache."""
        is_direct = isinstance(self._source, DiskSource) and self._source.is_direct
        return self._source.descriptor if isinstance(self._source, DiskSource) and is_direct else None

    def read_records(self, reads: PageReads, pages: NDArray[np.uint8]) -> None:
        """Do reads that no other thread has taken until none are left, unchecked. Raises DeviceFailed, BadBundle."""
        self._file.read_records(reads, pages, self._source, self._compiled)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._source.close()
        self._file.close()


def compiled_reads(library: KernelLibrary) -> CompiledReads | None:
    """Compiled reads, if the system has the functions that they call."""
    system = system_reads()
    return None if system is None else CompiledReads(library.function(catalogue.READ_RECORDS), system)
