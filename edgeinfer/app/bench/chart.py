"""A benchmark as a chart: speed of prompts and answers, what a pass of several tokens costs, starts, memory.

In: a `KeptBench`, from a file or of a benchmark that was just measured. Out: a `ChartPage`. Computes nothing that is
not in the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType

from edgeinfer.app.bench.kept import KeptBench, KeptRow
from edgeinfer.app.charts.axes import number, unit_of
from edgeinfer.app.charts.page import ChartPage
from edgeinfer.app.charts.panels import Bar, BarGroup, BarPanel, ChartCurve, ChartPanel, CurvePanel
from edgeinfer.app.plain_text import counted
from edgeinfer.errors import EdgeInferError
from edgeinfer.text_values import size_text

TITLES = {
    "prefill": "Prompts: tokens per second, more is better",
    "decode": "Answers: tokens per second, one token at a time, more is better",
    "chat": "Whole conversations: tokens per second, more is better",
    "start": "Process start to first token: seconds, less is better",
}
SPREAD = "Bars: median of runs; the thin line: least to most."
COST = "T(k): cost of a pass that checks k tokens, in passes of one; drafting rests on it"
OURS = "ours N×: edgeinfer is N times as fast, median over neighbouring runs."
GREY = 7
"""Number of the colour of what is no engine."""
PROGRAMS = MappingProxyType(
    {
        "llama-cpp-python": "llama.cpp",
        "openvino-genai": "OpenVINO GenAI",
        "onnxruntime-genai": "ONNX Runtime GenAI",
        "mistralrs": "mistral.rs",
    }
)
OWN = frozenset(("cpu", "cuda", "onnx", "openvino", "llamacpp", "reference", "null", "auto"))
"""Devices of edgeinfer by their keys; other executors are other programs."""


def bench_page(bench: KeptBench) -> ChartPage:
    """The chart of a benchmark. Raises EdgeInferError if it has no figure."""
    panels = tuple(_panels(bench))
    if not panels:
        raise EdgeInferError("there is no figure to draw: nothing could be measured")
    quant = f" ({bench.quant})" if bench.quant else ""
    notes = [SPREAD] if any(row.low is not None for row in bench.rows) else []
    notes += [OURS] if bench.ratios else []
    busy = sum(row.busy_runs for row in bench.rows)
    notes += [f"{counted(busy, 'run')} on a busy machine: figures may be too low."] if busy else []
    notes += [bench.note] if bench.note else []
    notes += [f"Written down from {bench.source}."] if bench.source else []
    return ChartPage(f"{bench.model}{quant}", told_lines(bench), panels, tuple(notes), bench.command)


def told_lines(bench: KeptBench) -> tuple[str, ...]:
    """The machine, the conditions and the day."""
    cores = "" if bench.cores is None else counted(bench.cores, "core")
    reads = "" if bench.read_gb_s is None else f"memory read at {bench.read_gb_s:.1f} GB/s"
    machine = ", ".join(part for part in (bench.cpu, cores, bench.isa, reads) if part)
    versions = ", ".join(f"{name} {number_of}" for name, number_of in bench.versions)
    threads = "" if bench.threads is None else counted(bench.threads, "thread")
    idle = "" if bench.idle is None else f"idle {bench.idle[0]:.0%} before and {bench.idle[1]:.0%} after"
    how = ", ".join(part for part in (threads, versions, idle, bench.date) if part)
    return tuple(line for line in (machine, how) if line)


def executor_name(name: str) -> str:
    """An executor as people call it: a device of edgeinfer, another engine, or a script by its file."""
    if name.startswith("python:"):
        return name.rpartition("/")[2] or name
    if name.startswith("onnxruntime-genai:"):
        return PROGRAMS["onnxruntime-genai"]
    if all(part.partition(":")[0] in OWN for part in name.split("+")):
        return f"edgeinfer {name}"
    return PROGRAMS.get(name, name)


def _panels(bench: KeptBench) -> Iterator[ChartPanel]:
    colours = {name: number_of for number_of, name in enumerate(bench.executors)}
    for test, title in TITLES.items():
        rows = [row for row in bench.rows if row.test == test]
        if rows:
            yield BarPanel(title, "s" if test == "start" else "tok/s", tuple(_groups(bench, rows, colours)))
    costs = [row for row in bench.rows if row.test == "verify" and row.cost]
    if costs:
        yield _costs(costs, colours)
    if bench.speedups:
        bars = tuple(Bar(group, gain, 2, text=f"{gain:.2f}×") for group, gain in bench.speedups)
        yield BarPanel("Answers with drafts: times as fast as without", "×", (BarGroup("", bars),))
    if bench.memory:
        yield _memory(bench, colours)


def _groups(bench: KeptBench, rows: Sequence[KeptRow], colours: dict[str, int]) -> Iterator[BarGroup]:
    """Rows by what was measured, in order; the number of tokens in a chat is each engine's own."""
    groups: dict[tuple[object, ...], list[KeptRow]] = {}
    for row in rows:
        groups.setdefault((0 if row.test == "chat" else row.n, row.depth, row.cold), []).append(row)
    for members in groups.values():
        yield BarGroup(_case(members[0]), tuple(_bar(bench, row, colours[row.executor]) for row in members))


