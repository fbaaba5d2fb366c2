"""The package that draws by Sixel: imported without a question to the terminal, with a stand-in where it is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgeinfer.app.sessions.kept_images import Preview
from edgeinfer.app.tui.graphics.sixel import prepare_sixel, sixel_widget

PACKAGE = "textual_image"
STAND_IN = """
import os, sys
from textual.widget import Widget
SEEN = sys.__stdout__.isatty(), os.environ["TEXTUAL_CELL_WIDTH"], os.environ["TEXTUAL_CELL_HEIGHT"]
class SixelOptions:
    def __init__(self, quantize):
        self.quantize = quantize
class SixelImage(Widget):
    def __init__(self, image, *, sixel_options):
        super().__init__()
        self.image = image
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of this name that notes what it sees when it is imported."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").touch()
    (tmp_path / PACKAGE / "widget.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)


class Tty:
    """A standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("package")
def test_the_package_sees_no_terminal_and_the_size_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Tty()
    monkeypatch.setattr("sys.__stdout__", stdout)
    monkeypatch.setenv("TEXTUAL_CELL_WIDTH", "5")
    monkeypatch.delenv("TEXTUAL_CELL_HEIGHT", raising=False)
    try:
        prepare_sixel((9, 18))
        assert sys.modules["textual_image.widget"].SEEN == (False, "9", "18")
        assert sys.__stdout__ is stdout
        assert os.environ["TEXTUAL_CELL_WIDTH"] == "5"
        assert "TEXTUAL_CELL_HEIGHT" not in os.environ
        widget = sixel_widget(Preview(2, b"abcdef" * 3), 4, 7)
        assert widget.image.tobytes() == b"abcdef" * 3  # type: ignore[attr-defined]
        assert widget.image.size == (2, 3)  # type: ignore[attr-defined]
        assert (str(widget.styles.width), str(widget.styles.height)) == ("4", "7")
    finally:
        for name in ("textual_image.widget", "textual_image"):
            sys.modules.pop(name, None)
