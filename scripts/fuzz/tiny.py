"""A tiny model that targets have open, so that what they read can be used."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load

DATA = Path(__file__).resolve().parents[2] / "tests/golden/data"
ATTENDING, RECURRENT, WINDOWED = "llama-implicit-q8_0", "lfm2-q8_0", "gemma3-q8_0"


@cache
def opened(name: str = ATTENDING) -> LLM:
    """A tiny model on the cpu, with one worker."""
    llm = load(DATA / f"{name}.gguf", device="cpu", n_context=256, threads=1, spec="off")
    atexit.register(llm.close)
    return llm
