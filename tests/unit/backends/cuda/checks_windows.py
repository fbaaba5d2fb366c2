"""Layers that keep only a window on the CUDA device, beside layers that keep everything; run under the simulator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.driver import Driver
from edgeinfer.backends.cuda.footprint import footprint
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.operands import Windows
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden
from tests.unit.backends.cuda import quick_blocks

N_CACHED = 252
"""A few tokens before the end of a page, of zeros; the window begins in that page."""
WINDOWS = Windows(tokens=12, n_pages=4, n_spare=1)
PARENTS = [-1, 0, 0, 1, 2, 4]
quick_blocks.install()


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    found = CudaDevice(Driver())
    yield found
    found.close()


def batch(executor: Executor, sequence: int, tokens: NDArray[np.int32], parents: list[int] | None = None) -> Batch:
    """Tokens that follow the cached ones, as a chain or a tree; all logits are wanted."""
    own = np.array(range(-1, len(tokens) - 1) if parents is None else parents, np.int32)
    positions = np.full(len(tokens), executor.n_cached(sequence), np.int32)
    for node, parent in enumerate(own.tolist()):
        positions[node] += 0 if parent < 0 else positions[parent] + 1 - positions[node]
    numbers = np.arange(len(tokens), dtype=np.int32)
    return Batch(tokens, np.full(len(tokens), sequence, np.int32), positions, own, numbers)


def journey(executor: Executor, tokens: NDArray[np.int32]) -> list[bytes]:
    """Logits of passes over a page's end: a chain, a tree, after going back, and in a sequence put back elsewhere."""
    found: list[bytes] = []

    def feed(
        sequence: int, part: NDArray[np.int32], parents: list[int] | None = None, path: tuple[int, ...] = ()
    ) -> None:
        found.append(executor.evaluate(batch(executor, sequence, part, parents)).tobytes())
        executor.commit(sequence, np.array(path or range(len(part)), np.int32))

    first = executor.create()
    executor.pretend(first, N_CACHED)
    feed(first, tokens[:8])
    feed(first, tokens[8:14], PARENTS, (0, 2, 4))
    state = executor.save(first)
    feed(first, tokens[14:16])
    assert executor.truncate(first, N_CACHED + 9) == N_CACHED + 9
    feed(first, tokens[16:19])
    executor.free(first)
    second = executor.create()
    executor.restore(second, state)
    feed(second, tokens[14:16])
    return found


@pytest.mark.parametrize(("name", "kv"), [("gemma2-q8_0", "f16"), ("mistral-window-q8_0", "q8")])
def test_windows_give_the_bits_of_whole_contexts(device: CudaDevice, name: str, kv: KVKind) -> None:
    golden, found = Golden.read(name), []
    for windows in (WINDOWS, None):
        limits = Limits(512, 12, max_tokens=16, max_outputs=16, kv=kv, windows=windows)
        with open_model(golden.model, 512) as model:
            assert any(layer.window is not None and layer.window <= WINDOWS.tokens for layer in model.spec.kv)
            lane = device.compile(model.spec, model.file, limits)
            taken = footprint(model.spec, model.file.tensors, limits)
            assert lane.resident_bytes == taken.weight_bytes + taken.kv_bytes + taken.buffer_bytes
            with Executor(device, lane, limits, "x", is_guest=True) as executor:
                assert (executor.limits.windows is None) == (windows is None)
                found.append(journey(executor, golden.tokens))
    assert found[0] == found[1]
