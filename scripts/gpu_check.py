"""Checks and measures the cuda device on this machine's NVIDIA GPU; writes a report in Markdown.

Run from the repository root: python scripts/gpu_check.py MODEL.gguf --out docs/benchmarks/CARD.md
With --tiny it runs on Numba's CUDA simulator instead, on a golden model: it shows that the program works and says
nothing about speed. Exits with 1 and a message where there is no GPU, and with 2 where a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.device import CudaDevice
    from edgeinfer.backends.cuda.lane import CudaFragmentLane
    from edgeinfer.models.load import Model
    from edgeinfer.ops import Op

TOLERANCES = {"f32": 2e-3, "f16": 2e-3, "bf16": 2e-3}
ROUNDED_TOLERANCE = 0.05
"""Of models whose activations are rounded to int8; those of floats differ by the rounding of the cache alone."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: bytes copied, repeats, tokens of prompts and of answers, token counts of products."""

    copied_bytes: int
    repeats: int
    n_prompt: int
    n_decoded: int
    counts: tuple[int, ...]
    golden_tokens: int
    goldens: tuple[str, ...]


FULL = Size(1 << 30, 20, 512, 128, (1, 2, 4, 8, 16, 32, 64), 72, ())
TINY = Size(1 << 12, 1, 3, 2, (1, 2), 3, ("phi3-f16",))


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def seconds_of(device: CudaDevice, start: Callable[[], None], stream: object, repeats: int) -> float:
    """Seconds that what `start` starts takes on the GPU, from a recorded graph where there is one."""
    from edgeinfer.backends.cuda.graphs import Recorder

    start()
    stream.synchronize()  # type: ignore[attr-defined]
    graph = Recorder(device.driver).record(start, stream)  # type: ignore[arg-type]
    again = start if graph is None else lambda: graph.launch(stream)  # type: ignore[arg-type]
    again()
    marks = device.driver.event(), device.driver.event()
    began = time.perf_counter()
    marks[0].record(stream)  # type: ignore[arg-type]
    for _ in range(repeats):
        again()
    marks[1].record(stream)  # type: ignore[arg-type]
    stream.synchronize()  # type: ignore[attr-defined]
    timed = marks[0].elapsed_time(marks[1]) / 1e3
    return (timed if timed > 0 else time.perf_counter() - began) / repeats


def copy_ceiling(device: CudaDevice, size: Size) -> float:
    """Bytes per second that a copy on the card reads and writes."""
    driver, stream = device.driver, device.driver.stream()
    source, target = (driver.zeros(size.copied_bytes, np.uint8) for _ in range(2))
    seconds = seconds_of(
        device,
        lambda: target.copy_to_device(source, stream=stream),
        stream,
        size.repeats,  # type: ignore[arg-type]
    )
    return 2 * size.copied_bytes / seconds


def gemm_ceiling(size: Size) -> float | None:
    """Operations per second of a large float16 product of cuBLAS, if CuPy is installed."""
    try:
        import cupy
    except ImportError:
        return None
    width = 8192
    first, second = (cupy.ones((width, width), cupy.float16) for _ in range(2))
    first @ second
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(size.repeats):
        first @ second
    cupy.cuda.Device().synchronize()
    return 2 * width**3 * size.repeats / (time.perf_counter() - began)


def golden_rows(device: CudaDevice, size: Size) -> list[tuple[object, ...]]:
    """Each golden model against transformers, and whether bits depend on the pass."""
    from tests.golden.goldens import RESULTS, Golden, Player, distance

    rows: list[tuple[object, ...]] = []
    for name in size.goldens or tuple(path.stem for path in RESULTS):
        golden = Golden.read(name)
        tokens = golden.tokens[: size.golden_tokens]
        for kv in ("f16", "int8"):
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


