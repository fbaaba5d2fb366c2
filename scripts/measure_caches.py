"""Measures what a rounded KV cache costs on a real model: ours of each kind, and llama.cpp's beside them.

Run from the repository root: `python scripts/measure_caches.py [MODEL] [--positions N] [--no-peer]`. MODEL is a path or
the name of a model in the store (default: the starter model, downloaded if it is not there). Everything but the cache
stays the same: our kinds on the reference device with float32 activations, against a float32 cache; llama.cpp's against
its own float16 cache, all with its flash attention. Prints KL(whole || rounded) of next-token distributions over
passages that the model itself wrote: mean, median and 99th percentile in nats, and the mean as a multiple of that of
llama.cpp's q8_0.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from scripts.measure_parity import (
    LONGEST,
    ROUNDED_KV,
    THREADS,
    Doubles,
    Engine,
    Evaluate,
    LlamaCpp,
    divergence,
    model_path,
    passages,
)

PEER = "llama.cpp, {}"


def table(found: Mapping[str, Doubles]) -> str:
    """A row for each cache."""
    unit = found.get(PEER.format("q8"))
    lines = [f"{'cache':20}{'mean KL':>12}{'median':>12}{'99%':>12}{'of q8_0':>10}"]
    for name, kl in found.items():
        share = "" if unit is None else f"{kl.mean() / unit.mean():10.2f}"
        lines.append(f"{name:20}{kl.mean():12.2e}{np.median(kl):12.2e}{np.quantile(kl, 0.99):12.2e}{share}")
    return "\n".join(lines)


def peers(path: Path, texts: list[list[int]]) -> dict[str, Doubles]:
    """llama.cpp's caches against its float16 one."""
    with ExitStack() as opened:
        whole = opened.enter_context(closing(LlamaCpp(path, is_flash=True)))
        engines: dict[str, Evaluate] = {
            PEER.format(kv): opened.enter_context(closing(LlamaCpp(path, kv, is_flash=True))) for kv in ROUNDED_KV
        }
        return divergence(texts, lambda tokens: whole(tokens).copy(), engines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence of rounded KV caches from whole ones.")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--no-peer", action="store_true", help="leave llama.cpp out")
    options = parser.parse_args()
    path = model_path(options.model)
    with open_model(path, LONGEST) as model, ExitStack() as opened:
        writer = opened.enter_context(closing(Engine(model, CpuDevice(DeviceOptions(n_workers=THREADS)))))
        whole = opened.enter_context(closing(Engine(model, ReferenceDevice())))
        texts = passages(writer, model, options.positions)
        engines: dict[str, Evaluate] = {
            f"{kv}, {8 * KV_ELEMENT_BYTES[kv]:g} bits": opened.enter_context(
                closing(Engine(model, ReferenceDevice("f32", kv)))
            )
            for kv in ROUNDED_KV
        }
        print(f"{path.name}, {sum(map(len, texts))} positions", flush=True)
        found = divergence(texts, whole, engines)
    print(table(found | ({} if options.no_peer else peers(path, texts))))


if __name__ == "__main__":
    main()
