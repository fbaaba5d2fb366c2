"""Profiles measured on this machine, stored as readable TOML files, one per machine fingerprint.

In: a topology or a profile. Out: the profile of the machine with that fingerprint, if it was measured. An unreadable
file is ignored and measured again; a failed write is ignored.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from pathlib import Path

from edgeinfer.engine.measure.calibration import PredictionCalibration
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import Topology
from edgeinfer.temporary import write_whole


class ProfileStore:
    """The folder of profiles (default: in the user's data folder)."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            from edgeinfer.models.store import default_root

            folder = default_root().parent / "profiles"
        self.folder = folder

    def path(self, fingerprint: str) -> Path:
        """The file of a machine's profile."""
        return self.folder / f"{fingerprint}.toml"

    def calibration(self, fingerprint: str, *, streams: bool = False) -> PredictionCalibration:
        """The prediction calibration of a machine; models that stream have their own."""
        return PredictionCalibration(self.folder / f"{fingerprint}.experience.json", streams=streams)

    def forget_calibration(self, fingerprint: str) -> None:
        """Clear the calibration: a new profile starts without corrections of an old one."""
        with suppress(OSError):
            (self.folder / f"{fingerprint}.experience.json").unlink()

    def find(self, fingerprint: str) -> Profile | None:
        """The profile of a machine; None if there is no usable one."""
        from edgeinfer.scheduling.machine.profile_file import read_profile

        path = self.path(fingerprint)
        if not path.is_file():
            return None
        try:
            found = read_profile(path)
        except EdgeInferError:
            return None
        return found if found.fingerprint == fingerprint else None

    def save(self, profile: Profile) -> Path | None:
        """Store a profile atomically; None if it cannot be written."""
        from edgeinfer.scheduling.machine.profile_file import profile_text

        if not write_whole(self.path(profile.fingerprint), profile_text(profile)):
            return None
        self.forget_calibration(profile.fingerprint)
        return self.path(profile.fingerprint)


GIB = 1 << 30


def machine_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def fingerprint_of(topology: Topology) -> str:
    """16 hex digits of: processor, usable cores, caches, memory to the gigabyte, container quota."""
    cores = [(core.number, core.kind, core.node) for core in topology.cores]
    facts = (
        platform.system(),
        machine_name(),
        cores,
        topology.quota,
        topology.l3_bytes,
        round(topology.total_bytes / GIB),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
