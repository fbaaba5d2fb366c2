"""Shows how batch schedules perform: many sequences on an accelerator and the CPU, some with their cache in memory.

In: a model file, device names, the number of sequences. Out: a table on standard output with each schedule's tokens per
second beside the prediction, and how busy both devices were. Schedules alternate, medians are printed. `python
scripts/show_overlap.py MODEL --device cpu,openvino --sequences 8 --offloaded 4 --cached 512`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.overlap import accelerator_of, open_overlap
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.run.evaluators import Tally
from edgeinfer.engine.run.executor import AUTO_SCHEDULE
from edgeinfer.engine.shared_lane.timeline import DeviceSpan, StepTimeline
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.batch.schedules import SCHEDULES, Schedule
from edgeinfer.scheduling.machine.profile import CPU


@dataclass(frozen=True, slots=True)
class Found:
    """Results of one round with a schedule. `tallies`: passes by the schedules chosen during the round."""

    tok_s: float
    n_joins: int
    shares: tuple[float, float, float]
    tallies: dict[Schedule, Tally]

    @property
    def n_passes(self) -> int:
        return sum(tally.n_passes for tally in self.tallies.values())


def main() -> None:
    """Read the arguments, run every schedule in alternation, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu,openvino")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--offloaded", type=int, default=4, help="of them, with their cache in memory")
    parser.add_argument("--cached", type=int, default=256, help="tokens of each at first; their keys and values are 0")
    parser.add_argument("--tokens", type=int, default=16, help="to make of each sequence, on average")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedules", default=",".join((*SCHEDULES, AUTO_SCHEDULE)))
    given = parser.parse_args()
    n_context = given.cached + given.tokens * given.sequences + PAGE
    each = pages_for(n_context)
    resident_pages = (given.sequences - given.offloaded) * each
    limits = limits_for(n_context, given.sequences)
    try:
        with (
            open_model(given.model, n_context) as model,
            open_overlap(
                given.device, OpeningRequest(model.spec, model.file, limits), resident_pages=resident_pages
            ) as executor,
        ):
            print("\n".join(executor.notices))
            names = given.schedules.split(",")
            found: dict[str, list[Found]] = {name: [] for name in names}
            for _ in range(given.rounds):
                for name in names:
                    found[name].append(measured(executor, name, given.sequences, given.cached, given.tokens))
            show(found, accelerator_of(given.device))
    except EdgeInferError as reason:
        raise SystemExit(str(reason)) from None


def measured(executor: OverlapExecutor, schedule: str, n_sequences: int, n_cached: int, n_tokens: int) -> Found:
    """Decode with a schedule until `n_tokens` per sequence are generated on average."""
    sequences = [executor.create() for _ in range(n_sequences)]
    tokens = dict.fromkeys(sequences, 1)
    for sequence in sequences:
        executor.pretend(sequence, n_cached)
    executor.use(schedule)
    executor.tallies.clear()
    n_joins, n_made, began, spans = executor.n_joins, 0, time.perf_counter(), list[DeviceSpan]()
    ready = set(sequences)
    while n_made < n_tokens * n_sequences:
        logits = executor.advance([one(sequence, executor.n_cached(sequence), tokens[sequence]) for sequence in ready])
        ready = set(logits)
        for sequence, rows in logits.items():
            executor.commit(sequence, np.zeros(1, np.int32))
            tokens[sequence] = int(rows[-1].argmax())
        n_made += len(logits)
        spans += executor.timeline.spans
    timeline = StepTimeline(tuple(spans), began, time.perf_counter())
    found = Found(
        n_made / (timeline.ended - began), executor.n_joins - n_joins, shares(timeline), dict(executor.tallies)
    )
    for sequence in sequences:
        executor.free(sequence)
    return found


def one(sequence: int, n_cached: int, token: int) -> Batch:
    """A batch of one token, with its logits."""
    token_, owner, position, parent = (np.array([number], np.int32) for number in (token, sequence, n_cached, -1))
    return Batch(token_, owner, position, parent, np.zeros(1, np.int32))


def shares(timeline: StepTimeline) -> tuple[float, float, float]:
    """Shares of time: accelerator busy, CPU busy, and both busy (as a share of the less busy one's time)."""
    whole = timeline.ended - timeline.began
    busy = {device: timeline.busy_s(device) / whole for device in timeline.devices}
    cpu = busy.pop(CPU, 0.0)
    return sum(busy.values()), cpu, timeline.overlap


def predicted_tok_s(found: Found) -> float:
    """Tokens per second predicted for all passes together, before any correction."""
    seconds = sum(tally.predicted_s for tally in found.tallies.values())
    return sum(tally.predicted_tokens for tally in found.tallies.values()) / seconds if seconds else 0.0


def show(found: dict[str, list[Found]], accelerator: str) -> None:
    """Print the medians of all rounds."""
    print(f"{'schedule':>17} {'tok/s':>7} {'predicted':>9} {'passes':>6} {'joins':>6}  {accelerator} cpu overlapped")
    for name, rounds in found.items():
        tok_s = statistics.median(each.tok_s for each in rounds)
        predicted = statistics.median(predicted_tok_s(each) for each in rounds)
        parts = [statistics.median(each.shares[place] for each in rounds) for place in range(3)]
        n_passes = statistics.median(each.n_passes for each in rounds)
        n_joins = statistics.median(each.n_joins for each in rounds)
        print(
            f"{name:>17} {tok_s:7.1f} {predicted:9.1f} {n_passes:6.0f} {n_joins:6.0f}  "
            + " ".join(f"{100 * part:3.0f} %" for part in parts)
        )
        if name == AUTO_SCHEDULE:
            chosen = rounds[-1].tallies
            print(f"{'':>17} chosen: " + ", ".join(f"{each} {tally.n_passes}" for each, tally in chosen.items()))


if __name__ == "__main__":
    main()
