"""The sizes of a model, each with one name and one meaning for all commands and screens, and whether they fit.

file      its files on the disk
weights   in memory, in the device's own form
KV cache  keys and values for the whole context (in layers with a window: for the window and some more tokens), and the
          states of models whose sequences have them
buffers   working buffers of a pass
program   Python, libraries and compiled kernels
memory    the sum of weights, KV cache, buffers and program

In: a `MemoryNeed`, which counts these, and the available memory. Out: text and JSON. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed, missing_bytes, would_fit
from edgeinfer.text_values import size_text


def memory_record(need: MemoryNeed, available_bytes: int | None = None) -> dict[str, object]:
    """Memory and its parts as JSON; keys may be added, never renamed."""
    return {
        "weight_bytes": need.weight_bytes,
        "kv_bytes": need.kv_bytes,
        "state_bytes": need.state_bytes,
        "window_bytes": need.window_bytes,
        "buffer_bytes": need.buffer_bytes,
        "program_bytes": PROGRAM_BYTES,
        "total_bytes": need.total_bytes,
        "n_context": need.n_context,
        "available_bytes": available_bytes,
    }


def memory_text(need: MemoryNeed, available_bytes: int | None = None) -> str:
    """Memory and its parts as text."""
    there_is = "" if available_bytes is None else f" of {size_text(available_bytes)} available"
    return f"{size_text(need.total_bytes)}{there_is}: {need.parts_text}"


def memory_line(need: MemoryNeed, peak_bytes: int | None) -> str:
    """Memory of a loaded model beside its process's peak, which may be lower, as the KV cache fills gradually."""
    used = "" if peak_bytes is None else f"; the process held {size_text(peak_bytes)} at most"
    return f"memory: {memory_text(need)}{used}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model fits a machine.

    need             memory it takes there
    available_bytes  available memory; `vram_bytes`: of each accelerator that takes part
    whole            what the entire model would take, if weights are read from disk in every pass
    refusal          why it cannot be run, "" if it can
    """

    need: MemoryNeed
    available_bytes: int
    whole: MemoryNeed | None = None
    refusal: str = ""
    vram_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def missing_bytes(self) -> int:
        """Bytes of memory missing for the entire model; 0 if it fits."""
        if self.whole is None and not self.refusal:
            return 0
        return missing_bytes(self.whole or self.need, self.available_bytes)

    @property
    def would_fit(self) -> str:
        """What would fit instead."""
        return would_fit(self.whole or self.need, self.available_bytes)

    @property
    def line(self) -> str:
        """The result as text."""
        missing = self.missing_bytes
        lack = f"{size_text(missing)} ({missing} bytes) too much; {self.would_fit}"
        if self.refusal:
            return f"no, {lack}" if missing else f"no: {self.refusal}"
        if self.whole is not None:
            in_part = "in part: weights without room are read from disk in every pass"
            return f"{in_part}; all of it is {lack}" if missing else in_part
        accelerators = "".join(f" and {size_text(n_bytes)} of {name}" for name, n_bytes in self.vram_bytes.items())
        return f"in {size_text(self.available_bytes)} of memory{accelerators}"

    @property
    def record(self) -> dict[str, object]:
        """The result as JSON."""
        missing = self.missing_bytes
        return {
            "fits": not self.refusal,
            "in_part": self.whole is not None and not self.refusal,
            "missing_bytes": missing,
            "would_fit": self.would_fit if missing else None,
        }
