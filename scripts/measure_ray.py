"""Measures what Ray costs: batches and requests on a cluster of this computer, against the same without Ray, by turns.

Run: `python scripts/measure_ray.py [batch] [http] [parts] [-m MODEL] [--rounds N] [--questions FILE]`, on a quiet
machine. batch: tokens per second of two nodes, each with half of the cores, against two processes of `edgeinfer batch`
with half of the cores and of the lines each, counted from the first answer to the last (loading is left out, and told
apart). http: seconds to the first token of `edgeinfer serve --ray local` with one replica, against `edgeinfer serve`.
parts: the inputs of `scripts/simulate_ray.py` as JSON: the driver's seconds for a block of a batch, and those of
choosing a replica; `http` adds the CPU time of passing on a request. Nothing is judged.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgeinfer.scheduling.machine.topology import read_topology

COMMAND = (sys.executable, "-W", "ignore", "-m", "edgeinfer")
N_TOKENS, N_LINES, N_REQUESTS, N_BLOCKS = 64, 48, 30, 400
READY_S = 600.0
REPLICAS = (1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Answered:
    """One run of a batch: tokens per second between the first answer and the last, and seconds until the first."""

    tok_s: float
    first_s: float


def questions(path: Path | None, n: int) -> list[str]:
    """Questions of a file of Spec-Bench, else made ones."""
    if path is None:
        return [f"Tell me about the number {number} and what people count with it." for number in range(n)]
    found = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    return [" ".join(text.split())[:400] for text in (found * (n // len(found) + 1))[:n]]


def run_batches(commands: Sequence[Sequence[str]]) -> Answered:
    """Run batches side by side; the lines of all of them count together. Raises SystemExit if one fails."""
    began, found, lock = time.perf_counter(), list[tuple[float, int]](), threading.Lock()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with lock:
                found.append((time.perf_counter() - began, json.loads(line).get("n_generated", 0)))

    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    readers = [threading.Thread(target=read, args=(process,)) for process in running]
    for reader in readers:
        reader.start()
    for process, reader in zip(running, readers, strict=True):
        reader.join()
        said = process.stderr.read() if process.stderr is not None else ""
        if process.wait():
            raise SystemExit(f"{' '.join(process.args)}: {said}")  # type: ignore[arg-type]
    times = sorted(found)
    tokens = sum(n for _, n in times[1:])
    return Answered(tokens / (times[-1][0] - times[0][0]), times[0][0])


def measure_batches(model: Sequence[str], rounds: int, path: Path | None) -> None:
    """Two nodes against two processes."""
    from ray.cluster_utils import Cluster

    cores = read_topology().workers()
    half = len(cores) // 2
    if not half:
        raise SystemExit("two nodes need two cores")
    lines = questions(path, N_LINES)
    options = ["--temp", "0", "--max-tokens", str(N_TOKENS), "--device", "cpu", *model]
    alone, together = list[Answered](), list[Answered]()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="eray-", dir="/tmp")))
        (folder / "ray").mkdir()
        os.environ |= {"RAY_TMPDIR": str(folder), "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        parts = [folder / "all.txt", folder / "first.txt", folder / "second.txt"]
        for part, own in zip(parts, (lines, lines[::2], lines[1::2]), strict=True):
            part.write_text("\n".join(own), encoding="utf-8")
        n_cpus = os.cpu_count() or 2
        cluster = Cluster()
        opened.callback(cluster.shutdown)
        cluster.add_node(num_cpus=n_cpus // 2, object_store_memory=100_000_000, include_dashboard=False)
        cluster.add_node(num_cpus=n_cpus // 2, object_store_memory=100_000_000)
        split = [",".join(map(str, cores[:half])), ",".join(map(str, cores[half : 2 * half]))]
        for _ in range(rounds):
            halves = zip(parts[1:], split, strict=True)
            commands = [[*COMMAND, "batch", str(part), "--cores", own, *options] for part, own in halves]
            alone.append(run_batches(commands))
            together.append(run_batches([[*COMMAND, "batch", str(parts[0]), "--ray", cluster.address, *options]]))
    _show("two processes, tok/s", [each.tok_s for each in alone])
    _show("two nodes, tok/s", [each.tok_s for each in together])
    _show("nodes / processes", [b.tok_s / a.tok_s for a, b in zip(alone, together, strict=True)])
    _show("two processes, s to the first answer", [each.first_s for each in alone])
    _show("two nodes, s to the first answer", [each.first_s for each in together])


@contextmanager
def server(model: Sequence[str], *options: str) -> Iterator[tuple[int, psutil.Process]]:
    """A server on a free port: the port, and the process with the address."""
    command = [*COMMAND, "serve", "--port", "0", "--ready-json", "--no-key", "--device", "cpu", *model, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield int(ready.get("port") or str(ready["url"]).rpartition(":")[2].rstrip("/")), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def first_token_s(port: int, text: str) -> float:
    """Seconds until the first text of a streamed answer arrives."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 8, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
    began, first = time.perf_counter(), 0.0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not first and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            first = time.perf_counter() - began
    connection.close()
    return first


