"""OpenVINO itself, started once per process.

Out: its `Core`. Releasing a `Core` frees memory that is still in use (OpenVINO 2026.4: the heap is damaged once two of
them were opened and closed in turn), so all devices share one, which is never released.
"""

from __future__ import annotations

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """The runtime. Raises RuntimeError if it does not start."""
    return ov.Core()
