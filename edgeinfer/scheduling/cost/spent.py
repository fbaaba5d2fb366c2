"""What the seconds of a pass are spent on, and hence what limits it.

In: seconds by cause. Out: their sum, and the name of the largest. Knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the weights and the arithmetic of matmuls, of attention, of calls, of links and of the disk."""

    memory: float = 0.0
    arithmetic: float = 0.0
    attention: float = 0.0
    overhead: float = 0.0
    link: float = 0.0
    disk: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.memory + other.memory,
            self.arithmetic + other.arithmetic,
            self.attention + other.attention,
            self.overhead + other.overhead,
            self.link + other.link,
            self.disk + other.disk,
        )

    @property
    def total(self) -> float:
        return self.memory + self.arithmetic + self.attention + self.overhead + self.link + self.disk

    @property
    def largest(self) -> str:
        """The largest share of the time."""
        parts = {
            "memory bandwidth": self.memory,
            "arithmetic": self.arithmetic,
            "attention": self.attention,
            "overhead": self.overhead,
            "link": self.link,
            "disk": self.disk,
        }
        return max(parts, key=lambda name: parts[name])
