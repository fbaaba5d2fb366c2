"""What the clients' scripts share: tools, what is said to the model, and a command line. Imports no client.

A client's script runs its scenes in its own environment, at `sys.argv[1]`: an address, in which {scene} and {mode} are
replaced. What happens in each scene is printed as one JSON object.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

BRIEF = "Answer briefly, and use the tools."
FIRST = "How wet is Köln?"
NEXT = "And <b>now</b>?"
LATE = "From here on, answer in German."
PARTS = ("Look at both:", "Köln and {{ Rome }}.")
MOST_STEPS = 6
MODEL = "test-model"
MODES = ("whole", "stream")
SCENES = ("plain", "tools", "thoughts", "structured", "instructions", "required", "named")
RAIN = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "rain_mm": {"type": "integer"}},
    "required": ["city", "rain_mm"],
    "additionalProperties": False,
}
"""What the scenes "structured" and "typed" ask for at the end."""


class NoSuchPlace(Exception):
    """What a tool raises."""


def weather(city: str, days: int) -> str:
    """Rain in a city in the next days.

    Args:
        city: Its name.
        days: How many days.
    """
    if city == "Atlantis":
        raise NoSuchPlace("there is no Atlantis")
    return json.dumps({"city": city, "days": days, "rain_mm": 5}, ensure_ascii=False)


def clock() -> str:
    """The time."""
    return "12:00 «noon»"


def run_scenes(run: Callable[[str, str, str], Any], scenes: Sequence[str] = SCENES) -> None:
    """Run `run(scene, mode, address)` for scenes and modes, or those of them that the command line names."""
    address, chosen = sys.argv[1], sys.argv[2:]
    with asyncio.Runner() as runner:
        for scene, mode in product(scenes, MODES):
            if chosen and scene not in chosen:
                continue
            place = address.replace("{scene}", scene).replace("{mode}", mode)
            try:
                seen = run(scene, mode, place)
                seen = runner.run(seen) if inspect.iscoroutine(seen) else seen
                told = {"scene": scene, "mode": mode, "seen": seen}
            except Exception as reason:
                told = {"scene": scene, "mode": mode, "failed": f"{type(reason).__name__}: {reason}"[:600]}
            print(json.dumps(told, default=str, ensure_ascii=False), flush=True)
