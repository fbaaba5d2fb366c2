"""Compares predicted with measured times of prefill, decode and verification, for several models and devices.

Run: `python scripts/measure_prediction.py MODEL… [--rounds 3] [--profile FILE]`, or with `--device openvino`, or with
`--device cpu,openvino --schedule rows`, or with `--ram 75,50,25`: the percentages of each model's weights that may stay
in memory, while the rest is read from disk in every pass. The machine, or the devices with the first models' formats,
are probed first, unless a profile of the machine is given; then each model is loaded and timed, round after round, and
every prediction is compared with the median. The predictions use none of these measurements. Prints a table, how idle
the machine was, and the measured disk rate beside the profile's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.app.bench.ours import SequencePasses
from edgeinfer.app.bench.subject import BenchOpening, Conditions, random_tokens
from edgeinfer.app.plans.measured import measured_profile
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.measure.idle import idle_share
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.engine.opening.devices import FORMATS
from edgeinfer.engine.opening.plan_choice import choose
from edgeinfer.engine.probing.combination import alone_profiles, combined_profile
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.profile_file import read_profile
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology, usable_cores
from edgeinfer.scheduling.placement.budgets import Caching, budgets_of
from edgeinfer.scheduling.placement.placement import Placement, all_on
from edgeinfer.scheduling.prediction import Predictor
from edgeinfer.steps import no_progress

PROMPT, GEN, VERIFIED, VERIFIES = 512, 128, 8, 24
CONTEXT, PASS_TOKENS = 1024, 256
TESTS = ("prefill", "decode", "verify")


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the percentage of its weights that may stay in memory (None: all of them)."""

    path: Path
    percent: int | None = None

    @property
    def name(self) -> str:
        return self.path.stem if self.percent is None else f"{self.path.stem} {self.percent}%"

    @property
    def ram_bytes(self) -> int | None:
        """Bytes of memory for weights."""
        if self.percent is None:
            return None
        with GGUFFile.open(self.path) as file:
            return sum(info.nbytes for info in file.tensors.values()) * self.percent // 100


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of one test of one model."""

    case: Case
    test: str
    predicted_s: float
    measured_s: list[float]

    @property
    def error(self) -> float:
        """Error of the predicted rate as a share of the measured one."""
        return statistics.median(self.measured_s) / self.predicted_s - 1


def work_in(path: Path) -> ModelWork:
    """The work of a model's stages, from the header alone."""
    with GGUFFile.open(path) as file:
        return work_of(spec_of(file.metadata, file.tensors, CONTEXT), file.tensors)


def placed(work: ModelWork, names: tuple[str, ...], schedule: str) -> tuple[Profile, Placement]:
    """The machine's profile for these devices, and the placement of the model on them."""
    topology = read_topology()
    profile = combined_profile(names, topology, usable_cores(), work.formats[:FORMATS], no_progress)
    if len(names) == 1:
        return profile, all_on(work, names[0])
    budgets = budgets_of(profile, work, available_bytes(), most_rows=PASS_TOKENS)
    alone = alone_profiles(names, topology, usable_cores(), work.formats[:FORMATS], no_progress)
    return profile, choose(profile, alone, work, Caching(CONTEXT), budgets, schedule).placement


def streamed(case: Case, profile: Profile) -> Predictor:
    """The predictor of a model on the cpu device, including what it reads from disk."""
    work = work_in(case.path)
    if case.ram_bytes is None or profile.disk is None:
        return Predictor(profile, work)
    with GGUFFile.open(case.path) as file:
        spec = spec_of(file.metadata, file.tensors, CONTEXT)
        kept, limits = planned_weights(
            spec, file, case.name, limits_for(CONTEXT), WeightBudget(case.ram_bytes), profile.disk
        )
    if kept is None:
        return Predictor(profile, work)
    disk = profile.disk
    print(
        f"{case.name}: {kept.flash_bytes / 1e6:.1f} MB a pass, {kept.placement.n_readers} reads at a time, "
        f"{kept.flash_bytes / kept.streamed.seconds(disk) / 1e9:.2f} GB/s by the profile"
    )
    most = limits.max_tokens
    return Predictor(profile, work, disk_s=lambda n_tokens: kept.streamed.seconds(disk, n_tokens), most_tokens=most)


