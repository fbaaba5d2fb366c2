"""The OpenVINO device: finds the chosen processor and compiles graphs for it.

In: worker count, cores and target. Out: lanes.
"""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from edgeinfer.backends.base import DeviceOptions, Joined, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.openvino.feeding import GraphFeed, signature_of
from edgeinfer.backends.openvino.footprint import float_layers, fragment_footprint
from edgeinfer.backends.openvino.graph import OpenVinoLowering, state_name
from edgeinfer.backends.openvino.kept import KeptGraphs, default_folder, key_of
from edgeinfer.backends.openvino.lane import JOINED_PRODUCTS, MOST_JOINED, OpenVinoFragmentLane, OpenVinoLane
from edgeinfer.backends.openvino.ops import DEVICE_OPS
from edgeinfer.backends.openvino.runtime import Placing, core, properties_of
from edgeinfer.backends.openvino.states import StateForm, States
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import Fragment, ModelSpec, whole
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.variants import refuse_thresholds
from edgeinfer.steps import Progress, no_progress

KEY = "openvino"


class OpenVinoDevice:
    """One of the processors that OpenVINO supports."""

    batch_invariant = False

    def __init__(self, options: DeviceOptions, folder: Path | None = None) -> None:
        """`folder`: where compiled graphs are cached; None: in the user's cache."""
        self._placing = Placing(options)
        self._core = core()
        self._options, self._kept = options, KeptGraphs(folder or default_folder())
        self.n_compiled = 0
        self._target = processor(options.target, self._core.available_devices)
        self._processor, self._has_bf16 = self._description()
        self.name = f"{KEY}:{options.target}" if options.target else KEY

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(
            fragments=self,
            joined=Joined(MOST_JOINED, JOINED_PRODUCTS),
            memory=self if self._target.startswith("GPU") else None,
        )

    def compile(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> OpenVinoLane:
        """A whole model."""
        fragment = whole(spec)
        n_weights = sum(op.weight.n_rows * op.weight.columns for op in spec.ops() if isinstance(op, MatMul))
        return OpenVinoLane(*self._parts(fragment, file, limits, progress), n_weights, spec.n_vocab)

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> OpenVinoFragmentLane:
        """A part of a model."""
        return OpenVinoFragmentLane(*self._parts(fragment, file, limits, progress))

    def _parts(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress
    ) -> tuple[GraphFeed, States, tuple[str, ...], int, Placing]:
        compiled = self._compiled(fragment, file, limits, progress)
        self._placing.expect_threads()
        states = States(compiled, state_forms(fragment), limits.n_pages * PAGE)
        taken = fragment_footprint(fragment, file.tensors, limits)
        n_bytes = taken.weight_bytes + taken.kv_bytes + taken.buffer_bytes
        return GraphFeed(signature_of(fragment), file), states, fragment.outputs, n_bytes, self._placing

    def _compiled(self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress) -> ov.CompiledModel:
        """The graph of a fragment: the cached one, or a new one, which is then cached."""
        refuse_thresholds(fragment.spec, self.name)
        DEVICE_OPS.check(fragment.spec.ops())
        properties = properties_of(fragment.spec, file.tensors, limits, self._options, self._target, self._has_bf16)
        key = key_of(fragment, file, properties, self._processor)
        found = self._kept.find(self._core, key, self._target, properties)
        if found is None:
            model = OpenVinoLowering(fragment, file).model(progress)
            progress("compiling the graph", 0, 1)
            try:
                found = self._core.compile_model(model, self._target, properties)
            except RuntimeError as reason:
                raise _failure(reason, self._target) from None
            self._kept.keep(key, found)
            self.n_compiled += 1
            progress("compiling the graph", 1, 1)
        return found

    def _description(self) -> tuple[str, bool]:
        """The processor's own name, and whether it computes with bfloat16."""
        if self._target == "AUTO":
            return " ".join(self._core.available_devices), False
        name = str(self._core.get_property(self._target, "FULL_DEVICE_NAME"))
        return name, "BF16" in self._core.get_property(self._target, "OPTIMIZATION_CAPABILITIES")

    @property
    def memory_bytes(self) -> int:
        """Bytes of a GPU's memory."""
        return int(self._core.get_property(self._target, "GPU_DEVICE_TOTAL_MEM_SIZE"))

    def close(self) -> None:
        """Nothing to release: lanes own their graphs."""


def processor(target: str, available: list[str]) -> str:
    """OpenVINO's name of a target ("" means its CPU). Raises DeviceUnavailable."""
    wanted = target.upper() or "CPU"
    if wanted == "AUTO" or wanted in available or f"{wanted}.0" in available:
        return wanted
    there_are = ", ".join(f"openvino:{name.lower()}" for name in [*available, "auto"])
    raise DeviceUnavailable(f"OpenVINO finds no {target!r} on this machine; there are {there_are}")


def state_forms(fragment: Fragment) -> list[StateForm]:
    """The states of a fragment's graph, layer by layer."""
    floats, forms = float_layers(fragment.spec), []
    for layer in signature_of(fragment).layers:
        kept = fragment.spec.kv[layer]
        for part, width in (("key", kept.key_width), ("value", kept.value_width)):
            forms.append(StateForm(state_name(layer, part), kept.kv_heads, width, layer in floats))
    return forms


def _failure(reason: RuntimeError, target: str) -> Exception:
    """The exception for a failed compilation."""
    text = str(reason)
    if any(
        word in text for word in ("bad_alloc", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "CL_MEM_OBJECT_ALLOCATION")
    ):
        return MemoryError(text)
    return DeviceUnavailable(f"OpenVINO cannot compile this model for {target}: {text.strip().splitlines()[-1]}")


def targets() -> tuple[str, ...]:
    """Processors that OpenVINO supports on this machine, by user-facing name."""
    return tuple(name.lower() for name in core().available_devices)
