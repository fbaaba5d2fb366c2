"""The disk that holds the models: free space, kind, and measured read rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine, Mount
from edgeinfer.scheduling.machine.topology.linux_files import number_of
from edgeinfer.text_values import size_text

FULL_BYTES = 100e6
SCARCE_BYTES = 5e9
"""Less than a typical model takes."""
NETWORKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afpfs", "webdav", "ceph", "glusterfs", "9p", "davfs")
SLOW_BYTES_S = 200e6


@dataclass(frozen=True, slots=True)
class ModelDisk:
    """Where `folder` is stored. `is_rotating`, `read_bytes_s`: None if unknown; all virtual disks claim to rotate."""

    folder: Path | None = None
    free_bytes: int | None = None
    device: str = ""
    kind: str = ""
    is_rotating: bool | None = None
    read_bytes_s: float | None = None


def read(machine: ExaminedMachine) -> ModelDisk:
    """Read the system's and the profile's facts about the disk."""
    mount = mount_of(machine.models, machine.system.mounts())
    disk = None if machine.profile is None else machine.profile.disk
    return ModelDisk(
        folder=machine.models,
        free_bytes=machine.system.free_bytes(machine.models),
        device=mount.device if mount else "",
        kind=mount.kind if mount else "",
        is_rotating=rotates(machine.root, mount.device) if mount and not machine.is_virtual else None,
        read_bytes_s=disk.best_bytes_s if disk else None,
    )


def mount_of(folder: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The file system of a folder: the innermost mount around it; of several at one point, the one mounted last."""
    around = [mount for mount in mounts if folder.is_relative_to(mount.point)]
    return max(reversed(around), key=lambda mount: len(mount.point.parts), default=None)


def rotates(root: Path, device: str) -> bool | None:
    """Whether a device reports rotating disks; for a partition, its disk reports it."""
    try:
        name = Path(device).resolve().name if device.startswith("/dev/") else ""
        place = (root / "sys/class/block" / name).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    if not name:
        return None
    for folder in (place, place.parent):
        rotational = number_of(folder / "queue/rotational")
        if rotational is not None:
            return rotational == 1
    return None


def judge(facts: ModelDisk) -> Sequence[Finding]:
    """Whether there is space, and whether loading will be slow."""
    return [*_room(facts), *_kind(facts), *_rate(facts)]


def _room(facts: ModelDisk) -> Iterator[Finding]:
    if facts.free_bytes is None:
        return
    message = f"{size_text(facts.free_bytes)} free in {facts.folder}"
    value = round(facts.free_bytes / 1e9, 2)
    fix = "edgeinfer rm NAME, or set EDGEINFER_HOME to a folder on a larger disk"
    if facts.free_bytes < FULL_BYTES:
        yield Finding("disk", "wrong", f"{message}: the disk is full", fix, value, "GB")
    elif facts.free_bytes < SCARCE_BYTES:
        yield Finding("disk", "note", f"{message}: no room for a larger model", fix, value, "GB")
    else:
        yield Finding("disk", "ok", message, value=value, unit="GB")


def _kind(facts: ModelDisk) -> Iterator[Finding]:
    if facts.kind.lower() in NETWORKS:
        message = f"models are on a network file system ({facts.kind}, {facts.device}): loading waits for it"
        yield Finding("disk-kind", "note", message, "set EDGEINFER_HOME to a folder on a local disk")
    elif facts.is_rotating and facts.read_bytes_s is None:  # a measured rate says more
        message = f"{facts.device} says it is a turning disk: loading is slow"
        yield Finding("disk-kind", "note", message, "set EDGEINFER_HOME to a folder on an SSD, if there is one")


def _rate(facts: ModelDisk) -> Iterator[Finding]:
    if facts.read_bytes_s is None:
        return
    message = f"it reads {facts.read_bytes_s / 1e9:.2f} GB/s"
    value = round(facts.read_bytes_s / 1e9, 3)
    if facts.read_bytes_s < SLOW_BYTES_S:
        fix = "set EDGEINFER_HOME to a folder on a faster disk, if there is one"
        yield Finding("disk-rate", "note", f"{message}: 4 GB take {4e9 / facts.read_bytes_s:.0f} s", fix, value, "GB/s")
    else:
        yield Finding("disk-rate", "ok", message, value=value, unit="GB/s")


CHECK = Check(order=90, summary="disk", read=read, judge=judge, unknown=ModelDisk())
