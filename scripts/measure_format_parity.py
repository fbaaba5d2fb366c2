"""Measures how close the CPU device is to exact arithmetic in every quant format, beside llama.cpp on the same files.

Run: `python scripts/measure_format_parity.py [--formats Q4_0,IQ2_XS] [--positions 128] [--tokenizer MODEL]`. For each
format two random models are written, a dense one and a mixture of experts, whose matrices all have that format. The
standard is the reference device: dequantised weights, float32 activations, float32 cache. Prints a Markdown table of
KL(reference || engine) over random tokens, in nats, and ours as a multiple of llama.cpp's: the mean of the dense model,
the median of the mixture, whose mean a few tokens decide that rounding sends to another expert.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from make_model import LOW, WRITTEN_HERE, convert, write_random
from measure_parity import THREADS, Doubles, Engine, LlamaCpp, divergences
from shapes import SHAPES
from shapes.shape import Shape

from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.load import open_model
from edgeinfer.settings import load_settings

FORMATS = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", *LOW),
)
DENSE = replace(SHAPES["135m"], width=512, layers=4, heads=8, kv_heads=4, ffn=1024)
MIXTURE = replace(DENSE, ffn=256, experts=8, active=2, arch="qwen3moe")
N_CONTEXT = 512


def write(kind: str, shape: Shape, tokenizer: Path, out: Path) -> None:
    """A random model whose matrices all have one format. Raises EdgeInferError if llama.cpp has no such format."""
    if kind in (*WRITTEN_HERE, *LOW):
        write_random(shape, kind, tokenizer, out, seed=0)
        return
    exact = out.with_suffix(".f16.gguf")
    write_random(shape, "F16", tokenizer, exact, seed=0)
    convert(kind, exact, out, pure=True, threads=THREADS)
    exact.unlink()


def typical(found: Doubles, shape: Shape) -> float:
    """The mean, or the median of a mixture."""
    return float(np.median(found) if shape.experts else found.mean())


def measured(path: Path, n_positions: int) -> tuple[Doubles, Doubles]:
    """Divergences of the CPU device and of llama.cpp from the reference device."""
    with open_model(path, N_CONTEXT) as model:
        tokens = np.random.default_rng(0).integers(0, model.spec.n_vocab, n_positions).tolist()
        with closing(Engine(model, ReferenceDevice())) as reference:
            expected = reference(tokens)
        with closing(Engine(model, CpuDevice(DeviceOptions(n_workers=THREADS)))) as engine:
            ours = divergences(expected, engine(tokens))
    with closing(LlamaCpp(path)) as peer:
        return ours, divergences(expected, peer(tokens))


def rows(kinds: list[str], n_positions: int, tokenizer: Path) -> Iterator[str]:
    """A line of the table for each format."""
    for kind in kinds:
        cells = [kind.removesuffix("_S") if kind.endswith("K_S") else kind]
        for shape in (DENSE, MIXTURE):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                try:
                    write(kind, shape, tokenizer, path)
                    ours, peer = (typical(found, shape) for found in measured(path, n_positions))
                except (EdgeInferError, RuntimeError, ValueError) as error:
                    cells += ["-", "-", str(error).splitlines()[0]]
                    continue
                cells += [f"{ours:.2e}", f"{peer:.2e}", f"{ours / peer:.2f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence from exact arithmetic, format by format.")
    parser.add_argument("--formats", default=",".join(FORMATS), help="with commas (default: all)")
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--tokenizer", metavar="MODEL", help="whose tokenizer to copy (default: the last used model)")
    options = parser.parse_args()
    tokenizer = choose_model(load_settings({"model": options.tokenizer})).path
    print("| format | dense: ours | llama.cpp | ratio | mixture: ours | llama.cpp | ratio |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for row in rows(options.formats.upper().split(","), options.positions, tokenizer):
        print(row, flush=True)


if __name__ == "__main__":
    main()
