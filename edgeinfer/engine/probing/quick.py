"""A profile of a machine nobody has measured: how fast its cores read memory, in a quarter of a second, and guesses.

In: the topology. Out: a `Profile` whose assumptions say what was not measured. Decoding is mostly reading weights, so
its rates are of the right size; those of prompts are not. Needs no compiler: NumPy reads. Saves nothing.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.measure.profiles import machine_name
from edgeinfer.scheduling.machine.profile import ANY, CPU, AttentionRates, Curve, DeviceRates, ProductRates, Profile
from edgeinfer.scheduling.machine.topology import Topology

LEAST_BYTES, MOST_BYTES = 96 << 20, 384 << 20
CACHES = 3
"""Bytes that are read, as a multiple of the last-level cache, within the limits above."""
LONGEST_S, MOST_PASSES = 0.25, 5
MADD_PER_CORE = 20e9
"""Multiply-adds per second of a core: between a Cortex-A76 (17e9) and a core with AVX2 (40e9) on 4-bit weights."""
ELEMENTS_S, OP_S, PASS_S = 2e9, 3e-6, 3e-5
ASSUMPTIONS = (
    "memory was read for a moment, by NumPy",
    "arithmetic: 20e9 multiply-adds per second and core",
)


def quick_profile(topology: Topology) -> Profile:
    """A profile for predicting how fast models write, from a quick look at memory."""
    n_cores, meter = len(topology.workers()), QuietMeter()
    meter.begin()
    read = read_rate(n_cores, _footprint(topology))
    meter.end()
    arithmetic = Curve.level(MADD_PER_CORE * n_cores)
    cpu = DeviceRates(
        name=CPU,
        kind=CPU,
        memory_bytes=topology.total_bytes,
        read=Curve.level(read),
        products=MappingProxyType({ANY: ProductRates(0.5625, arithmetic)}),
        attention=(AttentionRates(128, arithmetic),),
        element_rate=Curve.level(ELEMENTS_S),
        op_s=OP_S,
        pass_s=PASS_S,
    )
    return Profile(machine_name(), (cpu,), idle_share=meter.idle_share, short=True, assumptions=ASSUMPTIONS)


def _footprint(topology: Topology) -> int:
    return min(MOST_BYTES, max(LEAST_BYTES, CACHES * topology.l3_bytes), max(1 << 20, topology.available_bytes // 8))


def read_rate(n_threads: int, n_bytes: int) -> float:
    """Bytes per second that threads read together, each its own part: the best pass, as others disturb the rest."""
    share = max(1, n_bytes // n_threads // 8)
    with ThreadPoolExecutor(n_threads) as pool:
        parts = list(pool.map(lambda _: np.ones(share, np.uint64), range(n_threads)))
        best, began = 0.0, time.perf_counter()
        for _ in range(MOST_PASSES):
            started = time.perf_counter()
            list(pool.map(_read, parts))
            ended = time.perf_counter()
            best = max(best, sum(part.nbytes for part in parts) / max(1e-9, ended - started))
            if ended - began > LONGEST_S:
                break
    return best


def _read(part: NDArray[np.uint64]) -> None:
    part.max()
