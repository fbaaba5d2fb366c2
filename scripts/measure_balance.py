"""Measures how well the work split follows the cores: unequal workers, cores used by other programs, equal idle cores.

Run: `python scripts/measure_balance.py MODEL [--parts slow,busy,idle,plan] [--threads 2] [--gen 128] [--rounds 3]`.
Prints one table per part; rates are medians over interleaved rounds, in tokens per second. `slow` makes calls of worker
1 take r times as long; `busy` pins a spinning process to one core (and runs llama-cpp-python beside it, if it is
installed); `idle` compares with a fixed worker pool; `plan` starts with the shares of a profile that is wrong about the
last worker by a factor of two. All runs evaluate the same tokens, and their logits are compared byte by byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions, WorkSplit
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import Model, open_model

N_PROMPT = 512
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
SETTLE_S = 0.3
PEER_LIMIT_S = 30.0
PEER = """
import sys, time, numpy as np, llama_cpp as api
path, threads, gen = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
wanted = api.llama_context_default_params()
wanted.n_ctx, wanted.n_threads, wanted.n_threads_batch = 1024, threads, threads
context = api.llama_init_from_model(model, wanted)
token = (api.llama_token * 1)(5)
for _ in range(8):
    api.llama_decode(context, api.llama_batch_get_one(token, 1))
started = time.perf_counter()
for _ in range(gen):
    api.llama_decode(context, api.llama_batch_get_one(token, 1))
    api.llama_synchronize(context)
print(gen / (time.perf_counter() - started))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of each decoded token and of the prompt, and a hash of all logits."""

    prompt_s: float
    token_s: list[float]
    digest: str
    sizes: list[int]

    @property
    def decode_tok_s(self) -> float:
        return len(self.token_s) / sum(self.token_s)


class Bench:
    """One compiled model that runs with any work split; `slow_down` acts on its worker pool."""

    def __init__(self, model: Model, n_threads: int, n_gen: int) -> None:
        device = CpuDevice(DeviceOptions(n_threads))
        self._limits = limits_for(N_PROMPT + n_gen)
        self.worker_pool = WorkerPool(n_threads, device.cores, device.library)
        resources = LaneResources(self.worker_pool, device.library, device.isa)
        self.lane = CpuLane(model.spec, model.file, self._limits, resources, lambda *_: None)
        self._device = device
        self.n_gen = n_gen
        self.n_threads = n_threads
        self.prompt_shares = ""
        self._tokens = np.random.default_rng(0).integers(0, model.spec.n_vocab, N_PROMPT + n_gen).astype(np.int32)
        self.adaptive = self._executor(adapts=True)
        self._fixed = self._executor(adapts=False)

    def _executor(self, adapts: bool) -> Executor:
        return Executor(self._device, self.lane, self._limits, "", DeviceOptions(adapts=adapts))

    def restart(self, shares: tuple[float, ...] = ()) -> None:
        """Forget what was learned, and start with these shares for small and large passes."""
        options = DeviceOptions(adapts=True, decode_shares=shares, prefill_shares=shares)
        self.adaptive = Executor(self._device, self.lane, self._limits, "", options)

    @property
    def shares(self) -> str:
        """Each worker's share of the last step."""
        cuts = self.lane.work_split.cuts
        return "/".join(f"{(stop - start) / cuts[-1]:.2f}" for start, stop in itertools.pairwise(cuts))

    def run(self, work_split: WorkSplit | None, n_prompt: int = N_PROMPT) -> Run:
        """Run a prompt and `n_gen` tokens with a fixed work split; None adapts it."""
        executor = self.adaptive if work_split is None else self._fixed
        if work_split is not None:
            self.lane.work_split = work_split
        sequence, digest = executor.create(), hashlib.sha256()
        seconds, sizes, most = [], [], self._limits.max_tokens
        chunks = [(place, min(n_prompt, place + most)) for place in range(0, n_prompt, most)]
        for start, stop in [*chunks, *((place, place + 1) for place in range(n_prompt, n_prompt + self.n_gen))]:
            order = np.arange(stop - start, dtype=np.int32)
            sequences = np.full(stop - start, sequence, np.int32)
            batch = Batch(self._tokens[start:stop], sequences, order + start, order - 1, order[-1:])
            started = time.perf_counter()
            logits = executor.evaluate(batch)
            executor.commit(sequence, order)
            seconds.append(time.perf_counter() - started)
            sizes.append(len(self.lane.work_split.workers))
            if stop == n_prompt:
                self.prompt_shares = self.shares
            digest.update(logits.tobytes())
        executor.free(sequence)
        n_chunks = len(chunks)
        return Run(sum(seconds[:n_chunks]), seconds[n_chunks:], digest.hexdigest(), sizes[n_chunks:])


