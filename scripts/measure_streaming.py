"""Measures models larger than memory: tokens per second under a memory limit, beside the disk's rate and llama.cpp.

Run: `python scripts/measure_streaming.py MODEL… [--shares 75,50,25] [--gen 32] [--threads 1] [--against] [--rounds 2]`.
For each model and share, processes with that share of the model's size for weights (and 200 MB plus the cache for
everything else) answer the same prompt one token at a time, each in a control group with that limit, with cold caches;
between them the disk is read directly, with file and request sizes as in the run. `--against` runs llama-cpp-python
with mmap under the same limit. The bound is the slower of the disk (its rate over bytes per token) and the model in
memory; tokens are compared with those of the model in memory. Needs permission to create control groups.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from memory_cap import MemoryCap

from edgeinfer.engine.measure.idle import idle_share
from edgeinfer.jit.memory import aligned
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle_file import bundle_path, open_source

PROMPT = "The history of the steam engine begins"
OTHER_BYTES = 200 << 20
CONTEXT = 512
"""Small, so that the cache does not hide the effect of the weights."""
DISK_S = 1.0
PEER = """
import json, resource, sys, time
from llama_cpp import Llama
path, threads, n, prompt, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
def read_bytes():
    lines = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(lines["read_bytes"])
llm = Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, use_mmap=True, verbose=False)
tokens = llm.tokenize(prompt.encode())
stream = llm.generate(tokens, temp=0.0)
next(stream)
started, before = time.perf_counter(), read_bytes()
for _ in range(n - 1):
    next(stream)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"tok_s": (n - 1) / seconds, "bytes": (read_bytes() - before) / (n - 1), "peak": peak}))
"""


@dataclass(slots=True)
class Case:
    """Results of a model with a share of its size: tokens per second, bytes per token, and so on."""

    share: float
    tok_s: list[float] = field(default_factory=list)
    bytes_per_token: float = 0.0
    disk_bytes_s: list[float] = field(default_factory=list)
    peak_rss: int = 0
    same: bool = True
    peer_tok_s: list[float] = field(default_factory=list)
    peer_bytes: float = 0.0


class Subject:
    """One model and how to run it."""

    def __init__(self, path: Path, gen: int, threads: int) -> None:
        self.path, self._gen, self._threads = path, gen, threads
        with GGUFFile.open(path) as file:
            self.nbytes = file.nbytes
            self.kv_bytes = _kv_bytes(file)
            self.bundles = bundle_path(path.stem, fingerprint(file))

    def ours(self, ram_bytes: int | None, spec: str = "off") -> dict[str, object]:
        """Run edgeinfer with this much memory for weights (None: all weights)."""
        arguments = [
            sys.executable,
            "-m",
            "edgeinfer",
            "run",
            "-m",
            str(self.path),
            "--device",
            "cpu",
            "--raw",
            "--json",
        ]
        arguments += ["--temp", "0", "--spec", spec, "--ctx", str(CONTEXT), "--no-history"]
        arguments += ["--threads", str(self._threads), "--max-tokens", str(self._gen), PROMPT]
        if ram_bytes is not None:
            arguments += ["--ram", str(ram_bytes)]
        return json.loads(self._run(arguments, ram_bytes))

    def peer(self, ram_bytes: int) -> dict[str, float] | None:
        """Run llama-cpp-python in the same way; None if the limit killed it."""
        arguments = [
            sys.executable,
            "-c",
            PEER,
            str(self.path),
            str(self._threads),
            str(self._gen),
            PROMPT,
            str(CONTEXT),
        ]
        try:
            return json.loads(self._run(arguments, ram_bytes))
        except subprocess.CalledProcessError:
            return None

    def _run(self, arguments: Sequence[str], ram_bytes: int | None) -> str:
        drop_caches()
        cap = nullcontext() if ram_bytes is None else MemoryCap(ram_bytes + self.kv_bytes + OTHER_BYTES)
        with cap as limit:
            command = arguments if limit is None else limit.command(arguments)
            found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode:
            print(found.stderr[-2000:], file=sys.stderr)
            found.check_returncode()
        return found.stdout


def _kv_bytes(file: GGUFFile) -> int:
    from edgeinfer.models.load import spec_of

    return spec_of(file.metadata, file.tensors, CONTEXT).kv_bytes_per_token() * (CONTEXT + 5 * 64)


def drop_caches() -> None:
    """Drop the kernel's page cache, if permitted."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        print("caches could not be dropped", file=sys.stderr)


