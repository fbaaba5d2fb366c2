"""stand-in"""
from __future__ import annotations
from dataclasses import dataclass
import re
@dataclass(frozen=True, slots=True)
class Fence:
    language: str
    text: str
def fences_of(text: str) -> tuple[Fence, ...]:
    return tuple(Fence(m[1], m[2]) for m in re.finditer(r"```(\w*)\n(.*?)```", text, re.S))
