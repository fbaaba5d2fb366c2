"""Disks as this machine may have been measured to have: one for single neurons, one for whole layers."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.machine.topology import read_topology
from tests.unit.scheduling.profiles import machine

SIZES = (4096, 1 << 18, 1 << 20)
DISKS = {
    "by neurons": Disk({4: Curve(SIZES, (5e8, 5e8, 5e8)), 16: Curve(SIZES, (5e8, 5e8, 5e8))}),  # reads cost nothing
    "whole": Disk({4: Curve(SIZES, (4e6, 2e9, 2e9)), 16: Curve(SIZES, (4e6, 2e9, 2e9))}),  # a read costs a millisecond
}


def measured(disk: Disk) -> None:
    """Have it in the profile of this machine, in the present home."""
    known = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), disk=disk, **known))
