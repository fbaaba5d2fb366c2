"""The machine a bench runs on: its CPU, cores, memory, and how fast that can be read.

In: cores to read with, and how large the model is. Out: a `BenchMachine`. Memory is read in a process of its own
(`python -m …machine [CORES,BYTES]`), so that its buffer and its compiler are gone before anything else is measured.
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
from edgeinfer.ipc.command import command, environment

PROBE_LIMIT_S = 120.0
TRIES = 3
SMALLEST_BYTES = 1 << 20
SHOWN_FEATURES = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "amx-int8")
SHOWN_FEATURES_ARM = ("neon", "dotprod", "i8mm", "bf16", "sve")


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """What the reading process found. `pattern` is the one that read fastest; None where it could not be measured.

    `model_read_bytes_s`: the same for a buffer as large as the model's weights, which may stay in caches in part.
    `busy`: others used the machine meanwhile, however often it was tried.
    """

    features: tuple[str, ...] = ()
    isa: str | None = None
    read_bytes_s: float | None = None
    pattern: str | None = None
    model_read_bytes_s: float | None = None
    busy: bool = False


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine, as a record names it."""

    cpu: str
    cores: int
    ram_bytes: int
    system: str
    python: str
    memory: MemoryBandwidth


def describe(n_usable: int, memory: MemoryBandwidth) -> BenchMachine:
    """This machine."""
    system = f"{platform.system()} {platform.release()}"
    ram = int(psutil.virtual_memory().total)
    return BenchMachine(machine_name(), n_usable, ram, system, platform.python_version(), memory)


def read_quietly(
    cores: tuple[int, ...], model_bytes: int, idle: Callable[[], float], is_busy: Callable[[float], bool]
) -> MemoryBandwidth:
    """Memory read by one thread on each of `cores`: the fastest of up to TRIES, until one was on a quiet machine."""
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
    """What a process of its own finds; an empty `MemoryBandwidth` where it fails."""
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
    from edgeinfer.engine.measure import bandwidth
    from edgeinfer.jit import targets
    from edgeinfer.jit.machine_code import cpu_features
    from edgeinfer.scheduling.machine.topology import available_bytes

    features = cpu_features()
    shown = tuple(name for name in (*SHOWN_FEATURES, *SHOWN_FEATURES_ARM) if name in features)
    cores, model_bytes = json.loads(sys.argv[1])
    best, of_model = (
        max(bandwidth.measure(cores, n_bytes), key=lambda reading: reading.bytes_per_s)
        for n_bytes in (bandwidth.buffer_bytes(available_bytes()), max(model_bytes, SMALLEST_BYTES))
    )
    isa = targets.choose(features, os.environ.get("EDGEINFER_SIMD"))
    print(json.dumps(asdict(MemoryBandwidth(shown, isa, best.bytes_per_s, best.pattern, of_model.bytes_per_s))))


if __name__ == "__main__":
    main()
