"""A benchmark as JSON and as tables for people, with the same numbers.

In: a `Record` and facts about the model. Out: a dict that `json` can write, with the keys of the command-line contract
and some more (keys may be added, never renamed; numbers that were not measured are null), or lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from edgeinfer.app.bench.draft_figures import NONE, aligned, draft_json, draft_lines
from edgeinfer.app.bench.figures import BenchRow, Ratio, Spread, peak_memory
from edgeinfer.app.bench.machine import BenchMachine
from edgeinfer.app.bench.measurement import Ops, Record
from edgeinfer.app.bench.rounds import Sample, rates
from edgeinfer.app.bench.subject import OpTime
from edgeinfer.app.plain_text import counted
from edgeinfer.approximation import Approximation
from edgeinfer.settings import KVKind

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class BenchModel:
    """The model that was measured. `approx` and budgets: what our own device leaves out of it, as `Approximation`."""

    name: str
    path: str
    quant: str | None
    file_bytes: int
    kv: KVKind = "f16"
    approx: float | None = None
    kv_budget: int | None = None
    prefill_budget: int | None = None


@dataclass(frozen=True, slots=True)
class BenchOrigin:
    """How a benchmark came about: the command line, the day (2026-11-29), and versions by package."""

    command: str
    date: str
    versions: Mapping[str, str]


def report_json(record: Record, model: BenchModel, origin: BenchOrigin) -> Json:
    """The whole record as a dict."""
    return {
        "command": origin.command,
        "date": origin.date,
        "versions": dict(origin.versions),
        "machine": _machine(record.machine),
        "model": asdict(model),
        "threads": record.threads,
        "idle_before": record.idle_before,
        "idle_after": record.idle_after,
        "rows": [_row(row) for row in record.rows],
        "ratios": [_ratio(ratio) for ratio in record.ratios],
        "verify_cost": {str(n): cost for n, cost in record.verify_cost.items()},
        "memory": [{"executor": name, "peak_rss_bytes": most} for name, most in peak_memory(record.samples).items()],
        "drafting": None if record.drafting is None else draft_json(record.drafting),
        "ops": [_ops(ops, record.threads) for ops in record.ops],
        "runs": [_run(sample) for sample in record.samples],
    }


def _machine(machine: BenchMachine) -> Json:
    memory = machine.memory
    return {
        "cpu": machine.cpu,
        "cores": machine.cores,
        "features": list(memory.features),
        "isa": memory.isa,
        "ram_bytes": machine.ram_bytes,
        "read_gb_s": None if memory.read_bytes_s is None else memory.read_bytes_s / 1e9,
        "read_pattern": memory.pattern,
        "read_model_gb_s": None if memory.model_read_bytes_s is None else memory.model_read_bytes_s / 1e9,
        "read_busy": memory.busy,
        "system": machine.system,
        "python": machine.python,
    }


def _row(row: BenchRow) -> Json:
    fields = asdict(row)
    return fields | {"tok_s": _spread(row.tok_s), "seconds": _spread(row.seconds), "categories": dict(row.categories)}


def _ratio(ratio: Ratio) -> Json:
    named = {key: getattr(ratio, key) for key in ("test", "executor", "against", "n", "depth", "cold")}
    return named | _spread(ratio.values)


def _spread(spread: Spread) -> Json:
    return {"median": spread.median, "min": spread.min, "max": spread.max}


def _ops(ops: Ops, threads: int) -> Json:
    total = sum(one.busy_s + one.waiting_s for one in ops.times)
    times = [
        asdict(one) | {"share": (one.busy_s + one.waiting_s) / total} | _reading(one, ops.clock_hz, threads)
        for one in ops.times
    ]
    return {
        "test": ops.test,
        "n": ops.n,
        "depth": ops.depth,
        "seconds": total,
        "times": times,
        "overhead": dict(ops.overhead),
        "python_s": ops.python_s,
        "clock_hz": ops.clock_hz,
    }


def _run(sample: Sample) -> Json:
    case = sample.case
    return {
        "test": case.test,
        "executor": sample.executor,
        "depth": case.depth,
        "cold": case.cold,
        "seconds": {str(n): seconds for n, seconds in sample.reply.seconds.items()},
        "tok_s": {str(n): rate for n, rate in rates(sample.reply).items()},
        "idle_before": sample.idle_before,
        "idle_after": sample.idle_after,
        "busy": sample.busy,
        "repeats": sample.repeats,
    }


HEAD = (
    *("test", "executor", "tokens", "depth", "tok/s", "(least to most)"),
    *("MB/token", "of bandwidth", "of own size", "time / 1-token pass"),
)


def report_lines(record: Record, model: BenchModel) -> Iterator[str]:
    """The whole record as lines of text."""
    machine = record.machine
    memory = "memory not measured"
    if machine.memory.read_bytes_s is not None:
        disturbed = " (on a busy machine)" if machine.memory.busy else ""
        memory = f"reads {machine.memory.read_bytes_s / 1e9:.1f} GB/s{disturbed}"
    if machine.memory.model_read_bytes_s is not None:
        memory += f", {machine.memory.model_read_bytes_s / 1e9:.1f} GB/s of as much as the model"
    n_cores, n_threads = counted(machine.cores, "core"), counted(record.threads, "thread")
    yield f"machine   {machine.cpu}, {n_cores}, {n_threads}, {machine.memory.isa}, {memory}"
    left_out = Approximation(model.approx, model.kv_budget, model.prefill_budget)
    approx = "" if left_out.is_exact else f", approx {left_out}"
    size = f"{model.file_bytes / 1e6:.1f} MB, {model.kv} kv{approx}"
    yield f"model     {model.name}, {model.quant or 'quant unknown'}, {size}"
    yield f"idle      {record.idle_before:.0%} before, {record.idle_after:.0%} after"
    yield ""
    if any(row.tok_s.median is not None for row in record.rows):
        yield from aligned([HEAD, *(_cells(row) for row in record.rows if row.tok_s.median is not None)])
    if record.drafting is not None:
        yield from draft_lines(record.drafting)
    starts = [row for row in record.rows if row.test == "start" and row.seconds.median is not None]
    if starts:
        yield ""
        yield from aligned([("start to first token", "executor", "s", "(least to most)"), *map(_start_cells, starts)])
    if record.ratios:
        yield ""
        yield from aligned([("faster", "by", "(least to most)", "in"), *(_ratio_cells(one) for one in record.ratios)])
    if held := peak_memory(record.samples):
        yield ""
        cells = [(name, "its process", f"{most / 1e6:.0f}") for name, most in held.items()]
        yield from aligned([("most memory", "of", "MB"), *cells])
    for ops in record.ops:
        yield ""
        yield from _ops_lines(ops, record.threads)
    yield from _notes(record.rows)


def _cells(row: BenchRow) -> tuple[str, ...]:
    shares = (row.share_of_bandwidth, row.share_of_model_bandwidth)
    return (
        row.test,
        row.executor,
        str(row.n),
        str(row.depth),
        _number(row.tok_s.median),
        _range(row.tok_s),
        NONE if row.bytes_per_token is None else f"{row.bytes_per_token / 1e6:.1f}",
        *(NONE if share is None else f"{share:.0%}" for share in shares),
        NONE if row.cost is None else f"{row.cost:.2f}",
    )


def _start_cells(row: BenchRow) -> tuple[str, ...]:
    return ("cold" if row.cold else "warm", row.executor, _number(row.seconds.median), _range(row.seconds))


def _ratio_cells(ratio: Ratio) -> tuple[str, ...]:
    what = f"{ratio.test} {ratio.n}" + (f" at depth {ratio.depth}" if ratio.depth else "")
    median = NONE if ratio.values.median is None else f"{ratio.values.median:.2f}×"
    return (f"{ratio.executor} than {ratio.against}", median, _range(ratio.values), what)


def _ops_lines(ops: Ops, threads: int) -> Iterator[str]:
    total = sum(one.busy_s + one.waiting_s for one in ops.times)
    yield f"one pass of {ops.n} at depth {ops.depth}: {total * 1e3:.3f} ms"
    table = [("op", "kernel", "calls", "µs", "waiting µs", "share", "MB", "GB/s", "cycles/byte")]
    for one in sorted(ops.times, key=lambda one: -one.busy_s - one.waiting_s):
        share = (one.busy_s + one.waiting_s) / total if total else 0.0
        shown = (f"{one.busy_s * 1e6:.1f}", f"{one.waiting_s * 1e6:.1f}", f"{share:.1%}")
        table.append((one.op, one.kernel, str(one.calls), *shown, *_reading_cells(one, ops.clock_hz, threads)))
    yield from aligned(table)
    yield f"in Python beside the ops: {ops.python_s * 1e6:.0f} µs"
    if ops.overhead:
        microseconds = {name.removesuffix("_s"): f"{seconds * 1e6:.2f} µs" for name, seconds in ops.overhead.items()}
        yield "with nothing to compute: " + ", ".join(f"a {name} {text}" for name, text in microseconds.items())


def _reading(one: OpTime, clock_hz: float | None, threads: int) -> Json:
    """What all threads read together, and the cycles of one core for each byte that it reads."""
    if not one.bytes_read or not one.busy_s:
        return {"gb_s": None, "cycles_per_byte": None}
    cycles = None if clock_hz is None else one.busy_s * clock_hz * threads / one.bytes_read
    return {"gb_s": one.bytes_read / one.busy_s / 1e9, "cycles_per_byte": cycles}


def _reading_cells(one: OpTime, clock_hz: float | None, threads: int) -> tuple[str, str, str]:
    gb_s, cycles = _reading(one, clock_hz, threads).values()
    if gb_s is None:
        return NONE, NONE, NONE
    return f"{one.bytes_read / 1e6:.1f}", f"{gb_s:.1f}", NONE if cycles is None else f"{cycles:.3f}"


def _notes(rows: Sequence[BenchRow]) -> Iterator[str]:
    noted = [row for row in rows if row.problem is not None or row.busy_runs]
    seen: set[str] = set()
    for row in noted:
        place = f"{row.test}{' cold' * row.cold}, depth {row.depth}, {row.executor}"
        problem = [] if row.problem is None else [row.problem]
        busy = [f"{row.busy_runs} of its runs on a busy machine"] if row.busy_runs else []
        note = f"note: {place}: {'; '.join(problem + busy)}"
        if note not in seen:
            if not seen:
                yield ""
            seen.add(note)
            yield note


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _range(spread: Spread) -> str:
    return f"({_number(spread.min)} to {_number(spread.max)})"
