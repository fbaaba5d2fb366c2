"""A live view of the machine as frozen records: its resources, what the model does on it, and what that costs.

`Readings` works only when it is queried. Knows no terminal.
"""

from edgeinfer.app.readings.records import (
    Cores,
    DraftCount,
    DraftingReading,
    Energy,
    MemoryReading,
    PlanStrip,
    Roofline,
)
from edgeinfer.app.readings.service import Readings

__all__ = ["Cores", "DraftCount", "DraftingReading", "Energy", "MemoryReading", "PlanStrip", "Readings", "Roofline"]
