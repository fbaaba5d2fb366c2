"""Checks and measures the cuda device on this machine's NVIDIA GPU and writes a Markdown report.

Run from the repository root: python scripts/gpu_check.py MODEL.gguf; the report goes to docs/benchmarks/CARD.md.
Instead of a file, --synthetic 1b:Q4_0 (or 3b, 8b) uses a model of zeros with that shape, made in memory. With --tiny it
runs a golden model on Numba's CUDA simulator: this shows that the program works and says nothing about speed. Exits
with 1 and a message if there is no GPU, and with 2 if a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gpu.sizes import FULL, TINY, Size, megabytes, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from gpu.ceilings import Ceilings

    from edgeinfer.backends.cuda.device import CudaDevice
    from edgeinfer.models.load import Model

TOLERANCES = {"f32": 2e-3, "f16": 2e-3, "bf16": 2e-3}
ROUNDED_TOLERANCE = 0.05
"""For models whose activations are rounded to int8; float models differ only by the rounding of the cache."""
SHAPES = {
    "1b": (2048, 8192, 32, 8, 64, 16, 49152),
    "3b": (3072, 8192, 24, 8, 128, 28, 49152),
    "8b": (4096, 14336, 32, 8, 128, 32, 128256),
}
"""Width, FFN width, heads, KV heads, head width, layers, tokens."""


def golden_rows(device: CudaDevice, size: Size) -> list[tuple[object, ...]]:
    """Compare each golden model with transformers, and check whether bits depend on the pass."""
    from tests.golden.goldens import RESULTS, Golden, Player, distance

    rows: list[tuple[object, ...]] = []
    for name in size.goldens or tuple(path.stem for path in RESULTS):
        golden = Golden.read(name)
        tokens = golden.tokens[: size.golden_tokens]
        for kv in ("f16", "q8"):
            with Player(device, golden, kv=kv) as player:  # type: ignore[arg-type]
                whole = player.feed(tokens)
            with Player(device, golden, kv=kv) as player:  # type: ignore[arg-type]
                cuts = [1, len(tokens) // 2, len(tokens) // 2 + 1]
                parts = np.concatenate([player.feed(part) for part in np.split(tokens, cuts) if len(part)])
            error = distance(whole[:, golden.columns], golden.logits[: len(tokens)])
            limit = TOLERANCES.get(name.rpartition("-")[2], ROUNDED_TOLERANCE) if kv == "f16" else ROUNDED_TOLERANCE
            same = parts.tobytes() == whole.tobytes()
            verdict = "right" if error < limit and same else "WRONG"
            rows.append((name, kv, f"{error:.1e}", f"{limit:.0e}", "same" if same else "differ", verdict))
    return rows


def installed(name: str) -> str:
    """The version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def opened(model: Path | None, synthetic: str | None, n_context: int, stack: ExitStack) -> tuple[str, Model]:
    """The name of the model and the model. Raises EdgeInferError."""
    from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
    from edgeinfer.errors import BadSetting
    from edgeinfer.models.load import open_model
    from edgeinfer.models.quants import FORMATS

    if model is not None:
        return model.name, stack.enter_context(open_model(model, n_context))
    name, _, form = (synthetic or "").partition(":")
    known = [entry.name for entry in FORMATS.entries().values()]
    if form not in known:
        raise BadSetting(f"{synthetic} names no format; give one of {', '.join(known)} after the colon")
    return f"zeros of a {name} shape in {form}", stack.enter_context(
        synthetic_model(ModelShape(*SHAPES[name], n_context=n_context), form)
    )


def ceilings_text(best: Ceilings) -> str:
    """The card's limits as a table."""
    gemm = "CuPy is not installed" if best.gemm_s is None else f"{best.gemm_s / 1e12:.1f} TFLOP/s"
    rows: list[tuple[object, ...]] = [
        ("copy on the card, read and written", f"{best.copy_s / 1e9:.1f} GB/s"),
        ("copy to the card from pinned memory", f"{best.link_s / 1e9:.1f} GB/s"),
        ("multiply-adds of bytes (dp4a)", f"{best.dot_s / 1e12:.2f} TOP/s"),
        ("multiply-adds of float32", f"{best.fma_s / 1e12:.2f} TFLOP/s"),
        ("float16 product of 8192 × 8192 (cuBLAS)", gemm),
    ]
    return table(("ceiling", "measured"), rows)


