"""Runs a whole benchmark: every case in rounds, with each executor loaded in its own process.

In: a model, cases, executors, conditions. Out: a `Record`. Prints nothing; reports what it is doing to a `Progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from edgeinfer.app.bench import figures
from edgeinfer.app.bench.draft_figures import DraftFigures, draft_figures
from edgeinfer.app.bench.figures import TrafficBench
from edgeinfer.app.bench.machine import BenchMachine, MemoryBandwidth, describe, read_quietly
from edgeinfer.app.bench.request import BenchExecutor, BenchRequest, Case, cases
from edgeinfer.app.bench.rounds import CaseResult, Rounds, Sample
from edgeinfer.app.bench.runners import runner_for
from edgeinfer.app.bench.subject import BenchJob, BenchReply, Conditions, OpTime
from edgeinfer.engine.measure.idle import idle_share, is_busy
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from edgeinfer.scheduling.machine.topology import usable_cores
from edgeinfer.steps import DETAIL, Progress

PROFILED_TESTS = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Ops:
    """Where the time of one pass goes. `python_s`: outside of compiled code, beside the times of the ops."""

    test: str
    n: int
    depth: int
    times: tuple[OpTime, ...]
    overhead: Mapping[str, float]
    python_s: float = 0.0
    clock_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """All results of a benchmark. `samples` are in the order they were run."""

    machine: BenchMachine
    threads: int
    idle_before: float
    idle_after: float
    rows: tuple[figures.BenchRow, ...]
    ratios: tuple[figures.Ratio, ...]
    verify_cost: Mapping[int, float]
    samples: tuple[Sample, ...]
    ops: tuple[Ops, ...]
    drafting: DraftFigures | None = None


def measure(
    wanted: BenchRequest,
    first: BenchExecutor,
    others: Sequence[BenchExecutor],
    conditions: Conditions,
    progress: Progress,
) -> Record:
    """Run every case. An executor's failures and crashes are reported in its rows."""
    progress("reading memory", 0, 0)
    usable = usable_cores()
    cores = conditions.cores or usable

    def busy(idle: float) -> bool:
        return is_busy(idle, conditions.threads)

    readers = tuple(cores[place % len(cores)] for place in range(conditions.threads))
    traffic = _traffic((first, *others), conditions)
    model_bytes = traffic[first.name].footprint.weight_bytes
    machine = describe(len(usable), read_quietly(readers, model_bytes, idle_share, busy))
    todo = cases(wanted)
    with ExitStack() as stack:
        runners = {one.name: stack.enter_context(closing(runner_for(one, conditions))) for one in (first, *others)}
        rounds = Rounds(lambda name, job: runners[name].run(job), idle_share, busy)
        idle_before = rounds.last_idle
        names = [executor.name for executor in others]
        found = _Findings(first.name, traffic, machine.memory)
        drafting: DraftFigures | None = None
        led = [case for case in todo if case.test == "chat" and not names and conditions.spec != "off"]
        announcer = _Announcer([case for case in todo if case not in led], len(names), progress)
        for case in todo:
            if case in led:
                drafting = _drafting(case, runners[first.name].run, progress)
                rounds.last_idle = idle_share()
                continue
            asked = [] if case.cold else names
            found.add(case, rounds.measure(case, first.name, asked, announcer.before(case)), asked)
        idle_after = rounds.last_idle
        for name in names:
            runners[name].close()
        progress("timing single ops", 0, 0)
        ops = _ops(todo, runners[first.name].run)
    return Record(
        machine,
        conditions.threads,
        idle_before,
        idle_after,
        tuple(found.rows),
        tuple(found.ratios),
        figures.verify_cost(found.rows, first.name),
        tuple(found.samples),
        ops,
        drafting,
    )


def _drafting(case: Case, run: Callable[[BenchJob], BenchReply], progress: Progress) -> DraftFigures:
    """Run every conversation with and without drafts in alternation. Raises EdgeInferError if that is impossible."""
    led = []
    for number, question in enumerate(case.questions):
        progress("leading conversations with drafts and without", number, len(case.questions))
        reply = run(BenchJob("drafting", case.n, seed=number, questions=(question,), repeats=case.runs))
        if reply.problem is not None:
            raise EdgeInferError(f"drafting could not be measured: {reply.problem}")
        led.append(reply.drafting)
    return draft_figures(led)


@dataclass(slots=True)
class _Findings:
    """The results of the cases so far."""

    first: str
    traffic: Mapping[str, TrafficBench]
    memory: MemoryBandwidth
    rows: list[figures.BenchRow] = field(default_factory=list)
    ratios: list[figures.Ratio] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def add(self, case: Case, measured: CaseResult, others: Sequence[str]) -> None:
        """Add the results of a case."""
        self.samples += measured.samples
        self.rows += figures.rows(measured, case, (self.first, *others), self.traffic, self.memory)
        self.ratios += figures.ratios(measured, case, self.first, others)


class _Announcer:
    """Tells which executor runs next, in words for people, and how many of all runs are over."""

    def __init__(self, todo: Sequence[Case], n_others: int, progress: Progress) -> None:
        self._progress = progress
        self._n_done = 0
        self._total = sum(_n_runs(case, n_others) for case in todo)

    def before(self, case: Case) -> Callable[[str, int], None]:
        """For the runs of a case."""

        def announce(name: str, number: int) -> None:
            which = f"run {number} of {case.runs}" if number else "getting ready"
            self._progress(f"measuring{DETAIL}{case.title}: {name}, {which}", self._n_done, self._total)
            self._n_done = min(self._n_done + 1, self._total)

        return announce


def _n_runs(case: Case, n_others: int) -> int:
    """Runs of a case, warm-ups included: each other executor takes turns with the first."""
    others = 0 if case.cold else n_others
    return 1 + others + case.runs * max(1, 2 * others)


def _traffic(executors: Sequence[BenchExecutor], conditions: Conditions) -> dict[str, TrafficBench]:
    """The memory traffic of a token on each of our devices, computed from the header alone."""
    with GGUFFile.open(conditions.model) as file:
        spec = spec_of(file.metadata, file.tensors, conditions.n_context)
        return {
            one.name: TrafficBench.of(one.key, spec, file.tensors, conditions.n_context, conditions.kv)
            for one in executors
            if one.kind == "ours"
        }


def _ops(todo: Sequence[Case], run: Callable[[BenchJob], BenchReply]) -> tuple[Ops, ...]:
    """Profile a pass of each case that has passes, as far as the device supports it."""
    found = []
    for case in todo:
        if case.test in PROFILED_TESTS:
            reply = run(BenchJob("ops", 1 if case.test == "decode" else case.n, case.depth))
            if reply.problem is not None:
                break
            n = next(iter(reply.seconds))
            found.append(Ops(case.test, n, case.depth, reply.ops, reply.overhead, reply.python_s, reply.clock_hz))
    return tuple(found)
