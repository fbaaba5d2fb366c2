"""The hub client's progress bars, turned into our progress callback.

In: a `Progress` and where this file stands in its model. Out: a class the client can use as its bar; it prints nothing.
Does not know what is downloaded.
"""

from __future__ import annotations

import importlib
import io
from typing import Any

from edgeinfer.models.download.policy import Progress, ProgressMeter


def progress_bar_class(progress: Progress, before_bytes: int, total_bytes: int) -> type[Any]:
    """A `tqdm` class for the hub client; `before_bytes` of the model's `total_bytes` are there already."""
    base: Any = importlib.import_module("tqdm").tqdm
    meter = ProgressMeter(progress)

    class SilentBar(base):  # type: ignore[misc]
        """A bar that reports instead of drawing."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "disable": False})
            meter.start(before_bytes + int(self.n), total_bytes)  # bytes of an earlier download are no speed

        def update(self, n: float | None = 1) -> bool | None:
            """Count `n` more bytes and report them."""
            shown = super().update(n)
            meter.report(before_bytes + int(self.n), total_bytes)
            return bool(shown)

    return SilentBar