def report(device: CudaDevice, name: str, model: Model, size: Size) -> tuple[str, bool]:
    """The report, and whether all results are right."""
    from gpu import ceilings, kernels, runs

    best = ceilings.measured(device, size)
    goldens = golden_rows(device, size)
    products = kernels.product_rows(device, model, size, best)
    attention = kernels.attention_rows(device, model, size, best)
    others = kernels.other_rows(device, model, size, best)
    alone = runs.run_rows(device, model, size)
    shared, limit = runs.shared_rows(device, model, size)
    packages = ", ".join(
        f"{name} {installed(name)}" for name in ("numba", "numba-cuda", "cuda-bindings", "cupy-cuda12x")
    )
    simulated = (
        f"Simulator: speeds mean nothing; plans are made for the card of {runs.ASSUMED} without launch costs.\n\n"
    )
    text = f"""# The cuda device on {device.driver.name}

{simulated if device.driver.simulated else ""}{platform.platform()}, Python {platform.python_version()}, {packages}.
Model: {name}. Made by `python scripts/gpu_check.py`.

{ceilings_text(best)}

## Golden models against transformers

{table(("model", "kv", "distance", "tolerance", "bits of passes", "verdict"), goldens)}

## Products

Bytes are those of the file. Shares are of the copy, and of multiply-adds of bytes (integer formats) or float32.

{table(kernels.PRODUCT_HEADS, products)}

## Attention

{table(kernels.ATTENTION_HEADS, attention)}

## Other kernels

{table(kernels.OTHER_HEADS, others)}

## {size.n_prompt} tokens read, {size.n_decoded} written on the card alone

{table(runs.RUN_HEADS, alone)}

## The same with {megabytes(limit)} MB of the card: room for half of the weights, buffers and keys and values

What is kept on the card and sent to it are the plan's shares of the weights; a device with more room sends less.
The distance is that of the logits from the CPU's alone.

{table(runs.SHARED_HEADS, shared)}
"""
    return text, all(row[-1] != "WRONG" for row in (*goldens, *shared))


def default_out(card: str) -> Path:
    """The report file of a card: NVIDIA H200 -> docs/benchmarks/nvidia-h200.md."""
    return ROOT / "docs" / "benchmarks" / f"{'-'.join(re.findall('[a-z0-9]+', card.lower()))}.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file; needed without --synthetic or --tiny")
    parser.add_argument("--synthetic", help="a shape and a format of a model of zeros, such as 8b:Q4_0")
    parser.add_argument("--out", type=Path, help="where the report goes (default: docs/benchmarks/CARD.md)")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:1 and so on")
    parser.add_argument("--tiny", action="store_true", help="run on Numba's simulator, on a golden model")
    options = parser.parse_args()
    if options.tiny:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        os.environ.setdefault("EDGEINFER_CUDASIM_LANES", "1")
        options.model = options.model or ROOT / "tests/golden/data/qwen2-q4_0.gguf"
    elif options.model is None and (options.synthetic or "").partition(":")[0] not in SHAPES:
        parser.error(f"give a GGUF file, --synthetic SHAPE:FORMAT ({', '.join(SHAPES)}, such as 8b:Q4_0), or --tiny")
    from edgeinfer.backends.base import open_device
    from edgeinfer.errors import EdgeInferError

    size = TINY if options.tiny else FULL
    try:
        device = open_device(options.device)
        if options.tiny:
            from tests.unit.backends.cuda import quick_blocks

            quick_blocks.install()
        with ExitStack() as stack:
            n_context = 64 * -(-(size.depth + size.n_prompt + size.n_decoded + 64) // 64)
            name, model = opened(options.model, options.synthetic, n_context, stack)
            text, right = report(device, name, model, size)  # type: ignore[arg-type]
    except EdgeInferError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    out = options.out or (None if options.tiny else default_out(device.driver.name))  # type: ignore[attr-defined]
    if out is None:
        print(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        print(f"wrote {out}")
    return 0 if right else 2


if __name__ == "__main__":
    sys.exit(main())
