"""What a pass over k tokens costs: T(k), measured once for a plan and corrected while text is generated.

In: seconds of passes, or an assumed curve. Out: float32[MOST + 1], seconds, that the growth of trees reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.engine.speculation.records import MOST


class Costs:
    """A curve of costs."""

    def __init__(self, points: Mapping[int, float]) -> None:
        known = {1: 1.0, **points}
        sizes = np.arange(MOST + 1)
        places = sorted(known)
        values = np.interp(sizes, places, [known[place] for place in places])
        last, before = places[-1], places[-2] if len(places) > 1 else places[-1]
        slope = (known[last] - known[before]) / (last - before) if last > before else 1.0
        beyond = sizes > last
        values[beyond] = known[last] + slope * (sizes[beyond] - last)
        self.seconds = np.ascontiguousarray(values, np.float32)

    @property
    def address(self) -> int:
        return int(self.seconds.ctypes.data)
