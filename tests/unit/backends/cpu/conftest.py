"""One library of compiled kernels for all tests of the CPU device, and the instruction sets this CPU can run."""

from __future__ import annotations

import pytest

from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.jit.library import KernelLibrary


@pytest.fixture(scope="session")
def library() -> KernelLibrary:
    return kernel_library()
