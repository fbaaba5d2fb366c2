"""The ONNX device: any model as an ONNX graph, run by ONNX Runtime on the chosen execution provider.

Decoder folders written by other programs are run as they are, by an `Evaluator`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.backends.evaluator import Evaluator, EvaluatorKind
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.steps import Progress

KEY, RUNTIME = "onnx", "onnxruntime"
PACKAGES = (RUNTIME, "onnx")
INSTALL = "pip install 'edgeinfer[onnx]'"


def _footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """The memory a lane takes, as `footprint.footprint` counts it; imported on first use to keep startup short."""
    from edgeinfer.backends.onnx.footprint import footprint as counted

    return counted(spec, tensors, limits)


def _open(options: DeviceOptions) -> Device:
    require_packages()
    from edgeinfer.backends.onnx.device import open_device  # loads ONNX Runtime

    return open_device(options)


def require_packages(wanted: tuple[str, ...] = PACKAGES) -> None:
    """Raises DeviceUnavailable, saying what to install, if a package is missing."""
    missing = [name for name in wanted if not _is_installed(name)]
    if missing:
        raise DeviceUnavailable(f"the onnx device needs {' and '.join(missing)}, not installed here: {INSTALL}")


def _is_installed(name: str) -> bool:
    """Whether the package exists; a folder of that name without code does not count."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def _open_folder(path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> Evaluator:
    require_packages(PACKAGES)
    from edgeinfer.backends.onnx.decoder import open_evaluator  # loads ONNX Runtime

    return open_evaluator(path, limits, options, progress)


def _entrants() -> tuple[str, ...]:
    from edgeinfer.backends.onnx.device import targets  # loads ONNX Runtime

    return ("onnx", *(f"onnx:{target}" for target in targets() if target != "cpu"))


FOLDERS = EvaluatorKind(KEY, "folders of optimum and onnxruntime-genai", RUNTIME, INSTALL, _open_folder, _footprint)
DEVICE = DeviceKind(
    KEY,
    "ONNX Runtime, on any execution provider it has",
    _open,
    _footprint,
    host_targets=frozenset({"", "cpu"}),
    modules=PACKAGES,
    entrants=_entrants,
    folders=FOLDERS,
)
