"""Measures how far models written by llama.cpp's converter are from transformers: a table of families and forms.

Run from the repository root: `python scripts/measure_converted.py FOLDER [DEVICE …]`, where FOLDER was written by
`make_converted_goldens.py --all FOLDER`. For each file and device: the largest difference of a logit (of an element of
an embedding, of a score), the norm of all differences relative to that of the expected values, the mean
Kullback-Leibler divergence of next tokens, and what is left out of the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, open_device
from edgeinfer.engine.loading import load
from edgeinfer.models.load import left_out, open_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.golden.goldens import Golden, Player, distance

Array = NDArray[np.float32]


def log_shares(logits: Array) -> NDArray[np.float64]:
    """Log-probabilities of next tokens."""
    exact = logits.astype(np.float64)
    exact = exact - exact.max(axis=1, keepdims=True)
    shares: NDArray[np.float64] = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    return shares


def divergence(expected: Array, found: Array) -> float:
    """Mean Kullback-Leibler divergence over positions."""
    own, other = log_shares(expected), log_shares(found)
    return float((np.exp(own) * (own - other)).sum(axis=1).mean())


def logits(path: Path, held: Mapping[str, Any], device: str) -> Array:
    """A device's logits for the tokens of a golden."""
    known = (held[key] for key in ("columns", "logits", "last"))
    golden = Golden(path.stem, path, int(held["n_context"]), held["tokens"], *known)
    with Player(open_device(device, DeviceOptions(n_workers=2)), golden) as player:
        return player.feed(golden.tokens)


def compared(path: Path, held: Mapping[str, Any], device: str) -> tuple[float, float, str]:
    """Largest difference, relative difference and (for generating models) divergence of a file on a device."""
    if "every" in held:
        found, expected = logits(path, held, device), held["every"]
        kl = f"{divergence(expected, found):.1e}"
    else:
        kl = ""
        with load(path, device=device) as llm:
            if "score" in held:
                found, expected = np.array(llm.rerank(str(held["query"]), [str(held["document"])])), held["score"]
            else:
                found, expected = llm.embed([held["tokens"].tolist()])[0], held["embedding"]
    return float(np.abs(found - expected).max()), distance(found, expected), kl


def main(folder: Path, devices: list[str]) -> int:
    print("| file | device | largest | relative | KL | left out |\n|---|---|---|---|---|---|")
    for results in sorted(folder.glob("*.npz")):
        held = dict(np.load(results))
        for path in (folder / f"{results.stem}-{form}.gguf" for form in ("f32", "bf16", "q8_0")):
            with open_model(path) as model:
                omitted = ", ".join(left_out(model.spec, model.file.metadata, model.file.tensors))
            for device in devices:
                largest, relative, kl = compared(path, held, device)
                print(f"| {path.stem} | {device} | {largest:.1e} | {relative:.1e} | {kl} | {omitted} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or ["reference", "cpu"]))
