"""Shows what each device does, moment by moment, in one step of a model shared by several devices.

In: a model file, device names, a schedule. Out: a table of spans on standard output, and the share of the less busy
device's time in which the other worked too. `python scripts/show_timeline.py MODEL --device cpu,openvino --schedule
hetegen`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.shared_lane.timeline import StepTimeline
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.machine.topology import read_topology

N_CONTEXT = 1024


def main() -> None:
    """Read the arguments, run some steps, print the last one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu,openvino")
    parser.add_argument("--schedule", default="hetegen")
    parser.add_argument("--tokens", type=int, default=1, help="tokens of the step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--spans", type=int, default=24, help="how many spans to print, from the start of the step")
    given = parser.parse_args()
    options = DeviceOptions(cores=read_topology().workers())
    try:
        with open_model(given.model, N_CONTEXT) as model:
            limits = limits_for(N_CONTEXT)
            request = OpeningRequest(model.spec, model.file, limits, options)
            with open_executor(given.device, request, "timeline", schedule=given.schedule) as executor:
                for notice in executor.notices:
                    print(notice)
                timelines = [step(executor, given.tokens) for _ in range(given.steps)]
    except EdgeInferError as reason:
        raise SystemExit(str(reason)) from None
    show(timelines, given.spans)


def step(executor: Executor, n_tokens: int) -> StepTimeline:
    """One step of a new sequence after a few tokens."""
    if executor.shared is None:
        raise SystemExit(f"one device has the whole model: {executor.device}; try --schedule hetegen")
    sequence = executor.create()
    for count in (16, n_tokens):
        order, depth = np.arange(count, dtype=np.int32), executor.n_cached(sequence)
        batch = Batch(order, np.full(count, sequence, np.int32), order + np.int32(depth), order - 1, order[-1:])
        executor.evaluate(batch)
        executor.commit(sequence, order)
    executor.free(sequence)
    return executor.shared.timeline


def show(timelines: list[StepTimeline], n_spans: int) -> None:
    """Print the spans of the last step, and the medians of all but the first."""
    last = timelines[-1]
    print(f"{'from us':>9} {'to us':>9}  device, stages")
    for span in last.spans[:n_spans]:
        began, ended = (1e6 * (moment - last.began) for moment in (span.began, span.ended))
        print(f"{began:9.0f} {ended:9.0f}  {span.device}, {span.stages}")
    if len(last.spans) > n_spans:
        print(f"  and {len(last.spans) - n_spans} more")
    later = timelines[1:] or timelines
    whole = statistics.median(each.ended - each.began for each in later)
    print(f"{len(later)} steps, medians: {1e3 * whole:.2f} ms")
    for device in last.devices:
        busy = statistics.median(each.busy_s(device) for each in later)
        print(f"  {device} busy {1e3 * busy:.2f} ms, {100 * busy / whole:.0f} %")
    print(
        f"  of the time of the less busy one the other worked {100 * statistics.median(e.overlap for e in later):.0f} %"
    )


if __name__ == "__main__":
    main()
