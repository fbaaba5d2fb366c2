"""Describes the machine of a benchmark: CPU, cores, memory, and memory bandwidth.

In: the cores to read with, and the model's size. Out: a `BenchMachine`. Memory is read in a separate process (`python
-m …machine [CORES,BYTES]`), so that its buffer and its compiler are gone before anything else is measured.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import psutil

from edgeinfer.engine.measure.profiles import machine_name
from edgeinfer.process import command, environment

PROBE_LIMIT_S = 120.0
TRIES = 3
SMALLEST_BYTES = 1 << 20
SHOWN_FEATURES = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "amx-int8")
SHOWN_FEATURES_ARM = ("neon", "dotprod", "i8mm", "bf16", "sve")


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """What the reading process measured. `pattern`: the access pattern that read fastest; None if not measured.

    `model_read_bytes_s`: the rate for a buffer as large as the model's weights, part of which may stay in caches.
    `busy`: other programs used the machine in every try.
    """

    features: tuple[str, ...] = ()
    isa: str | None = None
    read_bytes_s: float | None = None
    pattern: str | None = None
    model_read_bytes_s: float | None = None
    busy: bool = False


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine, as a record describes it."""

    cpu: str
    cores: int
    ram_bytes: int
    system: str
    python: str
    memory: MemoryBandwidth


def describe(n_usable: int, memory: MemoryBandwidth) -> BenchMachine:
    """Describe this machine."""
    system = f"{platform.system()} {platform.release()}"
    ram = int(psutil.virtual_memory().total)
    return BenchMachine(machine_name(), n_usable, ram, system, platform.python_version(), memory)


def read_quietly(
    cores: tuple[int, ...], model_bytes: int, idle: Callable[[], float], is_busy: Callable[[float], bool]
) -> MemoryBandwidth:
    """Read memory with one thread on each of `cores` until the machine is quiet, at most TRIES times.

    Returns the reading of the quiet machine, otherwise the fastest one.
    """
    tries: list[MemoryBandwidth] = []
    before = idle()
    for _ in range(TRIES):
        found = read_memory(cores, model_bytes)
        after = idle()
        tries.append(replace(found, busy=is_busy(min(before, after))))
        if not tries[-1].busy:
            return tries[-1]
        before = after
    return max(tries, key=lambda found: found.read_bytes_s or 0.0)


def read_memory(cores: tuple[int, ...], model_bytes: int) -> MemoryBandwidth:
    """Measure in a separate process; returns an empty `MemoryBandwidth` if it fails."""
    probe = command("edgeinfer.app.bench.machine", json.dumps([cores, model_bytes]))
    try:
        done = subprocess.run(
            probe, capture_output=True, stdin=subprocess.DEVNULL, env=environment(os.environ), timeout=PROBE_LIMIT_S
        )
        fields = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return MemoryBandwidth()
    return MemoryBandwidth(**fields | {"features": tuple(fields["features"])})


def main() -> None:
    """Measure, and print a `MemoryBandwidth` as JSON."""
    from edgeinfer.engine.probing.memory import buffer_bytes, measure
    from edgeinfer.jit import targets
    from edgeinfer.jit.cpu import cpu_features
    from edgeinfer.scheduling.machine.topology import available_bytes

    features = cpu_features()
    shown = tuple(name for name in (*SHOWN_FEATURES, *SHOWN_FEATURES_ARM) if name in features)
    cores, model_bytes = json.loads(sys.argv[1])
    best, of_model = (
        max(measure(cores, n_bytes), key=lambda reading: reading.bytes_per_s)
        for n_bytes in (buffer_bytes(available_bytes()), max(model_bytes, SMALLEST_BYTES))
    )
    isa = targets.choose(features, os.environ.get("EDGEINFER_SIMD"))
    print(json.dumps(asdict(MemoryBandwidth(shown, isa, best.bytes_per_s, best.pattern, of_model.bytes_per_s))))


if __name__ == "__main__":
    main()
