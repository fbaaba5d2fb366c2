"""The CPU device: opens a worker pool on chosen cores, picks the instruction set, compiles lanes.

In: worker count and cores. Out: `CpuLane`s. EDGEINFER_SIMD forces an instruction set: one of `targets.NEEDS`.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources
from edgeinfer.backends.cpu.lanes.sections import CpuSections, sections_of
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.lowering.needs import FILLING, kernels_of, usual_kernels
from edgeinfer.backends.cpu.memory.filed_pages import kv_file_bytes
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.jit import targets
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.process import allowed_cpus, require_cpus
from edgeinfer.settings import KVKind
from edgeinfer.steps import Progress, no_progress


class CpuDevice:
    """Numba kernels on pinned worker threads."""

    name = "cpu"
    batch_invariant = True

    def __init__(self, options: DeviceOptions, isa: str | None = None) -> None:
        cores = allowed_cpus() if options.cores is None else options.cores
        require_cpus(cores)
        n_workers = len(cores) if options.n_workers is None else options.n_workers
        if not 1 <= n_workers <= 256:
            raise BadSetting(f"{n_workers} threads asked for; use 1 to {len(cores)}")
        self.n_workers, self.cores = n_workers, tuple(cores)
        self._pinned_to = self.cores if options.pins else ()
        self._n_nodes = options.n_nodes
        features = cpu_features()
        _check_conversions(features)
        self.library = kernel_library()
        self._worker_pool: WorkerPool | None = None
        self._lane: Callable[[], CpuLane | None] = lambda: None
        self.isa = targets.choose(features, isa or os.environ.get("EDGEINFER_SIMD"))

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(sections=self, reading=self)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> CpuLane:
        """Pack the weights, compile or load the kernels, start the worker pool, which all lanes of a device share."""
        resources = self._prepared(spec, file, limits, progress)
        try:
            lane = _lane_kind(spec, limits)(spec, file, limits, resources, progress)
        except BaseException:
            resources.worker_pool.close()
            raise
        self._lane = weakref.ref(lane)
        return lane

    def compile_reader(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> CpuLane:
        """As `ReadingDevice.compile_reader`."""
        owner = self._lane()
        assert owner is not None
        lent = owner.lent_kv()
        if lent.filed is not None:
            raise BadSetting("a trained head that reads its model's keys needs them in memory: leave --kv-ram out")
        resources = replace(self._prepared(spec, file, limits, progress), kv=lent)
        try:
            return CpuLane(spec, file, limits, resources, progress)
        except BaseException:
            resources.worker_pool.close()
            raise

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> CpuSections:
        """Compile a model in sections, the stages of `spec`; other devices read the buffers `exposed` after each."""
        sections = sections_of(spec, exposed)
        resources = self._prepared(spec, file, limits, progress, sections)
        try:
            return CpuSections(spec, sections, file, limits, resources, progress)
        except BaseException:
            resources.worker_pool.close()
            raise

    def _prepared(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress, sections: Sections | None = None
    ) -> LaneResources:
        """What a lane runs with, once the kernels are ready."""
        by_records = limits.stored is not None and limits.stored.by_records
        needed = kernels_of(
            spec, file.tensors, limits.kv, self.isa, sections, by_records=by_records, budgets=limits.budgets
        )
        needed += FILLING if limits.stored is not None and spec.has_experts else ()
        self.library.prepare(needed, len(self.cores), progress)
        shared = self._worker_pool
        if shared is None or shared.closed:
            self._worker_pool = WorkerPool(self.n_workers, self._pinned_to, self.library)
        else:
            self._worker_pool = shared.share()
        return LaneResources(self._worker_pool, self.library, self.isa, self._n_nodes, self._lane())

    def close(self) -> None:
        """Does nothing: lanes own the threads."""


def _lane_kind(spec: ModelSpec, limits: Limits) -> type[CpuLane]:
    """The lane for these limits; the code for what is on disk is loaded only if something is."""
    if kv_file_bytes(spec.kv, limits):
        from edgeinfer.backends.cpu.lanes.filed import FiledLane

        return FiledLane
    if limits.stored is None:
        return CpuLane
    from edgeinfer.backends.cpu.lanes.streamed import StreamedLane

    return StreamedLane


def _check_conversions(features: frozenset[str]) -> None:
    """Raise DeviceUnavailable on an x86 that lacks float16 conversion or fused multiply-add."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    missing = [name for name in ("f16c", "fma") if name not in features]
    if is_x86 and missing:
        raise DeviceUnavailable(
            f"this CPU has no {' and no '.join(missing)} instructions, which the cpu device needs (x86 processors have "
            "them since 2013, the smallest ones since 2023); the device reference runs anywhere, slowly"
        )


def open_device(options: DeviceOptions) -> CpuDevice:
    """The CPU device with these options."""
    return CpuDevice(options)


def compile_usual(kv: KVKind, ggml_types: Sequence[int]) -> None:
    """Compile the missing kernels of a Llama with these weight types. Raises what opening such a model would."""
    device = CpuDevice(DeviceOptions())
    device.library.prepare(usual_kernels(kv, device.isa, ggml_types), len(device.cores), no_progress)
