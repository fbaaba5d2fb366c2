"""The live view of the machine as frozen records: what it has, what the model does on it, and what that takes.

`Readings` is asked whenever somebody looks and does nothing otherwise. Knows no terminal.
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
