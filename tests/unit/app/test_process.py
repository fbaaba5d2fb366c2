"""What a process says of its own memory, whoever started it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from edgeinfer.app.answer_record import peak_rss_bytes

HELD_BYTES = 300 << 20


def test_the_peak_is_the_process_own() -> None:
    held = np.ones(HELD_BYTES, np.uint8)
    own = peak_rss_bytes()
    assert own is not None
    assert own > HELD_BYTES
    asked = "from edgeinfer.app.answer_record import peak_rss_bytes; print(peak_rss_bytes())"
    child = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < HELD_BYTES
    del held
