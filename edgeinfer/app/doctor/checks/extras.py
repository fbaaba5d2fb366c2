"""Optional packages: which are here, what others would add, and accelerators that nothing uses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.topology.files import text_of


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package: `packages` by what is imported, and what they are good for.

    Without the `device` or the `command` of that name in this version it would add nothing yet. `vendors`: whose
    accelerators the device runs on.
    """

    packages: Mapping[str, str]
    adds: str
    device: str = ""
    command: str = ""
    vendors: tuple[str, ...] = ()


SERVER = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "pydantic": "pydantic",
    "prometheus_client": "prometheus_client",
    "llguidance": "llguidance",
}
EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "hub": Extra({"huggingface_hub": "huggingface_hub"}, "models from the Hugging Face hub: edgeinfer pull hf:…"),
        "schema": Extra({"llguidance": "llguidance"}, "answers that follow a schema or a grammar"),
        "server": Extra(SERVER, "an OpenAI-compatible server: edgeinfer serve", command="serve"),
        "llamacpp": Extra(
            {"llama_cpp": "llama-cpp-python"}, "comparing with it: edgeinfer bench --against llama-cpp-python"
        ),
        "onnx": Extra({"onnxruntime": "onnxruntime", "onnx": "onnx"}, "--device onnx", "onnx", vendors=("AMD",)),
        "openvino": Extra({"openvino": "openvino"}, "--device openvino", "openvino", vendors=("Intel",)),
        "cuda": Extra(
            {"numba_cuda": "numba-cuda", "cupy": "cupy-cuda12x"}, "--device cuda", "cuda", vendors=("NVIDIA",)
        ),
    }
)
VENDORS = MappingProxyType({"0x10de": "NVIDIA", "0x8086": "Intel", "0x1002": "AMD", "0x1022": "AMD"})
NODES = (("sys/class/drm", "renderD", "GPU", "dev/dri"), ("sys/class/accel", "accel", "NPU", "dev/accel"))
MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class AcceleratorNode:
    """An accelerator that the system has a node for."""

    vendor: str
    kind: str
    node: str


@dataclass(frozen=True, slots=True)
class Installed:
    """Versions by import name, of what can be imported; the devices and commands of this version; accelerators."""

    versions: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    accelerators: tuple[AcceleratorNode, ...] = ()


def read(machine: ExaminedMachine) -> Installed:
    """What is installed, by the installer's records: nothing is imported."""
    from edgeinfer.app.cli import COMMANDS
    from edgeinfer.backends.base import DEVICES

    versions = {}
    for extra in EXTRAS.values():
        for module, package in extra.packages.items():
            if importlib.util.find_spec(module) is not None:
                versions[module] = _version(package)
    return Installed(versions, DEVICES.keys(), COMMANDS.keys(), tuple(accelerators(machine.root)))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def accelerators(root: Path) -> Iterator[AcceleratorNode]:
    """Accelerators with a node that programs open: render nodes, NVIDIA's own, NPUs."""
    nvidia = [number for number in range(MOST_NODES) if (root / f"dev/nvidia{number}").exists()]
    yield from (AcceleratorNode("NVIDIA", "GPU", f"/dev/nvidia{number}") for number in nvidia)
    for folder, name, kind, nodes in NODES:
        try:
            entries = sorted(entry.name for entry in (root / folder).iterdir() if entry.name.startswith(name))
        except OSError:
            continue
        for entry in entries[:MOST_NODES]:
            vendor = VENDORS.get(text_of(root / folder / entry / "device/vendor"), "")
            if vendor and not (vendor == "NVIDIA" and nvidia):
                yield AcceleratorNode(vendor, kind, f"/{nodes}/{entry}")


def judge(facts: Installed) -> Sequence[Finding]:
    """Every extra that this version can use, and accelerators that it cannot."""
    findings, served = [], set()
    for name, extra in EXTRAS.items():
        missing = [package for module, package in extra.packages.items() if module not in facts.versions]
        is_there = (not extra.device or extra.device in facts.devices) and (
            not extra.command or extra.command in facts.commands
        )
        mine = [each for each in facts.accelerators if each.vendor in extra.vendors]
        if is_there:
            served.update(mine)
        if is_there or not missing:
            findings.append(_extra(name, extra, facts, missing, mine if is_there else []))
    unused = [each for each in facts.accelerators if each not in served]
    if unused:
        names = ", ".join(f"{each.vendor} {each.kind} ({each.node})" for each in unused)
        message = f"not used, this version has no device for it: {names}"
        findings.append(Finding("accelerators", "ok", message, value=len(unused), unit="accelerators"))
    return findings


def _extra(
    name: str, extra: Extra, facts: Installed, missing: Sequence[str], mine: Sequence[AcceleratorNode]
) -> Finding:
    install = f"pip install 'edgeinfer[{name}]'"
    finding_name = f"extra-{name}"
    if not missing:
        versions = ", ".join(f"{package} {facts.versions[module]}" for module, package in extra.packages.items())
        return Finding(finding_name, "ok", f"installed: {versions}")
    if mine:
        nodes = ", ".join(f"{each.vendor} {each.kind} ({each.node})" for each in mine)
        return Finding(finding_name, "note", f"{nodes} could compute too, without {', '.join(missing)}", install)
    return Finding(finding_name, "ok", f"not installed; {install} adds {extra.adds}")


CHECK = Check(order=120, summary="optional packages and accelerators", read=read, judge=judge, unknown=Installed())
