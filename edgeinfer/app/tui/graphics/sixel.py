"""Pictures by Sixel: a widget of the package textual-image (LGPL), which is imported only when there is one to show.

In: a picture, the size of a cell. Out: a widget, which paints over its cells; so it belongs where nothing scrolls. The
package asks the terminal for its features when it is imported, unless standard output is none; the answers would reach
the app as keys. So it is imported without a terminal, and told the size of a cell by the variables that it reads then.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from textual.widget import Widget

from edgeinfer.app.sessions.kept_images import Preview

_SIZE_VARIABLES = ("TEXTUAL_CELL_WIDTH", "TEXTUAL_CELL_HEIGHT")


def prepare_sixel(cell: tuple[int, int]) -> None:
    """Import the package, for a terminal with cells of this width and height in pixels; may be called in a thread."""
    if "textual_image.widget" not in sys.modules:
        with _without_terminal(cell):
            import textual_image.widget  # noqa: F401


def sixel_widget(picture: Preview, columns: int, rows: int) -> Widget:
    """A widget of this size that shows the picture, after `prepare_sixel`."""
    from PIL.Image import frombytes
    from textual_image.widget import SixelImage, SixelOptions

    image = frombytes("RGB", (picture.width, picture.height), picture.rgb)
    widget: Widget = SixelImage(image, sixel_options=SixelOptions(quantize="adaptive"))
    widget.styles.width, widget.styles.height = columns, rows
    return widget


@contextmanager
def _without_terminal(cell: tuple[int, int]) -> Iterator[None]:
    stdout, kept = sys.__stdout__, {name: os.environ.get(name) for name in _SIZE_VARIABLES}
    os.environ.update(zip(_SIZE_VARIABLES, map(str, cell), strict=True))
    vars(sys)["__stdout__"] = io.StringIO()
    try:
        yield
    finally:
        vars(sys)["__stdout__"] = stdout
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
