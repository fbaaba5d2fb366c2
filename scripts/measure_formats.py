"""Measures what a core computes per byte in decode: the product kernel of every quant format, one token, no model.

Run: `python scripts/measure_formats.py [--isa avx2] [--columns 2048] [--formats Q4_0,Q4_K] [--cores 0,1]`.
"cached": one core reads the same two panels again and again, in bytes per cycle and per second: the most that a core
turns over. "memory": all cores together read panels of 256 MB, beside the best read pattern: what decode gets.
Cycles are those of the core's clock, which a chain of dependent operations measures beside each figure. Prints a
Markdown table with the idle share before and after.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, WorkSplit
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, IntegerPanel, panel_for
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES, SCALE_AT
from edgeinfer.backends.cpu.workers.worker_pool import pin
from edgeinfer.engine.measure.idle import idle_share
from edgeinfer.engine.probing.core_clock import CoreClock
from edgeinfer.engine.probing.memory import READ_PATTERNS, MemoryReaders
from edgeinfer.jit import targets
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.machine_code import cpu_name
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.quants import FORMATS, BlockFormat
from edgeinfer.process import require_cpus
from edgeinfer.scheduling.machine.topology import usable_cores

MEMORY_BYTES = 256 << 20
CACHED_BYTES, PASSES = 512 << 20, 9
FINITE = 0x3B
"""Mask of random bytes: no float16 of such bytes is infinite or not a number."""
EXPONENT = 120
"""A usual scale that is a power of two: 2 ** -8."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one format: bytes per second of panels, and per cycle of one core."""

    form: BlockFormat
    panel: IntegerPanel
    cached_bytes_s: float
    bytes_per_cycle: float
    memory_bytes_s: float