def disk_rate(path: Path, request_bytes: int, n_readers: int) -> float:
    """Bytes per second of direct sequential reads, several at a time."""
    with open_source(path, True) as source:
        n_requests = source.nbytes // request_bytes
        memory = aligned((n_readers, request_bytes), np.uint8)
        memory[:] = 1
        numbers, started = count(), time.perf_counter()

        def read(reader: int) -> int:
            n_bytes = 0
            while time.perf_counter() - started < DISK_S:
                n_bytes += source.read_into(memory[reader].data, next(numbers) % n_requests * request_bytes)
            return n_bytes

        with ThreadPoolExecutor(n_readers) as threads:
            total = sum(threads.map(read, range(n_readers)))
        return total / (time.perf_counter() - started)


def measure(subject: Subject, shares: Sequence[float], rounds: int, against: bool) -> tuple[float, list[Case]]:
    """Tokens per second in memory, and the results for each share."""
    subject.ours(int(subject.nbytes * min(shares)))  # packs, and compiles kernels
    whole = subject.ours(None)
    in_memory = [float(whole["decode_tok_s"])]
    cases = [Case(share) for share in shares]
    for _ in range(rounds):
        for case in cases:
            ram_bytes = int(subject.nbytes * case.share)
            case.disk_bytes_s.append(disk_rate(subject.bundles, 1 << 20, 4))
            found = subject.ours(ram_bytes)
            case.tok_s.append(float(found["decode_tok_s"]))
            case.bytes_per_token = found["weights_read_bytes"] / found["steps"]
            case.peak_rss = max(case.peak_rss, int(found["peak_rss_bytes"]))
            case.same = case.same and found["tokens"] == whole["tokens"]
            case.disk_bytes_s.append(disk_rate(subject.bundles, 1 << 20, 4))
            peer = subject.peer(ram_bytes) if against else None
            if peer is not None:
                case.peer_tok_s.append(peer["tok_s"])
                case.peer_bytes = peer["bytes"]
        in_memory.append(float(subject.ours(None)["decode_tok_s"]))
    return statistics.median(in_memory), cases


def show(subject: Subject, in_memory: float, cases: Sequence[Case]) -> None:
    """Print the table of one model."""
    print(f"{subject.path.stem}: {subject.nbytes / 1e6:.0f} MB, {in_memory:.1f} tok/s in memory")
    for case in cases:
        disk, tok_s = statistics.median(case.disk_bytes_s), statistics.median(case.tok_s)
        bound = min(in_memory, disk / case.bytes_per_token)
        allowed = case.share * subject.nbytes + subject.kv_bytes + OTHER_BYTES
        print(
            f"  {100 * case.share:.0f} %: {tok_s:.2f} tok/s ({min(case.tok_s):.2f}-{max(case.tok_s):.2f}), "
            f"{case.bytes_per_token / 1e6:.0f} MB a token, disk {disk / 1e9:.2f} GB/s, bound {bound:.2f}, "
            f"{100 * tok_s / bound:.0f} % of it; peak RSS {case.peak_rss / 1e6:.0f} of {allowed / 1e6:.0f} MB, "
            f"{'same tokens' if case.same else 'OTHER TOKENS'}"
            + (
                f"; llama.cpp {statistics.median(case.peer_tok_s):.2f} tok/s, {case.peer_bytes / 1e6:.0f} MB a token: "
                f"{tok_s / statistics.median(case.peer_tok_s):.2f} x"
                if case.peer_tok_s
                else ""
            )
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--shares", default="75,50,25", help="of the model's size, in percent")
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", action="store_true", help="llama-cpp-python under the same limit")
    options = parser.parse_args()
    shares = [float(share) / 100 for share in options.shares.split(",")]
    print(f"idle {idle_share():.2f}")
    for path in options.models:
        subject = Subject(path, options.gen, options.threads)
        in_memory, cases = measure(subject, shares, options.rounds, options.against)
        show(subject, in_memory, cases)
    print(f"idle {idle_share():.2f}")


if __name__ == "__main__":
    main()
