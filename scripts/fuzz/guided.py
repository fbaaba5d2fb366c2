"""Runs a target under coverage guidance: atheris instruments our modules, libFuzzer makes the inputs.

In: a target, seconds, a folder. Out: findings, told once a kind; their inputs and a line of the summary in the folder,
where TARGET.corpus keeps the inputs that reached something new, for the next run to begin with.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from campaign import HANG_S, kind_of
from mutation import MOST_BYTES
from summary import Piece, add
from worker import MOST_MEMORY_BYTES, seeds_of, tried

SPARE_S = 30
BEYOND_MIB = 2000
"""What coverage and the corpus take in memory."""


class Guided:
    """What is called with each input."""

    def __init__(self, name: str, target: Any, seconds: int, out: Path | None) -> None:
        self._target, self._out, self._began, self._seconds = target, out, time.monotonic(), seconds
        self._kinds: Counter[str] = Counter()
        self._piece = Piece(name, 0, 0, guided=True)

    def __call__(self, data: bytes) -> None:
        """Try an input; ends the process when the time is over, as libFuzzer would, which runs nothing at its end."""
        if time.monotonic() - self._began > self._seconds:
            self._close()
            os._exit(int(bool(self._piece.found)))
        is_read, problem = tried(self._target, data)
        self._piece.inputs, self._piece.read = self._piece.inputs + 1, self._piece.read + is_read
        kind = kind_of(problem)
        self._kinds[kind] += bool(problem)
        if not problem or self._kinds[kind] > 1:
            return
        name = f"{self._piece.target}-{hashlib.sha256(data).hexdigest()[:12]}"
        print(f"{name}: {problem}", flush=True)
        self._piece.found[kind] = self._piece.inputs, problem
        if self._out is not None:
            (self._out / name).write_bytes(data)

    def _close(self) -> None:
        """Tell and note what was done."""
        piece = self._piece
        piece.seconds = time.monotonic() - self._began
        told = f"{piece.target}: {piece.inputs} guided inputs in {piece.seconds:.0f} s, {piece.read} read whole"
        print(f"{told}, {len(piece.found)} kinds of findings", flush=True)
        if self._out is not None:
            add(self._out, piece)


def main() -> None:
    """Arguments: target, seconds, and perhaps a folder."""
    try:
        import atheris
    except ImportError:
        raise SystemExit("--atheris needs the package atheris: pip install atheris") from None
    name, seconds, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with atheris.instrument_imports(include=["edgeinfer.models", "edgeinfer.app", "edgeinfer.engine.kv", "targets"]):
        target = importlib.import_module(f"targets.{name}")
    corpus = Path(tempfile.mkdtemp()) if out is None else out / f"{name}.corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds_of(name, target):
        (corpus / f"seed-{hashlib.sha256(seed).hexdigest()[:12]}").write_bytes(seed)
    longest = getattr(target, "USUAL_BYTES", MOST_BYTES)
    limits = f"-max_total_time={seconds + SPARE_S}", f"-timeout={HANG_S:.0f}", f"-max_len={longest}"
    memory = f"-rss_limit_mb={(MOST_MEMORY_BYTES >> 20) + BEYOND_MIB}"
    places = f"-artifact_prefix={corpus.parent}/{name}-", str(corpus)
    atheris.Setup([sys.argv[0], *limits, memory, "-verbosity=0", *places], Guided(name, target, seconds, out))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
