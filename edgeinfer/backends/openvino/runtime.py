"""OpenVINO itself, started once in a process.

Out: its `Core`. One that is let go takes memory with it that is still in use (OpenVINO 2026.4: the heap is damaged once
two of them were opened and closed in turn), so there is one for all devices, for good.
"""

from __future__ import annotations

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """The runtime. Raises RuntimeError where it does not start."""
    return ov.Core()