@contextmanager
def products(device: CudaDevice, model: Model, format_name: str) -> Iterator[tuple[CudaFragmentLane, int, int]]:
    """A lane of all products of one format and shape: (lane, bytes of weights, multiply-adds per token)."""
    from edgeinfer.backends.base import Limits
    from edgeinfer.models.fragment import Fragment
    from edgeinfer.models.spec import Stage
    from edgeinfer.models.work import weight_bytes
    from edgeinfer.ops import MatMul

    found = [op for op in model.spec.ops() if isinstance(op, MatMul) and op.out != model.spec.logits]
    found = [op for op in found if model.file.tensors[op.weight.tensor].type_name == format_name]
    largest = max(found, key=lambda op: op.weight.n_rows * op.weight.columns)
    ops: tuple[Op, ...] = tuple(
        replace(op, accumulate=False, bias=None)
        for op in found
        if (op.source, op.out, op.weight.columns) == (largest.source, largest.out, largest.weight.columns)
    )
    buffers = tuple(model.spec.buffer(name) for name in (largest.source, largest.out))
    spec = replace(model.spec, stages=(Stage("products", ops),), buffers=buffers, kv=())
    lane = device.compile_fragment(Fragment(spec, (), ()), model.file, Limits(64, 1, 64, 64))
    used = [op.weight for op in ops if isinstance(op, MatMul)]
    try:
        yield (
            lane,
            sum(weight_bytes(weight, model.file.tensors) for weight in used),
            sum(weight.n_rows * weight.columns for weight in used),
        )
    finally:
        lane.close()


def product_rows(device: CudaDevice, model: Model, size: Size, ceiling: float) -> list[tuple[object, ...]]:
    """Each format of a model at each token count: time, bytes and operations per second, share of the copy."""
    from edgeinfer.backends.cuda.step import Shape
    from edgeinfer.ops import MatMul

    tensors = model.file.tensors
    formats = {tensors[op.weight.tensor].type_name for op in model.spec.ops() if isinstance(op, MatMul)}
    inner = {tensors[name].type_name for name in tensors if name.startswith("blk.") and len(tensors[name].shape) == 2}
    rows: list[tuple[object, ...]] = []
    for name in sorted(formats & inner):
        with products(device, model, name) as (lane, n_bytes, multiply_adds):
            for count in size.counts:
                shape = Shape(count, count, 1)
                stream = lane._stream
                taken = seconds_of(device, lambda s=shape: lane.start_kernels(s), stream, size.repeats)  # type: ignore[misc]
                rate = n_bytes / taken
                operations = 2 * multiply_adds * count / taken
                shares = f"{rate / 1e9:.1f}", f"{100 * rate / ceiling:.0f} %", f"{operations / 1e12:.3f}"
                rows.append((name, count, f"{n_bytes / 1e6:.1f}", f"{taken * 1e6:.0f}", *shares))
    return rows


