"""The ONNX device: finds the chosen execution provider, compiles fragments and whole models.

In: options. Out: lanes. Raises DeviceUnavailable if ONNX Runtime lacks the provider.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnxruntime

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.onnx.lane import OnnxFragmentLane, OnnxLane
from edgeinfer.backends.onnx.ops import DEVICE_OPS
from edgeinfer.backends.onnx.session import CPU, REMOTE, providers_for, target_of
from edgeinfer.errors import BadSetting
from edgeinfer.graph.graph import Fragment, ModelSpec, whole
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.variants import refuse_thresholds
from edgeinfer.process import allowed_cpus, require_cpus
from edgeinfer.steps import Progress, no_progress

MOST_THREADS = 256


@dataclass(frozen=True, slots=True)
class Seats:
    """Where sessions run: providers in order of preference, number of threads, the cores they are pinned to or ()."""

    name: str
    providers: tuple[str, ...]
    n_workers: int
    pinned_to: tuple[int, ...]


def seats_of(options: DeviceOptions) -> Seats:
    """The session settings for these options. Raises DeviceUnavailable for a missing provider, BadSetting."""
    providers = providers_for(options.target, onnxruntime.get_available_providers())
    name = f"onnx:{options.target}" if options.target else "onnx"
    cores = allowed_cpus() if options.cores is None else options.cores
    require_cpus(cores)
    n_workers = len(cores) if options.n_workers is None else options.n_workers
    if not 1 <= n_workers <= MOST_THREADS:
        raise BadSetting(f"{n_workers} threads asked for; use 1 to {len(cores)}")
    pinned = options.cores is not None and options.pins and len(cores) >= n_workers
    return Seats(name, providers, n_workers, tuple(cores[:n_workers]) if pinned else ())


class OnnxDevice:
    """Graphs of ONNX operators on one execution provider."""

    batch_invariant = False  # products of several rows use other kernels than those of one, and sum in another order

    def __init__(self, options: DeviceOptions) -> None:
        self._seats = seats_of(options)
        self.name, self.n_workers = self._seats.name, self._seats.n_workers

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(fragments=self)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> OnnxLane:
        """A whole model as a graph."""
        part = self.compile_fragment(whole(spec), file, limits, progress)
        return OnnxLane(
            part, spec.logits, apart=self._seats.providers[0] != CPU
        )  # drivers may stall within an operator

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> OnnxFragmentLane:
        """Part of a model as a graph. Raises UnsupportedModel for a part that cannot be a graph, DeviceFailed."""
        refuse_thresholds(fragment.spec, self.name)
        DEVICE_OPS.check(fragment.spec.ops())
        threads = self.n_workers, self._seats.pinned_to
        return OnnxFragmentLane(fragment, file, limits, self._seats.providers, threads, progress)

    def close(self) -> None:
        """Nothing to release: lanes own everything."""


def targets() -> tuple[str, ...]:
    """Execution providers of the installed ONNX Runtime that compute on this machine, by user-facing name."""
    found = (target_of(name) for name in onnxruntime.get_available_providers())
    return tuple(name for name in found if name != REMOTE)


def open_device(options: DeviceOptions) -> OnnxDevice:
    """The ONNX device with these options. Disables telemetry that ONNX Runtime sends on some systems."""
    onnxruntime.disable_telemetry_events()
    return OnnxDevice(options)