def even(bench: Bench) -> WorkSplit:
    return WorkSplit.even(bench.n_threads)


def alone() -> WorkSplit:
    return WorkSplit((0,), WorkSplit.even(1).cuts, pinned=False)


def rates(runs: list[Run]) -> tuple[float, float]:
    """Median prefill and decode rates."""
    return (
        statistics.median(N_PROMPT / run.prompt_s for run in runs),
        statistics.median(run.decode_tok_s for run in runs),
    )


def same_bits(runs: list[Run]) -> str:
    return "same bits" if len({run.digest for run in runs}) == 1 else "DIFFERENT BITS"


def measure_slow(bench: Bench, rounds: int) -> None:
    """Worker 1 slowed by r: the adaptive shares against the even split and against the sum of the rates."""
    print("\nslow worker: worker 1 takes r times as long (of the ideal: (n - 1 + 1/r) / n of the even split at r = 1)")
    print("   r    phase     even adaptive    ideal of ideal of even  shares of the prompt, of a token")
    everything = []
    for slowness in (1.5, 2.0, 3.0):
        plain, split, adapted = [], [], []
        bench.restart()
        for _ in range(rounds + 1):
            bench.worker_pool.slow_down(1, 1.0)
            plain.append(bench.run(even(bench)))
            bench.worker_pool.slow_down(1, slowness)
            split.append(bench.run(even(bench)))
            adapted.append(bench.run(None))
            shares = f"{bench.prompt_shares} {bench.shares}"
        everything += plain + split + adapted
        n = bench.n_threads
        ideals = [rate * (n - 1 + 1 / slowness) / n for rate in rates(plain[1:])]
        for phase, ideal, fixed, ours in zip(
            ("prefill", "decode"), ideals, rates(split[1:]), rates(adapted[1:]), strict=True
        ):
            print(
                f"{slowness:4.1f} {phase:>8} {fixed:8.1f} {ours:8.1f} {ideal:8.1f} {ours / ideal:8.2f} "
                f"{ours / fixed:7.2f}  {shares if phase == 'decode' else ''}"
            )
    bench.worker_pool.slow_down(1, 1.0)
    print(same_bits(everything))


@contextlib.contextmanager
def spinning(core: int) -> Iterator[None]:
    """Run a process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(core)])
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_busy(bench: Bench, model: Path, rounds: int) -> None:
    """One busy core: adaptive against each fixed worker pool, and the reaction when the load comes and goes."""
    print("\nbusy core: a process spins on one core (tok/s)")
    print(f"{'core':>5} {'team':>12} {'prefill':>8} {'decode':>8}")
    everything = []
    for name, rate in peer_rates(bench, model).items():
        print(f"{'none':>5} {name:>12} {'':>8} {rate}")
    for core in bench.worker_pool.cores[: bench.n_threads]:
        bench.restart()
        bench.run(None)
        with spinning(core):
            bench.run(None)
            work_splits = {"adaptive": None, "all": even(bench), "one": alone()}
            runs: dict[str, list[Run]] = {name: [] for name in work_splits}
            for _ in range(rounds):
                for name, work_split in work_splits.items():
                    runs[name].append(bench.run(work_split))
            peers = {
                f"llama.cpp, {threads}": peer_rate(model, threads, bench.n_gen) for threads in (bench.n_threads, 1)
            }
        for name, its_runs in runs.items():
            prefill, decode = rates(its_runs)
            print(f"{core:5} {name:>12} {prefill:8.1f} {decode:8.1f}")
            everything += its_runs
        for name, rate in peers.items():
            print(f"{core:5} {name:>12} {'':>8} {rate}")
    for core in bench.worker_pool.cores[: bench.n_threads]:
        everything += measure_change(bench, core)
    print(same_bits(everything))


def measure_change(bench: Bench, core: int) -> list[Run]:
    """Start and stop the load during decoding; prints how many tokens the worker pool needs to adapt."""
    bench.restart()
    before = bench.run(None)
    print(f"core {core}: idle", trace(before))
    with spinning(core):
        loaded = bench.run(None, N_PROMPT)
    print(f"core {core}: load begins", trace(loaded), f"-> team 1 after {first(loaded, 1)} tokens")
    freed = bench.run(None, N_PROMPT)
    everybody = bench.n_threads
    print(f"core {core}: load ended ", trace(freed), f"-> team {everybody} after {first(freed, everybody)} tokens")
    return [before, loaded, freed]


def trace(run: Run) -> str:
    """Worker pool sizes, token by token, run-length encoded."""
    parts: list[tuple[int, int]] = []
    for size in run.sizes:
        if parts and parts[-1][0] == size:
            parts[-1] = size, parts[-1][1] + 1
        else:
            parts.append((size, 1))
    return f"{run.decode_tok_s:.1f} tok/s, " + " ".join(f"{size}x{count}" for size, count in parts)


def first(run: Run, size: int) -> int | str:
    """Tokens before the worker pool reached a size that it kept for eight tokens."""
    for place in range(len(run.sizes) - 7):
        if set(run.sizes[place : place + 8]) == {size}:
            return place
    return "never"


def peer_rates(bench: Bench, model: Path) -> dict[str, str]:
    """llama-cpp-python's decode rates with all threads and with one."""
    return {f"llama.cpp, {threads}": peer_rate(model, threads, bench.n_gen) for threads in (bench.n_threads, 1)}


