"""Execution providers by the names users give: "cuda" of "onnx:cuda".

In: a target, what ONNX Runtime reports. Out: providers in order of preference. Knows which package contains which
provider.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.errors import DeviceUnavailable

SUFFIX = "ExecutionProvider"
CPU = "CPUExecutionProvider"
REMOTE = "azure"
"""A provider that sends its input to a server; it is never used."""
PACKAGES = {
    "cuda": "onnxruntime-gpu",
    "tensorrt": "onnxruntime-gpu",
    "dml": "onnxruntime-directml",
    "coreml": "onnxruntime (on macOS)",
    "qnn": "onnxruntime-qnn",
    "openvino": "onnxruntime-openvino",
    "webgpu": "onnxruntime-webgpu",
    "migraphx": "onnxruntime-migraphx",
    "cann": "onnxruntime-cann",
}


def target_of(provider: str) -> str:
    """The user-facing name of a provider."""
    return provider.removesuffix(SUFFIX).lower()


def providers_for(target: str, available: Sequence[str]) -> tuple[str, ...]:
    """The provider of a target ("" is the CPU), followed by the CPU provider as fallback. Raises DeviceUnavailable."""
    by_target = {target_of(name): name for name in available if target_of(name) != REMOTE}
    wanted = target.lower() or target_of(CPU)
    if wanted not in by_target:
        package = PACKAGES.get(wanted)
        advice = f"; that provider comes with: pip install {package}" if package else ""
        there_are = ", ".join(f"onnx:{name}" for name in sorted(by_target))
        raise DeviceUnavailable(
            f"the installed ONNX Runtime has no execution provider {target[:40]!r}; it has: {there_are}{advice}"
        )
    return tuple(dict.fromkeys((by_target[wanted], CPU)))