def run_rows(device: CudaDevice, model: Model, size: Size) -> list[tuple[object, ...]]:
    """Prompt and answer of a whole model: weights on the card, then a part of them streamed."""
    from edgeinfer.backends.cuda.device import CudaDevice
    from edgeinfer.backends.cuda.footprint import footprint

    limits = limits_for(size)
    whole = footprint(model.spec, model.file.tensors, limits)
    fixed = whole.kv_bytes + whole.buffer_bytes
    budgets = {"all weights on the card": None, "room for half the weights": fixed + whole.weight_bytes // 2}
    rows: list[tuple[object, ...]] = []
    for name, budget in budgets.items():
        rows.append((name, *speeds(CudaDevice(device.driver, budget), model, size)))
    rows.append(("cpu + cuda, rows of products", "not measured here", "needs a plan over two devices", ""))
    rows.append(("cpu + cuda, layers split", "not measured here", "needs a plan over two devices", ""))
    return rows


def limits_for(size: Size) -> object:
    from edgeinfer.backends.base import PAGE, Limits

    context = -(-(size.n_prompt + size.n_decoded + 1) // PAGE) * PAGE
    return Limits(context, context // PAGE, min(256, size.n_prompt), 4)


def speeds(device: CudaDevice, model: Model, size: Size) -> tuple[str, str, str]:
    """Prompt tok/s, decode tok/s and MB of the card held, with a sequence of arbitrary tokens."""
    from edgeinfer.backends.base import Batch
    from edgeinfer.engine.executor import Executor
    from edgeinfer.errors import DoesNotFit

    limits = limits_for(size)
    try:
        lane = device.compile(model.spec, model.file, limits)  # type: ignore[arg-type]
    except DoesNotFit as reason:
        return "-", str(reason), "-"

    def feed(executor: Executor, sequence: int, first: int, count: int) -> None:
        positions = np.arange(first, first + count, dtype=np.int32)
        tokens = (positions * 7919 % model.spec.n_vocab).astype(np.int32)
        parents = np.arange(-1, count - 1, dtype=np.int32)
        rows = np.full(count, sequence, np.int32)
        executor.evaluate(Batch(tokens, rows, positions, parents, np.array([count - 1], np.int32)))
        executor.commit(sequence, np.arange(count, dtype=np.int32))

    with Executor(device, lane, limits, "gpu_check", is_guest=True) as executor:  # type: ignore[arg-type]
        held = executor.resident_bytes
        for _ in range(2):  # the first round compiles and records
            sequence = executor.create()
            began = time.perf_counter()
            for first in range(0, size.n_prompt, executor.limits.max_tokens):
                feed(executor, sequence, first, min(executor.limits.max_tokens, size.n_prompt - first))
            prompted = time.perf_counter()
            for place in range(size.n_decoded):
                feed(executor, sequence, size.n_prompt + place, 1)
            ended = time.perf_counter()
            executor.free(sequence)
    prefill, decode = size.n_prompt / (prompted - began), size.n_decoded / (ended - prompted)
    return f"{prefill:.1f}", f"{decode:.1f}", f"{held / 1e6:.1f}"


def installed(name: str) -> str:
    """The version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def report(device: CudaDevice, model_path: Path, size: Size) -> tuple[str, bool]:
    """The report, and whether all results are right."""
    from edgeinfer.models.load import open_model

    copied, multiplied = copy_ceiling(device, size), gemm_ceiling(size)
    goldens = golden_rows(device, size)
    with open_model(model_path, 64 * -(-(size.n_prompt + size.n_decoded + 1) // 64)) as model:
        kernels = product_rows(device, model, size, copied)
        runs = run_rows(device, model, size)
    packages = ", ".join(
        f"{name} {installed(name)}" for name in ("numba", "numba-cuda", "cuda-bindings", "cupy-cuda12x")
    )
    gemm = "CuPy is not installed" if multiplied is None else f"{multiplied / 1e12:.1f} TFLOP/s"
    warning = "Simulator: speeds mean nothing.\n\n" if device.driver.simulated else ""
    text = f"""# The cuda device on {device.driver.name}

{warning}{platform.platform()}, Python {platform.python_version()}, {packages}. Model: {model_path.name}.
Made by `python scripts/gpu_check.py`.

Ceilings: a copy on the card moves {copied / 1e9:.1f} GB/s (read and written); a float16 product of 8192 × 8192: {gemm}.

## Golden models against transformers

{table(("model", "kv", "distance", "tolerance", "bits of passes", "verdict"), goldens)}

## Products

Bytes are those of the file; the copy's rate is 100 %.

{table(("format", "tokens", "MB", "µs", "GB/s", "of the copy", "TFLOP/s"), kernels)}

## {size.n_prompt} tokens read, {size.n_decoded} written

{table(("how", "prompt tok/s", "decode tok/s", "MB of the card"), runs)}
"""
    return text, all(row[-1] == "right" for row in goldens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file; needed without --tiny")
    parser.add_argument("--out", type=Path, help="where the report goes; else it is printed")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:1 and so on")
    parser.add_argument("--tiny", action="store_true", help="run on Numba's simulator, on a golden model")
    options = parser.parse_args()
    if options.tiny:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        os.environ.setdefault("EDGEINFER_CUDASIM_LANES", "1")
    elif options.model is None:
        parser.error("give a GGUF file, or --tiny")
    from edgeinfer.backends.base import open_device
    from edgeinfer.errors import EdgeInferError

    try:
        device = open_device(options.device)
        if options.tiny:
            from tests.unit.backends.cuda import quick_blocks

            quick_blocks.install()
        model = options.model or ROOT / "tests/golden/data/qwen2-q4_0.gguf"
        text, right = report(device, model, TINY if options.tiny else FULL)  # type: ignore[arg-type]
    except EdgeInferError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    if options.out is None:
        print(text)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
        print(f"wrote {options.out}")
    return 0 if right else 2


if __name__ == "__main__":
    sys.exit(main())
