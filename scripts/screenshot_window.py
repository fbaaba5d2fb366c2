"""Takes a picture of the example window with the starter model, for docs/screenshots.

Run: `QT_QPA_FONTDIR=FOLDER python scripts/screenshot_window.py [FILE]` with `pip install 'edgeinfer[examples]'`; the
folder holds fonts (Debian: fonts-dejavu, /usr/share/fonts/truetype/dejavu). Nothing is shown on a screen.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from chat_window import ChatWindow
from PySide6.QtWidgets import QApplication

QUESTIONS = ("What is a lighthouse for? Answer in two sentences.", "Name three things that its keeper did.")
LOADING_S = 300.0


def main() -> None:
    app = QApplication([])
    window = ChatWindow("SmolLM2-135M-Instruct")
    window.show()

    def wait(seconds: float = LOADING_S) -> None:
        """Wait until the window accepts input."""
        ends = time.monotonic() + seconds
        while not window.input.isEnabled() or window.button.text() != "Send":
            assert time.monotonic() < ends, "the model does not answer"
            app.processEvents()
            time.sleep(0.005)

    wait()
    for question in QUESTIONS:
        window.input.setText(question)
        window.send()
        wait()
    app.processEvents()
    window.grab().save(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshots/window.png")
    window.close()


if __name__ == "__main__":
    main()
