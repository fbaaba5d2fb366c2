"""Which LoRA adapters to add to a model: the texts of the setting `lora`, read.

In: "FILE" or "FILE:SCALE". Out: `AdapterChoice`. Opens no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_SCALE = 1e6


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter's file, and the factor of what it adds."""

    path: str
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> AdapterChoice:
        """Parse FILE or FILE:SCALE. Raises ValueError, saying what is needed, for a scale that is too large."""
        path, colon, scale = text.rpartition(":")
        if not (colon and is_number(scale)):
            return cls(text)
        factor = float(scale)
        if not abs(factor) <= LARGEST_SCALE:
            raise ValueError(f"FILE or FILE:SCALE, with a scale from {-LARGEST_SCALE:g} to {LARGEST_SCALE:g}")
        return cls(path, factor)


def adapter_choices(texts: Sequence[object]) -> tuple[AdapterChoice, ...]:
    """The adapters that a setting names, one text each. Raises ValueError."""
    return tuple(AdapterChoice.parse(str(text)) for text in texts)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