def predictions(predictor: Predictor) -> dict[str, float]:
    """Seconds of each test."""
    return {
        "prefill": predictor.prompt_s(PROMPT),
        "decode": predictor.decode_s(GEN),
        "verify": VERIFIES * predictor.pass_s(VERIFIED, n_outputs=VERIFIED),
    }


def measure(case: Case, device: str, schedule: str) -> dict[str, float]:
    """Seconds of each test, each done once after a warm-up.

    Decoding comes first: in a cache that grows at its end, the rows of a truncated prompt would lie before it.
    """
    conditions = Conditions(case.path, len(usable_cores()), CONTEXT, schedule=schedule, ram_bytes=case.ram_bytes)
    passes = SequencePasses(BenchOpening(device, conditions))
    try:
        tokens = random_tokens(0, PROMPT, passes.n_vocab)
        for token in tokens[:16]:
            passes.evaluate(np.array([token], np.int32), every=False)
        passes.truncate(0)
        found = {"decode": timed(lambda: [passes.evaluate(tokens[n : n + 1], every=False) for n in range(GEN)])}
        passes.truncate(0)
        drafts = [tokens[n : n + VERIFIED] for n in range(0, VERIFIES * VERIFIED, VERIFIED)]
        passes.evaluate(drafts[0], every=True)
        passes.truncate(0)
        found["verify"] = timed(lambda: [passes.evaluate(draft, every=True) for draft in drafts])
        passes.truncate(0)
        passes.evaluate(tokens, every=False)
        passes.truncate(0)
        found["prefill"] = timed(lambda: passes.evaluate(tokens, every=False))
        if (reading := passes.reading).read_s:
            print(f"{case.name}: the disk gave {reading.n_bytes / reading.read_s / 1e9:.2f} GB/s while it was read")
        return found
    finally:
        passes.close()


def timed(run: object) -> float:
    """Seconds of a call."""
    assert callable(run)
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--ram", type=lambda text: [int(each) for each in text.split(",")], default=[None])
    options = parser.parse_args()
    started = time.perf_counter()
    cases = [Case(path, percent) for path in options.models for percent in options.ram]
    if options.device == "cpu":
        profile = read_profile(options.profile) if options.profile else measured_profile(short=False)
        print(f"{profile.name}; profile in {time.perf_counter() - started:.1f} s, idle {profile.idle_share}")
        expected = {case: predictions(streamed(case, profile)) for case in cases}
    else:
        names = tuple(options.device.split(","))
        works = {case: work_in(case.path) for case in cases}
        found = {case: placed(work, names, options.schedule) for case, work in works.items()}
        print(f"{options.device}; profiles in {time.perf_counter() - started:.1f} s")
        expected = {
            case: predictions(Predictor(found[case][0], works[case], placement=found[case][1])) for case in cases
        }
    rows = [Row(case, test, expected[case][test], []) for case in cases for test in TESTS]
    idle = [idle_share()]
    for _ in range(options.rounds):
        for case in cases:
            took = measure(case, options.device, options.schedule)
            for row in rows:
                if row.case == case:
                    row.measured_s.append(took[row.test])
        idle.append(idle_share())
    sizes = {"prefill": PROMPT, "decode": GEN, "verify": VERIFIES * VERIFIED}
    print(f"{'model':20s} {'test':8s} {'predicted':>10s} {'measured':>10s}  tok/s (lowest to highest)   error")
    for row in rows:
        n = sizes[row.test]
        predicted, measured = n / row.predicted_s, n / statistics.median(row.measured_s)
        spread = f"{n / max(row.measured_s):9.1f} {n / min(row.measured_s):9.1f}"
        print(f"{row.case.name:20s} {row.test:8s} {predicted:10.1f} {measured:10.1f}  {spread}   {row.error:+8.1%}")
    errors = sorted(abs(row.error) for row in rows)
    print(
        f"median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}; idle {min(idle):.2f} to {max(idle):.2f}"
    )


if __name__ == "__main__":
    main()
