"""Parts of a model, compiled for one device.

In: an open device, fragments. Out: a lane for each of them. Knows neither where parts come from nor who runs them when.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.backends.base import Device, FragmentLane, Limits
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


def compiled_fragments(
    device: Device, fragments: Sequence[Fragment], file: GGUFFile, limits: Limits, progress: Progress
) -> list[FragmentLane]:
    """A lane for each fragment; a device that shares its memory out among parts gets all of them at once.

    Raises DeviceUnavailable for a device that takes no parts, and as devices do; nothing stays open then.
    """
    single, together = device.capabilities.fragments, device.capabilities.parts
    if single is None:
        raise DeviceUnavailable(f"the device {device.name} cannot run part of a model; use it alone")
    if together is not None:
        return list(together.compile_fragments(fragments, file, limits, progress)) if fragments else []
    lanes: list[FragmentLane] = []
    try:
        for fragment in fragments:
            lanes.append(single.compile_fragment(fragment, file, limits, progress))
    except BaseException:
        for lane in lanes:
            lane.close()
        raise
    return lanes
