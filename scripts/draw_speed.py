"""Draws the README's chart: tokens per second beside other engines, from results that are kept in docs/benchmarks.

Run: `python scripts/draw_speed.py [RESULT.json…] [--out docs/pictures/speed.svg]`. Without files, the ones named below.
Each group of bars is one model on one machine; every figure is the file's own, at an empty cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgeinfer.app.bench.chart import OURS, executor_name, rate_text
from edgeinfer.app.bench.kept import KeptBench, read_bench
from edgeinfer.app.charts.page import ChartPage, check_chart, write_chart
from edgeinfer.app.charts.panels import Bar, BarGroup, BarPanel
from edgeinfer.app.plain_text import counted
from edgeinfer.errors import EdgeInferError

ROOT = Path(__file__).resolve().parent.parent
KEPT, OUT = ROOT / "docs" / "benchmarks", ROOT / "docs" / "pictures" / "speed.svg"
ANSWERS = (
    "2026-11-29-epyc-avx512-smollm2-q4_1",
    "2026-11-29-epyc-avx512-gemma3-270m-q4_k_m",
    "2026-11-29-epyc-avx512-1b-q4_k_m",
    "2026-11-29-epyc-avx512-lfm2-8b-a1b-q4_0",
    "2026-11-22-xeon-amx-1b-q4_k_m",
)
PROMPTS = (
    "2026-11-29-epyc-avx512-1b-q4_k_m",
    "2026-11-29-epyc-avx512-lfm2-8b-a1b-q4_0",
    "2026-11-22-xeon-amx-1b-q4_k_m",
)
ISAS = {"amx": "AMX", "avx512vnni": "AVX-512 VNNI", "avxvnni": "AVX-VNNI", "avx2": "AVX2", "neon": "NEON"}
"""Instruction sets as `edgeinfer bench` names them, in words; what was written down by hand has words."""
TITLE = "Tokens per second beside other engines, same file, same cores"
ENGINES = ("edgeinfer cpu", "llama.cpp", "OpenVINO GenAI", "mistral.rs", "ONNX Runtime GenAI")
"""Each has a colour of its own in all groups; others share the last one."""


def group(bench: KeptBench, test: str) -> BarGroup | None:
    """The bars of a result; None if the test is not in it."""
    bars = []
    for row in bench.rows:
        if (row.test, row.depth) == (test, 0):
            name = executor_name(row.executor)
            colour = ENGINES.index(name) if name in ENGINES else len(ENGINES)
            shown = "edgeinfer" if name == ENGINES[0] else name
            bars.append(Bar(shown, row.value, colour, row.low, row.high, rate_text(bench, row)))
    if not bars:
        return None
    where = f"{bench.cpu}, {counted(bench.cores or 1, 'core')}, {ISAS.get(bench.isa, bench.isa)}"
    return BarGroup(f"{bench.model}, {bench.quant} · {where} · {bench.date}", tuple(bars))


def chart(answers: Sequence[KeptBench], prompts: Sequence[KeptBench]) -> ChartPage:
    """The chart; a panel without results is left out. Raises EdgeInferError if both are."""
    panels = []
    for title, test, benches in (
        ("Answers, one token at a time", "decode", answers),
        ("Prompts of 512 tokens", "prefill", prompts),
    ):
        groups = tuple(each for bench in benches if (each := group(bench, test)) is not None)
        if groups:
            panels.append(BarPanel(title, "tok/s", groups))
    if not panels:
        raise EdgeInferError("the results have neither decode nor prefill at depth 0")
    used = tuple(dict.fromkeys((*answers, *prompts)))
    return ChartPage(TITLE, ("Medians of runs by turns, drafting off; more is better.",), tuple(panels), notes(used))


def notes(benches: Iterable[KeptBench]) -> tuple[str, ...]:
    """How the figures came about: versions, and what to know of them, each once."""
    found = [OURS]
    for bench in benches:
        versions = ", ".join(f"{name} {version}" for name, version in bench.versions)
        found.append(". ".join(part for part in (f"{bench.date}: {versions}", bench.note) if part).rstrip(".") + ".")
    return tuple(dict.fromkeys((*found, "Commands and figures: docs/benchmarks.")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT.json")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    named = options.results or ()
    answers = [read_bench(path) for path in named or (KEPT / f"{name}.json" for name in ANSWERS)]
    prompts = [read_bench(path) for path in named or (KEPT / f"{name}.json" for name in PROMPTS)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    check_chart(options.out)
    write_chart(chart(answers, prompts), options.out)
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeInferError as reason:
        sys.exit(f"error: {reason}")