def peer_rate(model: Path, threads: int, n_gen: int) -> str:
    """llama-cpp-python's decode rate at present; including loading, it may take at most PEER_LIMIT_S."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "not installed"
    command = [sys.executable, "-c", PEER, str(model), str(threads), str(n_gen)]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=PEER_LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        return f"not done after {PEER_LIMIT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        return f"failed with {error.returncode}"
    return f"{float(out.stdout.split()[-1]):8.1f}"


def measure_idle(bench: Bench, rounds: int) -> None:
    """The cost of adapting on equal idle cores. The order within each pair of runs alternates."""
    print("\nidle cores (tok/s)")
    bench.restart()
    pairs = []
    for number in range(rounds + 1):
        runs = [bench.run(work_split) for work_split in ((even(bench), None) if number % 2 else (None, even(bench)))]
        pairs.append(runs if number % 2 else runs[::-1])
    for phase, which in (("prefill", 0), ("decode", 1)):
        fixed, ours = ([rates([run])[which] for run in runs] for runs in zip(*pairs[1:], strict=True))
        ratios = sorted(mine / other for mine, other in zip(ours, fixed, strict=True))
        print(
            f"{phase:>8}: fixed {statistics.median(fixed):8.1f}  adaptive {statistics.median(ours):8.1f}  "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
    ours = [pair[1] for pair in pairs]
    print("tokens by a smaller team", sum(size < bench.n_threads for run in ours for size in run.sizes), end=" ")
    print("of", sum(len(run.sizes) for run in ours), "cuts", bench.lane.work_split.cuts)
    print(same_bits([run for pair in pairs for run in pair]))


def measure_plan(bench: Bench, rounds: int) -> None:
    """Plans that overrate or underrate a worker by a factor of two: rates as decoding goes on."""
    print("\na plan for wrong rates (decode, of the right plan's rate; right and wrong by turns)")
    n_workers = bench.n_threads
    for wrong in (2.0, 0.5):
        speeds = [wrong if worker == n_workers - 1 else 1.0 for worker in range(n_workers)]
        pairs = []
        for _ in range(rounds):
            bench.restart(tuple(1 / n_workers for _ in speeds))
            right = bench.run(None)
            bench.restart(tuple(speed / sum(speeds) for speed in speeds))
            pairs.append((right, bench.run(None)))
        shown = []
        for start, stop in ((0, 4), (4, 16), (16, 64), (128, bench.n_gen)):
            ratios = [sum(a.token_s[start:stop]) / sum(b.token_s[start:stop]) for a, b in pairs if stop > start]
            shown.append(f"tokens {start}-{stop}: {statistics.median(ratios):.3f}" if ratios else "")
        prompts = statistics.median(a.prompt_s / b.prompt_s for a, b in pairs)
        print(f"last worker rated x {wrong}: {', '.join(filter(None, shown))}; first prompt {prompts:.3f}")
        print(same_bits([run for pair in pairs for run in pair]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--parts", default="slow,busy,idle")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts = options.parts.split(",")
    with open_model(options.model, N_PROMPT + options.gen) as model:
        bench = Bench(model, options.threads, options.gen)
        bench.run(even(bench))
        if "idle" in parts:
            measure_idle(bench, options.rounds)
        if "slow" in parts:
            measure_slow(bench, options.rounds)
        if "plan" in parts:
            measure_plan(bench, options.rounds)
        if "busy" in parts:
            measure_busy(bench, options.model, options.rounds)
        bench.lane.close()


if __name__ == "__main__":
    main()
