"""One library of compiled kernels for all tests of the CPU device, and the instruction sets this CPU can run."""

from __future__ import annotations

import pytest

from edgeinfer.backends.cpu.library import KernelLibrary


@pytest.fixture(scope="session")
def library() -> KernelLibrary:
    return KernelLibrary()