class Products:
    """The product kernel of a panel over some memory, for one token."""

    def __init__(self, library: KernelLibrary, panel: IntegerPanel, isa_name: str, columns: int) -> None:
        kernel = catalogue.product(panel, isa_name)
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)(
            library.address(kernel)
        )
        self._panel_bytes, self._n_records = panel.panel_bytes(columns), panel.n_records(columns)
        n_blocks = self._n_records * panel.record_pairs * 2
        self._activations: NDArray[np.uint8] = aligned((n_blocks * RECORD_BYTES,), np.uint8)
        facts = self._activations.reshape(n_blocks, RECORD_BYTES)
        facts[:, :SCALE_AT] = 1
        facts[:, SCALE_AT : SCALE_AT + 4] = np.full((n_blocks, 1), 1e-2, np.float32).view(np.uint8)
        self._out: NDArray[np.float32] = aligned(
            (32 * (max(MEMORY_BYTES, CACHED_BYTES) // self._panel_bytes + 2),), np.float32
        )
        self._zeros = np.zeros(32, np.float32)
        self._one = np.ones(1, np.int64)
        self._n_blocks = n_blocks

    @property
    def unit_bytes(self) -> int:
        """Bytes of two panels."""
        return 2 * self._panel_bytes

    def arguments(self, weights: NDArray[np.uint8], n_units: int, again: bool) -> NDArray[np.void]:
        """Arguments for units that follow each other, or for the first one `again` and again."""
        args = np.zeros(1, records.PRODUCT)
        args["weights"], args["second"] = address(weights), self._panel_bytes
        args["unit_bytes"], args["n_units"] = 0 if again else self.unit_bytes, n_units
        args["n_records"], args["n_blocks"] = self._n_records, self._n_blocks
        args["activations"], args["block_tokens"] = address(self._activations), 16
        args["ahead"], args["count"] = not again, address(self._one)
        args["out"], args["bias"] = address(self._out), address(self._zeros)
        return args

    def run(self, args: NDArray[np.void], worker: int, work_split: NDArray[np.int64]) -> None:
        """One worker's share."""
        self._function(address(args), worker, address(work_split))


def cached(products: Products, weights: NDArray[np.uint8], clock: CoreClock) -> tuple[float, float]:
    """Bytes per second and per cycle of one core over two panels: medians."""
    alone = records.work_split_record((0, WHOLE))
    n_units = max(64, CACHED_BYTES // products.unit_bytes)
    args, rates, per_cycle = products.arguments(weights, n_units, again=True), [], []
    products.run(args, 0, alone)
    for _ in range(PASSES):
        before = clock.hz()
        started = time.perf_counter()
        products.run(args, 0, alone)
        rates.append(n_units * products.unit_bytes / (time.perf_counter() - started))
        per_cycle.append(rates[-1] / statistics.mean((before, clock.hz())))
    return statistics.median(rates), statistics.median(per_cycle)


def from_memory(products: Products, weights: NDArray[np.uint8], cores: Sequence[int]) -> float:
    """Bytes per second of all cores together: the median pass."""
    shares = records.work_split_record(WorkSplit.even(len(cores)).cuts)
    n_units = len(weights) // products.unit_bytes
    args = products.arguments(weights, n_units, again=False)
    times = np.zeros((PASSES + 1, len(cores), 2))
    barrier = threading.Barrier(len(cores))

    def work(worker: int) -> None:
        pin(cores[worker : worker + 1])
        for turn in range(PASSES + 1):
            barrier.wait()
            times[turn, worker, 0] = time.perf_counter()
            products.run(args, worker, shares)
            times[turn, worker, 1] = time.perf_counter()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(len(cores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = times[1:, :, 1].max(axis=1) - times[1:, :, 0].min(axis=1)
    return float(n_units * products.unit_bytes / np.median(seconds))


def fill(weights: NDArray[np.uint8], panel: IntegerPanel) -> None:
    """Fill panels with random codes, and scales as models have them: subnormal numbers would take CPUs a trap each."""
    weights[:] = np.resize(np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8) & FINITE, len(weights))
    filled = weights[: len(weights) // panel.record_bytes * panel.record_bytes].reshape(-1, panel.record_bytes)
    if panel.scales == "e8m0":
        filled[:, : panel.codes_at] = EXPONENT
    elif panel.scales in ("f32", "e4m3f32"):
        n_floats = (panel.scales_at if panel.has_units else panel.codes_at) // 4
        filled[:, : 4 * n_floats] = np.full(n_floats, 1e-2, np.float32).view(np.uint8)


def measure(form: BlockFormat, library: KernelLibrary, isa_name: str, columns: int, cores: Sequence[int]) -> Measured:
    """All figures of one format."""
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    products = Products(library, panel, isa_name, columns)
    weights: NDArray[np.uint8] = aligned((MEMORY_BYTES // products.unit_bytes * products.unit_bytes,), np.uint8)
    fill(weights, panel)
    rate, per_cycle = cached(products, weights, CoreClock())
    return Measured(form, panel, rate, per_cycle, from_memory(products, weights, cores))


def table(rows: Sequence[Measured], read_bytes_s: float) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| format | file bits/weight | panel | cached GB/s, 1 core | bytes/cycle | memory GB/s | of read pattern |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bits = 8 * row.form.block_bytes / row.form.block_size
        own = 8 * row.panel.record_bytes / (row.panel.record_columns * PANEL_ROWS)
        figures = (row.cached_bytes_s / 1e9, row.bytes_per_cycle, row.memory_bytes_s / 1e9)
        share = row.memory_bytes_s / read_bytes_s
        shown = " | ".join(f"{figure:.1f}" for figure in figures)
        lines.append(f"| {row.form.name} | {bits:.2f} | {own:.2f} | {shown} | {share:.2f} |")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set instead of the CPU's fastest")
    parser.add_argument("--columns", type=int, default=2048, help="columns of the matrices")
    parser.add_argument("--formats", help="names separated by commas instead of all")
    parser.add_argument("--cores", help="cores separated by commas instead of all usable ones")
    asked = parser.parse_args()
    cores = usable_cores() if asked.cores is None else tuple(int(core) for core in asked.cores.split(","))
    require_cpus(cores)
    isa_name = targets.choose(cpu_features(), asked.isa)
    library = catalogue.kernel_library()
    names = [name.upper() for name in asked.formats.split(",")] if asked.formats else None
    forms = [form for form in FORMATS.entries().values() if isinstance(form, BlockFormat)]
    forms = [form for form in forms if names is None or form.name in names]
    for form in forms:  # compiled before anything is timed
        panel = panel_for(form)
        assert isinstance(panel, IntegerPanel)
        library.address(catalogue.product(panel, isa_name))
    idle_before = idle_share()
    with MemoryReaders(cores, 2 * MEMORY_BYTES) as readers:
        read_bytes_s = max(readers.read(pattern) for pattern in READ_PATTERNS)
    pin(cores[:1])
    rows = [measure(form, library, isa_name, asked.columns, cores) for form in forms]
    print(f"{cpu_name()}, {isa_name}, {len(cores)} cores, {asked.columns} columns; idle {idle_before:.0%} before,")
    clock = f"clock {CoreClock().hz() / 1e9:.2f} GHz"
    print(f"{idle_share():.0%} after; {clock}; best read pattern {read_bytes_s / 1e9:.1f} GB/s\n")
    print("\n".join(table(rows, read_bytes_s)))


if __name__ == "__main__":
    main()
