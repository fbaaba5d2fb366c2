"""Runs kernels on buffers between forbidden pages: a kernel that reads or writes outside one ends this process.

Run as `python -m tests.unit.backends.cpu.guarded CASE` from the repository root; exits 0 when nothing strayed. With the
case "stray" a read one byte beyond a buffer must end it, which shows that the guards are there.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import get_args
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes import lane
from edgeinfer.backends.cpu.layout import pages
from edgeinfer.backends.cpu.layout.panels import ELEMENTS
from edgeinfer.backends.cpu.lowering import model as lowering
from edgeinfer.backends.cpu.memory import buffers as buffers_module
from edgeinfer.backends.cpu.memory import packing as packing_module
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.graph.step import Step
from edgeinfer.models.quants import FORMATS
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden, Player
from tests.unit.backends.cpu import attention_calls, kernel_calls, packing_calls
from tests.unit.backends.cpu.kernels import (
    test_cpu_attention,
    test_cpu_matmul,
    test_cpu_rotary,
    test_cpu_split_floats,
    test_cpu_store,
)
from tests.unit.backends.cpu.layout import test_cpu_panels

PAGE_BYTES = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MODELS = (
    "llama-k",
    "gemma2-q4_0",
    "phi3-longrope-q8_0@long",
    "qwen3-bf16",
    "qwen2-f16",
    "mistral-window-q8_0",
    "minicpm3-f32",
    "afmoe-f32",
)


class Guarded:
    """Gives zeroed arrays that touch a forbidden page: the one after their last byte, or the one before their first."""

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end
        self._kept: list[mmap.mmap] = []

    def __call__(self, shape: tuple[int, ...], dtype: object, *, huge: bool = True) -> NDArray[np.generic]:
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        n_bytes = int(np.prod(shape)) * kind.itemsize
        room = -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
        memory = mmap.mmap(-1, room + 2 * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._kept.append(memory)
        raw = np.frombuffer(memory, np.uint8)
        for page in (0, room + PAGE_BYTES):
            if LIBC.mprotect(raw.ctypes.data + page, PAGE_BYTES, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        start = PAGE_BYTES + (room - n_bytes if self._at_end else 0)
        return raw[start : start + n_bytes].view(kind).reshape(shape)

    def copy(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """A guarded copy."""
        copied = self(values.shape, values.dtype)
        copied[...] = values
        return copied


def guarded_step(guarded: Guarded) -> type[StepRecord]:
    """A step record whose arrays are exactly as long as the step says, and guarded."""

    class GuardedStep(StepRecord):
        def fill(self, step: Step) -> None:
            super().fill(step)
            n_tokens, n_tiles = (int(self.record[name][0]) for name in ("n_tokens", "n_tiles"))
            exact = {
                "positions": self._positions[:n_tokens],
                "slots": self._slots[:n_tokens],
                "outputs": self._outputs[: len(step.batch.outputs)],
                "tiles": self._tiles[:n_tiles],
                "tables": self._tables,
                "paths": self._paths,
            }
            for name, values in exact.items():
                self.record[name] = guarded.copy(values).ctypes.data

    return GuardedStep


@contextmanager
def guards(at_end: bool, callers: Sequence[ModuleType] = ()) -> Iterator[None]:
    """Every buffer of the device and of the kernel tests, and of other `callers`, is guarded within."""
    guarded = Guarded(at_end)
    modules = (
        lowering,
        pages,
        buffers_module,
        packing_calls,
        kernel_calls,
        attention_calls,
        *callers,
        test_cpu_matmul,
        test_cpu_split_floats,
        test_cpu_rotary,
        test_cpu_store,
    )
    patches = [mock.patch.object(module, "aligned", guarded) for module in modules]
    each = [mock.patch.object(packing_module, "room", lambda shapes: [guarded(shape, np.uint8) for shape in shapes])]
    patches += each
    patches += [mock.patch.object(module, "StepRecord", guarded_step(guarded)) for module in (lane, attention_calls)]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def products() -> None:
    """Every panel, 1 to 20 tokens and many, bias and accumulation."""
    library = kernel_library()
    for key in test_cpu_matmul.INTEGERS:
        test_cpu_matmul.test_integer_products(library, key, 3)
        test_cpu_matmul.test_a_token_has_the_same_bits_in_any_batch_and_split(library, key)
        for isa in (kernel_calls.RUNNABLE[0], *test_cpu_matmul.TILED):
            test_cpu_matmul.test_many_tokens_have_the_bits_of_few(library, key, isa)
    for key in test_cpu_matmul.FLOATS:
        test_cpu_matmul.test_float_products(library, key, 30)


def split_floats() -> None:
    """Floats as sums of two bfloat16: every panel, several chunks of columns, every shape of attention."""
    library = kernel_library()
    for element in ELEMENTS if test_cpu_matmul.TILED else ():
        for columns in (1, 30, test_cpu_split_floats.SEVERAL_CHUNKS):
            test_cpu_split_floats.test_products(library, element, columns)
    for shape in test_cpu_split_floats.SHAPES if test_cpu_matmul.TILED else ():
        test_cpu_split_floats.test_attention(library, shape, 65)


def packing() -> None:
    """Every format: rows in guarded memory, whole records and shorter last ones."""
    library = kernel_library()
    for key, form in FORMATS.entries().items():
        for n_blocks in (1, 2, 3):
            columns = test_cpu_panels.columns_of(key, n_blocks)
            packing_calls.pack_rows(library, form, packing_calls.random_rows(form, 32, columns), columns)


def attention() -> None:
    """Every shape: chains, trees, both ways of sharing the work."""
    library = kernel_library()
    for shape in test_cpu_attention.SHAPES:
        for kind in get_args(KVKind):
            test_cpu_attention.test_chains(library, shape, kind, 50, 37)
            test_cpu_attention.test_a_tree_node_has_the_bits_of_its_path(library, shape, kind, 62)


def models() -> None:
    """Whole models, all kernels: a prompt, chunks of several sizes, a tree."""
    for name in MODELS:
        golden = Golden.read(name)
        for kv in get_args(KVKind):
            with Player(CpuDevice(DeviceOptions(n_workers=2)), golden, kv=kv) as player:
                for chunk in np.split(golden.tokens, [20, 21, 24, 33, 46]):
                    player.feed(chunk)
                player.look(golden.tokens[:12], [-1, 0, 1, 0, 3, 2, -1, 6, 7, 7, 4, 5])


def stray() -> None:
    """Read one byte too far on either side."""
    array = kernel_calls.aligned((PAGE_BYTES,), np.uint8)
    for offset in (-1, PAGE_BYTES):
        ctypes.string_at(array.ctypes.data + offset, 1)


CASES: dict[str, Callable[[], None]] = {
    "products": products,
    "split floats": split_floats,
    "packing": packing,
    "attention": attention,
    "models": models,
    "stray": stray,
}


def main(case: str) -> int:
    for at_end in (True, False):
        with guards(at_end):
            CASES[case]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
