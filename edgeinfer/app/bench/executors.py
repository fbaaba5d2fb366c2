"""The executors to measure: our device and those it is compared with, by the names that users give.

In: "cpu", "llama-cpp-python", "onnxruntime-genai:FOLDER", "python:FILE". Out: `BenchExecutor`s, checked as far as is
possible without loading anything. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeinfer.app.bench.peers import PEERS, module_name, peer_keys
from edgeinfer.backends.base import DEVICES
from edgeinfer.errors import BadSetting, DeviceUnavailable, UnknownKey
from edgeinfer.settings import KVKind, Spec

SCRIPT = "python"


@dataclass(frozen=True, slots=True)
class BenchExecutor:
    """An executor and its name in tables. `path`: the script, or the folder that a peer reads."""

    name: str
    kind: Literal["ours", "peer", "script"]
    key: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that are the same for every executor."""

    model: Path
    threads: int
    cores: tuple[int, ...] | None
    n_context: int
    kv: KVKind = "f16"
    spec: Spec = "auto"
    verify_cost: Mapping[int, float] = field(default_factory=dict)
    temp: float = 0.0
    schedule: str = "auto"
    ram_bytes: int | None = None
    approx: float | None = None


def ours(device: str) -> BenchExecutor:
    """Our device to measure, or several separated by commas. Raises UnknownKey."""
    unknown = [name for name in device.split(",") if name.partition(":")[0] not in DEVICES]
    if unknown:
        raise UnknownKey(f"no device is called {unknown[0]!r}; edgeinfer has: {', '.join(DEVICES.keys())}")
    return BenchExecutor(device.replace(",", "+"), "ours", device)


def read_against(text: str, device: str) -> tuple[BenchExecutor, ...]:
    """Parse executors separated by commas; a plus joins devices that share a model.

    Raises UnknownKey, BadSetting, DeviceUnavailable.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if device in names:
        raise BadSetting(f"--against cannot be {device!r}: that is what is measured (choose another with --device)")
    return tuple(_executor(name) for name in names)


def _executor(name: str) -> BenchExecutor:
    key, colon, path = name.partition(":")
    if key == SCRIPT and colon:
        if not Path(path).is_file():
            raise BadSetting(f"--against {name}: there is no file {path!r}")
        return BenchExecutor(name, "script", SCRIPT, Path(path))
    if all(part.partition(":")[0] in DEVICES for part in name.split("+")):
        return ours(name.replace("+", ","))
    if module_name(key) in PEERS:
        return _peer(name, key, Path(path) if path else None)
    known = ", ".join((*peer_keys(), *DEVICES.keys()))
    raise UnknownKey(
        f"--against cannot be {name!r}; choose from {known}, or python:FILE for a script that prints tok/s"
    )


def _peer(name: str, key: str, folder: Path | None) -> BenchExecutor:
    peer = PEERS.get(module_name(key))
    if not peer.installed:
        raise DeviceUnavailable(f"{key} is not installed: {peer.install}")
    if folder is None and not peer.reads_gguf:
        raise BadSetting(f"{key} reads no GGUF file but folders of its own: give one as {key}:FOLDER")
    if folder is not None and (peer.reads_gguf or not folder.is_dir()):
        wrong = "it reads the GGUF file itself" if peer.reads_gguf else f"there is no folder {str(folder)!r}"
        raise BadSetting(f"--against {name}: {wrong}")
    return BenchExecutor(name, "peer", key, folder)