def measure_http(model: Sequence[str], rounds: int, path: Path | None) -> Mapping[str, float]:
    """One server against the other, request by request; the front's CPU time for a request."""
    texts = questions(path, N_REQUESTS * rounds + 2)
    plain, on_ray = list[float](), list[float]()
    with server(model) as (port, _), server(model, "--ray", "local", "--replicas", "1") as (other, front):
        first_token_s(port, texts[-1])
        first_token_s(other, texts[-1])
        before = front.cpu_times()
        for text in texts[:-2]:
            plain.append(first_token_s(port, text))
            on_ray.append(first_token_s(other, text))
        after = front.cpu_times()
    spent = (after.user + after.system - before.user - before.system) / len(on_ray)
    _show("edgeinfer serve, ms to the first token", [1e3 * each for each in plain])
    _show("serve --ray, ms to the first token", [1e3 * each for each in on_ray])
    _show("ms more", [1e3 * (b - a) for a, b in zip(plain, on_ray, strict=True)])
    return {"proxy_s": spent}


class _Nothing:
    """Answers blocks with themselves."""

    async def __call__(self, batch: Mapping[str, object]) -> object:
        yield batch


def measure_parts() -> Mapping[str, float]:
    """Seconds of the driver for a block, and of choosing among replicas."""
    return {"head_s": _block_s(), **_choosing_s()}


def _block_s() -> float:
    """Seconds that the driver computes for a block of Ray Data."""
    import ray
    import ray.data

    from edgeinfer.app.cluster.quiet import quiet_data
    from edgeinfer.app.cluster.ray_session import ray_session

    with ray_session("local"), quiet_data():
        rows = [{"index": number, "entry": b"x" * 500} for number in range(N_BLOCKS)]
        strategy = ray.data.ActorPoolStrategy(size=1, max_tasks_in_flight_per_actor=16)
        dataset = ray.data.from_items(rows, override_num_blocks=N_BLOCKS).map_batches(
            _Nothing, compute=strategy, batch_size=None, num_cpus=1, max_concurrency=8
        )
        times = [time.process_time() for _ in dataset.iter_batches(batch_size=None, prefetch_batches=0)]
    return (times[-1] - times[len(times) // 4]) / (len(times) - 1 - len(times) // 4)


def _choosing_s() -> Mapping[str, float]:
    """Seconds of choosing a replica for a conversation of some turns: a line through those for several numbers."""
    from edgeinfer.app.cluster.prefix_memory import PrefixMemory, ReplicaLoad, ranked
    from edgeinfer.app.cluster.request_keys import request_keys

    turns = [
        {"role": role, "content": f"{role} says {number} " * 100}
        for number in range(6)
        for role in ("user", "assistant")
    ]
    body = json.dumps({"model": "m", "messages": [*turns, {"role": "user", "content": "and now?"}]}).encode()
    points: list[tuple[int, float]] = []
    for n_replicas in REPLICAS:
        memory, loads = PrefixMemory(), [ReplicaLoad(f"replica-{n}", n % 5, 8) for n in range(n_replicas)]
        memory.note(request_keys("/v1/chat/completions", body), "replica-0")
        best = float("inf")
        for _ in range(5):
            began, n_runs = time.process_time(), max(20, 2000 // n_replicas)
            for _ in range(n_runs):
                ranked(loads, request_keys("/v1/chat/completions", body), memory)
            best = min(best, (time.process_time() - began) / n_runs)
        points.append((n_replicas, best))
    slope, base = statistics.linear_regression([n for n, _ in points], [seconds for _, seconds in points])
    return {"router_s": max(base, 0.0), "router_replica_s": slope}


def _show(name: str, values: Sequence[float]) -> None:
    print(
        f"{name}: median {statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g}, {len(values)})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="batch, http, parts; all of them by default")
    parser.add_argument("-m", "--model", help="as `edgeinfer batch -m` takes it; the model used last by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=Path, help="lines of JSON with `turns`, as Spec-Bench has them")
    given = parser.parse_args()
    what = set(given.what or ("batch", "http", "parts"))
    if unknown := what - {"batch", "http", "parts"}:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are batch, http, parts")
    model = [] if given.model is None else ["-m", given.model]
    inputs: dict[str, float] = {}
    if "batch" in what:
        measure_batches(model, given.rounds, given.questions)
    if "http" in what:
        inputs |= measure_http(model, given.rounds, given.questions)
    if "parts" in what:
        inputs |= measure_parts()
    if inputs:
        print(json.dumps(inputs))


if __name__ == "__main__":
    main()