def _case(row: KeptRow) -> str:
    if row.test == "start":
        return "nothing compiled yet" if row.cold else "warm"
    if row.test == "chat":
        return ""
    return counted(row.n, "token") + (f" after {row.depth:,} cached ones" if row.depth else "")


def _bar(bench: KeptBench, row: KeptRow, colour: int) -> Bar:
    return Bar(executor_name(row.executor), row.value, colour, row.low, row.high, rate_text(bench, row))


def rate_text(bench: KeptBench, row: KeptRow) -> str:
    """A row's figure, with how many times as fast ours is: "26.5 tok/s (ours 1.73×)"."""
    text = f"{number(row.value)} {'s' if row.test == 'start' else 'tok/s'}"
    for ratio in bench.ratios:
        is_case = row.test == "chat" or (ratio.n, ratio.depth, ratio.cold) == (row.n, row.depth, row.cold)
        if (ratio.test, ratio.against) == (row.test, row.executor) and is_case:
            return f"{text} (ours {ratio.median:.2f}×)"
    return text


def _costs(rows: Iterable[KeptRow], colours: dict[str, int]) -> ChartPanel:
    curves: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row.cost:
            curves.setdefault((row.executor, row.depth), []).append((float(row.n), row.cost))
    counts = sorted({at for points in curves.values() for at, _ in points})
    depths = {depth for _, depth in curves}
    drawn = [ChartCurve("one pass for each token", tuple((count, count) for count in counts), "dashed")]
    for (name, depth), points in curves.items():
        after = f", depth {depth:,}" if len(depths) > 1 else ""
        colour = colours[name] if len(depths) == 1 else len(drawn) - 1
        drawn.append(ChartCurve(executor_name(name) + after, tuple(sorted(points)), f"l{colour}", f"f{colour}"))
    return CurvePanel(COST, "k, tokens of a pass", "T(k) / T(1)", tuple(drawn), marks=tuple(counts), is_binary=True)


def _memory(bench: KeptBench, colours: dict[str, int]) -> ChartPanel:
    held = [(executor_name(name), most, colours.get(name, GREY)) for name, most in bench.memory]
    held += [("the model's file", bench.file_bytes, GREY)] if bench.file_bytes else []
    size, unit = unit_of(max(most for _, most, _ in held), "B")
    bars = (Bar(name, most / size, colour, text=size_text(most)) for name, most, colour in held)
    return BarPanel("Memory: the most that each engine's process held", unit, (BarGroup("", tuple(bars)),))
