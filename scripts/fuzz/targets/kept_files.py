"""Small files that the program keeps for itself: what is damaged of them counts as not there, and nothing fails."""

from __future__ import annotations

import io
import json
import os
import platform
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from json_changes import changed
from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer import file_lock
from edgeinfer.app.chat.input_history import InputHistory
from edgeinfer.app.plans.measured import SpeedLog
from edgeinfer.engine import running
from edgeinfer.engine.measure.profiles import PredictionCalibration
from edgeinfer.engine.opening.device_choice import Choices, DeviceChoice
from edgeinfer.engine.speculation.files import LAYOUT, DraftFolder
from edgeinfer.models import unfinished
from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.store_files import LastUsed, Unlisted, read_manifest

USUAL_BYTES = 4000
FOLDER = scratch()
os.environ["EDGEINFER_HOME"] = str(FOLDER / "home")
BLOB = "a" * 64
LAYER = "application/vnd.ollama.image."


def _speeds(path: Path) -> None:
    log = SpeedLog(path)
    log.find("a", "cpu", None)


def _devices(path: Path) -> None:
    choices = Choices(path)
    found = choices.find("a")
    if found is not None:
        found.is_due(1e9)
        found.answered(slowly=True)
    choices.keep("b", DeviceChoice("cpu"))


def _calibration(path: Path) -> None:
    PredictionCalibration(path).note_prompt(100, 1.0, 2.0, is_first=True)


def _drafts(path: Path) -> None:
    DraftFolder("f", "layout", path.parent.parent).read(path.name)


def _process(path: Path) -> None:
    assert isinstance(running.running(), list | tuple)


def _last_used(path: Path) -> None:
    used = LastUsed(path.parent)
    used.names(), used.times()
    used.put("b")
    Unlisted(path.parent).sources()


def _archive() -> bytes:
    kept = io.BytesIO()
    np.savez(kept, **{LAYOUT: np.array("layout"), "a": np.arange(20), "b": np.zeros((3, 4), np.float32)})
    return kept.getvalue()


NOTE = {"host": platform.node(), "pid": os.getpid(), "started": 1.0, "command": "serve", "model": "m", "path": "/m"}
FILE = {"path": "a.gguf", "nbytes": 5, "sha256": None}
MANIFEST = {"format": 1, "name": "a", "source": "hf:a/b", "key": "k", "asked": "x", "files": [FILE]}
OLLAMA = {
    "layers": [
        {"mediaType": f"{LAYER}model", "digest": f"sha256:{BLOB}"},
        {"mediaType": f"{LAYER}params", "digest": f"sha256:{'b' * 64}"},
    ]
}
READERS: Sequence[tuple[str, Any, Callable[[Path], object]]] = (
    (
        "speeds.json",
        {"a cpu auto": {"decode_tok_s": [1.0, 2.0], "prompt_tok_s": [5.0], "prompt_tokens": [512]}},
        _speeds,
    ),
    ("devices.json", {"a": {"device": "cpu", "tries": 1, "tried_at": 5.0, "runner_up_tok_s": 2.0}}, _devices),
    ("calibration.json", {"resident": {"first_long": [[1.0, 2.0]] * 4, "later_short": [[1, 2]]}}, _calibration),
    ("f/learnt.npz", _archive(), _drafts),
    ("home/running/1.process", NOTE, _process),
    ("models/a.json", MANIFEST, read_manifest),
    ("x.lock", {"pid": 1, "started": 5.0}, file_lock.is_held),
    ("home/models/.x.pull", {"source": "a", "name": "b", "nbytes": 5, "parts": ["a.part"]}, unfinished._read),
    ("history", b'"a question"\n"another\\nline"\n', InputHistory),
    ("used/last_used", b"a\t2026-01-01T00:00:00+00:00\nb\n", _last_used),
    ("ollama/manifests/r/n/m/latest", OLLAMA, lambda path: ollama_params(FOLDER / f"ollama/blobs/sha256-{BLOB}")),
    (
        f"ollama/blobs/sha256-{'b' * 64}",
        {"temperature": 0.5, "stop": ["a"], "num_ctx": 5, "seed": 1},
        lambda path: ollama_params(FOLDER / f"ollama/blobs/sha256-{BLOB}"),
    ),
)


def _bytes_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def seeds() -> list[bytes]:
    """One of each; the first byte says which it is."""
    for name, value, _ in READERS:
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_bytes(_bytes_of(value))
    (FOLDER / f"ollama/blobs/sha256-{BLOB}").write_bytes(b"GGUF")
    return [bytes([number]) + _bytes_of(value) for number, (_, value, _) in enumerate(READERS)]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """One of them, changed as JSON or as bytes."""
    seed = rng.choice(seeds)
    value = READERS[seed[0]][1]
    if isinstance(value, bytes) or rng.random() < 0.3:
        return seed[:1] + mutated_bytes([seed[1:]], rng, limit)
    return seed[:1] + changed(value, rng)


def run(data: bytes) -> None:
    """Read it."""
    name, value, read = READERS[(*data[:1], 0)[0] % len(READERS)]
    path = FOLDER / name
    path.write_bytes(data[1:])
    try:
        read(path)
    finally:
        path.write_bytes(_bytes_of(value))
