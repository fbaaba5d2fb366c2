"""The OpenVINO device: op lists as OpenVINO graphs, on any processor that OpenVINO supports.

These are x86 and ARM CPUs, and Intel's GPUs and NPUs. Weights stay 4 and 8 bits wide; keys and values are states of the
graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo


def _entrants() -> tuple[str, ...]:
    from edgeinfer.backends.openvino.device import targets  # loads openvino

    return ("openvino", *(f"openvino:{target}" for target in targets() if target != "cpu"))


def _footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """The memory a lane takes, as `footprint.footprint` counts it; imported on first use to keep startup short."""
    from edgeinfer.backends.openvino.footprint import footprint as counted

    return counted(spec, tensors, limits)


def _open(options: DeviceOptions) -> Device:
    try:
        from edgeinfer.backends.openvino.device import OpenVinoDevice  # loads openvino
    except ImportError as reason:
        raise DeviceUnavailable(
            f"the device openvino needs the package openvino ({reason}): pip install 'edgeinfer[openvino]'"
        ) from None
    return OpenVinoDevice(options)


DEVICE = DeviceKind(
    "openvino",
    "OpenVINO graphs on CPU, Intel GPU or NPU (openvino:gpu)",
    _open,
    _footprint,
    host_targets=frozenset({"", "cpu"}),
    modules=("openvino",),
    entrants=_entrants,
)
