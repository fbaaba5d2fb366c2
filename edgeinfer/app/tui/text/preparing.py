"""Drawing a little of everything once, before there is something to draw: what that imports takes 30 ms and more.

In and out: nothing. For a thread, while a model is opened: no answer waits for it then, or shares its cores with it.
"""

from __future__ import annotations

from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.app.tui.text.growing_lines import GrowingLines

SOME = "Some **words** of `text`:\n\n- an item\n\n```python\ndef code(x: int) -> int:\n    return x + 1\n```\n"


def prepare() -> None:
    """Import what answers are drawn with, and begin to use it."""
    lines = GrowingLines()
    lines.push(SOME)
    lines.finish()
    lines.lines(Drawer(40, Palette()))
