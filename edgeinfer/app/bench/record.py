"""A benchmark as JSON: the keys of the command-line contract and some more. Keys may be added, never renamed.

In: a `Record` and facts about the model. Out: a dict that `json` can write; numbers that were not measured are null.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edgeinfer.app.bench import draft_table
from edgeinfer.app.bench.figures import BenchRow, Ratio, Spread
from edgeinfer.app.bench.machine import BenchMachine
from edgeinfer.app.bench.measurement import Ops, Record
from edgeinfer.app.bench.rounds import Sample, rates
from edgeinfer.settings import KVKind

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class BenchModel:
    """The model that was measured. `approx`: the activation threshold on our own device."""

    name: str
    path: str
    quant: str | None
    file_bytes: int
    kv: KVKind = "f16"
    approx: float | None = None


def as_json(record: Record, model: BenchModel) -> Json:
    """The whole record as a dict."""
    return {
        "machine": _machine(record.machine),
        "model": asdict(model),
        "threads": record.threads,
        "idle_before": record.idle_before,
        "idle_after": record.idle_after,
        "rows": [_row(row) for row in record.rows],
        "ratios": [_ratio(ratio) for ratio in record.ratios],
        "verify_cost": {str(n): cost for n, cost in record.verify_cost.items()},
        "drafting": None if record.drafting is None else draft_table.as_json(record.drafting),
        "ops": [_ops(ops) for ops in record.ops],
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


def _ops(ops: Ops) -> Json:
    total = sum(one.busy_s + one.waiting_s for one in ops.times)
    times = [asdict(one) | {"share": (one.busy_s + one.waiting_s) / total} for one in ops.times]
    return {
        "test": ops.test,
        "n": ops.n,
        "depth": ops.depth,
        "seconds": total,
        "times": times,
        "overhead": dict(ops.overhead),
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
