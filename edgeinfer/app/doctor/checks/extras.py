"""Accelerators that could also compute if an optional package were installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.topology.linux_files import text_of


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package, named like its device. `vendor`: of the accelerators it runs on.

    `packages`: package names by import name.
    """

    vendor: str
    packages: Mapping[str, str]


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "onnx": Extra("AMD", {"onnxruntime": "onnxruntime", "onnx": "onnx"}),
        "openvino": Extra("Intel", {"openvino": "openvino"}),
        "cuda": Extra("NVIDIA", {"numba_cuda": "numba-cuda", "cupy": "cupy-cuda12x"}),
    }
)
VENDORS = MappingProxyType({"0x10de": "NVIDIA", "0x8086": "Intel", "0x1002": "AMD", "0x1022": "AMD"})
NODES = (("sys/class/drm", "renderD", "GPU", "dev/dri"), ("sys/class/accel", "accel", "NPU", "dev/accel"))
MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class AcceleratorNode:
    """An accelerator that has a device node."""

    vendor: str
    kind: str
    node: str


@dataclass(frozen=True, slots=True)
class Installed:
    """Versions of the importable packages by import name, and the accelerators."""

    versions: Mapping[str, str] = field(default_factory=dict)
    accelerators: tuple[AcceleratorNode, ...] = ()


def read(machine: ExaminedMachine) -> Installed:
    """Read what is installed from the installer's records; imports nothing."""
    packages = {module: package for extra in EXTRAS.values() for module, package in extra.packages.items()}
    versions = {
        module: _version(package)
        for module, package in packages.items()
        if importlib.util.find_spec(module) is not None
    }
    return Installed(versions, tuple(accelerators(machine.root)))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def accelerators(root: Path) -> Iterator[AcceleratorNode]:
    """Accelerators with a device node that programs open: render nodes, NVIDIA's own nodes, NPUs."""
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
    """For each accelerator vendor, whether its extra is installed."""
    findings = []
    for name, extra in EXTRAS.items():
        own = [f"{node.vendor} {node.kind} ({node.node})" for node in facts.accelerators if node.vendor == extra.vendor]
        missing = [package for module, package in extra.packages.items() if module not in facts.versions]
        if own and missing:
            message = f"{', '.join(own)} could compute too, with {', '.join(missing)}"
            findings.append(Finding(f"extra-{name}", "note", message, f"pip install 'edgeinfer[{name}]'"))
        elif not missing:
            versions = ", ".join(f"{package} {facts.versions[module]}" for module, package in extra.packages.items())
            findings.append(Finding(f"extra-{name}", "ok", f"installed: {versions}"))
    return findings


CHECK = Check(order=120, summary="packages for accelerators", read=read, judge=judge, unknown=Installed())
