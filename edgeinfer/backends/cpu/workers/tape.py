"""One step as a tape: (kernel address, argument record, barrier) entries run in order by every worker of a worker pool.

In: kernel calls with the buffers they read and write. Out: an int64 array that `run_tape` walks without Python. A
barrier is placed only where a call reads or writes data that another worker may still be writing or reading; it names
the next product, whose weights are fetched by those who wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.records import ENTRY_INTS, PRODUCT
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address
from edgeinfer.steps import Progress, no_progress


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with its argument record (an array of one), and what orders it relative to other calls.

    `share` names how workers split it: calls of equal share give each worker the same rows or columns. Every worker
    reads all of the buffers that the call `gathers`, whatever its own share, and only its share of those it `reads`.
    `calls`: a kernel that this one calls, whose address goes into the field `kernel` of its arguments. `bundle`: the
    bundle that its weights belong to, if they have no fixed place.
    """

    kernel: Kernel
    arguments: NDArray[np.void]
    reads: frozenset[str]
    writes: frozenset[str]
    share: str
    gathers: frozenset[str] = frozenset()
    calls: Kernel | None = None
    bundle: int | None = None


NOTHING: frozenset[str] = frozenset()
EVERYTHING = "all of it"
"""The share of a gathered buffer, which differs from every call's own share."""


@dataclass(slots=True)
class _Hazards:
    """Buffers touched since the last barrier, with the shares that touched them."""

    written: dict[str, set[str]] = field(default_factory=dict)
    read: dict[str, set[str]] = field(default_factory=dict)

    def blocks(self, call: Call) -> bool:
        """Whether a call must wait for other workers."""
        after_writes = any(self.written.get(name, set()) - {call.share} for name in call.reads | call.writes)
        after_reads = any(self.read.get(name, set()) - {call.share} for name in call.writes)
        return after_writes or after_reads or any(name in self.written for name in call.gathers)

    def add(self, call: Call) -> None:
        """Record what a call touches."""
        for name in call.writes:
            self.written.setdefault(name, set()).add(call.share)
        for name in call.reads:
            self.read.setdefault(name, set()).add(call.share)
        for name in call.gathers:
            self.read.setdefault(name, set()).add(EVERYTHING)


class Tape:
    """A compiled step. Keeps the argument records alive."""

    def __init__(self, calls: list[Call], library: KernelLibrary, progress: Progress = no_progress) -> None:
        self._calls = calls
        kernels = list({each.name: each for call in calls for each in (call.kernel, call.calls) if each}.values())
        for done, kernel in enumerate(kernels):
            progress("preparing kernels", done, len(kernels))
            library.address(kernel)
        progress("preparing kernels", len(kernels), len(kernels))
        self.entries = np.zeros((len(calls) + 1, ENTRY_INTS), np.int64)
        hazards = _Hazards()
        for place, call in enumerate(calls):
            waits = hazards.blocks(call)
            if waits:
                hazards = _Hazards()
            hazards.add(call)
            if call.calls is not None:
                call.arguments["kernel"] = library.address(call.calls)
            self.entries[place, :3] = library.address(call.kernel), address(call.arguments), waits
        self.entries[-1, 2] = 1  # the launch ends when every worker has finished
        following = 0
        for place, call in reversed(list(enumerate(calls))):
            following = address(call.arguments) if call.kernel.arguments == PRODUCT else following
            self.entries[place, 4] = following

    @property
    def n_barriers(self) -> int:
        """Barriers of one run."""
        return int(self.entries[:, 2].sum())
