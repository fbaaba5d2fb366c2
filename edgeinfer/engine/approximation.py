"""Which device runs a model whose small activations count as zero.

In: the threshold and the device that is asked for. Out: the device, or why there is none. Knows nothing of models.
"""

from __future__ import annotations

from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.errors import BadSetting
from edgeinfer.models.thresholds import check_threshold

AUTO = "auto"
ABLE = (AUTO_DEVICE, "reference")
"""Devices that run such models."""


def approximate_on(device: str, approx: float | None) -> str:
    """The device to use: the one asked for, but where small activations are left out the cpu. Raises BadSetting."""
    if approx is None:
        return device
    check_threshold(approx)
    if device not in (AUTO, *ABLE):
        raise BadSetting(f"{device} does not leave small activations out: use --device cpu with --approx, or neither")
    return AUTO_DEVICE if device == AUTO else device
