"""A 64-bit ARM processor beside this one: kernels compiled for it, and run on it under emulation.

A `Recorder` takes the place of `kernel_calls.call`, runs each call here and keeps the memory before and after. `replay`
runs the call again under qemu and gives the memory after it. Knows nothing of what a kernel does.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.lib.array_utils import byte_bounds

from edgeinfer.backends.base import WorkSplit
from edgeinfer.backends.cpu.layout import records
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.kernel_calls import Array
from tests.unit.jit.target_modules import Function

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]
DRIVER = Path(__file__).with_name("arm_driver.c")
ROOT = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of memory at its address."""

    address: int
    content: bytes
    holds_addresses: bool


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a kernel by each worker, with all memory that was known then."""

    kernel: Kernel
    workers: int
    record_address: int
    work_split_address: int
    before: list[Segment]
    after: list[Segment]


@dataclass(slots=True)
class Recorder:
    """Keeps the calls made through it and every array whose address was taken through it."""

    calls: list[RecordedCall] = field(default_factory=list)
    _arrays: dict[tuple[int, int], Array] = field(default_factory=dict)

    def address(self, array: Array) -> int:
        """In place of `jit.memory.address`, in modules that write addresses into records."""
        start, stop = byte_bounds(array)
        self._arrays[start, stop] = array
        return array.ctypes.data

    def call(
        self,
        library: KernelLibrary,
        kernel: Kernel,
        workers: int = 1,
        cuts: Sequence[int] | None = None,
        **fields: Array | float,
    ) -> None:
        """In place of `kernel_calls.call`."""
        record = np.zeros(1, kernel.arguments)
        for name, value in fields.items():
            record[name] = self.address(value) if isinstance(value, np.ndarray) else value
        shares = records.work_split_record(WorkSplit.even(workers).cuts if cuts is None else cuts)
        places = self.address(record), self.address(shares)
        before = self._memory()
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)(library.address(kernel))
        for worker in range(workers):
            function(places[0], worker, places[1])
        self.calls.append(RecordedCall(kernel, workers, *places, before, self._memory()))

    def _memory(self) -> list[Segment]:
        """All arrays; those that share memory as one piece."""
        merged: list[tuple[int, int, bool]] = []
        for (start, stop), array in sorted(self._arrays.items(), key=lambda item: item[0]):
            if start == stop:
                continue
            pointing = array.dtype.names is not None or array.dtype == np.int64
            if merged and start < merged[-1][1]:
                first, last, before = merged.pop()
                merged.append((first, max(last, stop), before or pointing))
            else:
                merged.append((start, stop, pointing))
        return [Segment(start, ctypes.string_at(start, stop - start), flag) for start, stop, flag in merged]


def arm_name(kernel: Kernel, isa: str) -> str:
    """The name of the same kernel for ARM."""
    return kernel.name.replace(isa, "neon").replace("-wide", "-narrow")


def compile_for_arm(names: Sequence[str], folder: Path, module: str = "tests.unit.backends.cpu.arm_compile") -> None:
    """Write NAME.s and NAME.o of each kernel, by a module that knows it."""
    subprocess.run([sys.executable, "-m", module, folder, *names], cwd=ROOT, check=True)


def replay(call: RecordedCall, name: str, folder: Path) -> list[Segment]:
    """Memory after the call, made under emulation by the compiled kernel of that name."""
    addresses = [segment.address for segment in call.before]
    head = (call.workers, addresses.index(call.record_address), addresses.index(call.work_split_address))
    return _emulate(folder / f"{name}.o", head, call.before)


def run_function(function: Function, machine: tuple[str, str, str], folder: Path, *arrays: Array) -> list[Array]:
    """The arrays after `function` was run on them under emulation."""
    code = folder / f"{function.name}.o"
    code.write_bytes(function.object_code(*machine))
    segments = [Segment(array.ctypes.data, array.tobytes(), holds_addresses=False) for array in arrays]
    addresses = np.array([segment.address for segment in segments], np.int64)
    record = Segment(addresses.ctypes.data, addresses.tobytes(), holds_addresses=True)
    after = _emulate(code, (1, len(segments), len(segments)), [*segments, record])
    pairs = zip(after, arrays, strict=False)
    return [np.frombuffer(segment.content, array.dtype).reshape(array.shape) for segment, array in pairs]


def _emulate(code: Path, head: tuple[int, int, int], before: list[Segment]) -> list[Segment]:
    program, image, result = code.with_suffix(".exe"), code.with_suffix(".image"), code.with_suffix(".result")
    if not program.exists():
        link = [COMPILER, "-O1", "-static"]
        subprocess.run([*link, DRIVER, code, "-o", program], check=True)
    ints = [*head, len(before)]
    for segment in before:
        ints += [segment.address, len(segment.content), segment.holds_addresses]
    contents = [segment.content + bytes(-len(segment.content) % 8) for segment in before]
    image.write_bytes(np.array(ints, np.int64).tobytes() + b"".join(contents))
    subprocess.run([EMULATOR, "-cpu", "max", program, image, result], check=True)
    content, after, at = result.read_bytes(), [], 0
    for segment in before:
        size = len(segment.content)
        after.append(Segment(segment.address, content[at : at + size], segment.holds_addresses))
        at += -(-size // 8) * 8
    return after
