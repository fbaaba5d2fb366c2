"""Runs a target on one input after another, in a process of its own, and tells what is not as it should be.

In: a target, a seed, how many inputs. Out: lines of JSON on standard output, one a finding: an error that is not ours,
more than SLOW_S seconds, more than MOST_BYTES of memory beyond what was there before; and at the end how many inputs
were read without an error. The input under way is in a file
mapped into memory, where it outlives a crash.
"""

from __future__ import annotations

import importlib
import json
import mmap
import random
import resource
import sys
import time
import traceback
from pathlib import Path

from mutation import MOST_BYTES as LONGEST
from mutation import mutated

from edgeinfer.errors import EdgeInferError

SLOW_S = 1.0
MOST_BYTES = 200 << 20
ADDRESS_SPACE = 6 << 30
"""Beyond this an allocation fails, before the machine does."""
WARM = 200
"""Inputs after which memory counts: the first ones import modules."""


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def place_of(error: BaseException) -> str:
    """Where an error comes from: the last line of our own code, and the kind of error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "edgeinfer" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:120]}"


def main() -> None:
    """Arguments: target, seed, first input, how many, file for the input under way."""
    name, seed, first, count, shared = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    target = importlib.import_module(f"targets.{name}")
    seeds = target.seeds()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    with shared.open("r+b") as file, mmap.mmap(file.fileno(), LONGEST + 16) as current:
        before = n_read = 0
        for number in range(first, first + count):
            data = mutated(seeds, random.Random(f"{seed} {number}"))
            current[:16] = number.to_bytes(8, "little") + len(data).to_bytes(8, "little")
            current[16 : 16 + len(data)] = data
            began, problem = time.monotonic(), ""
            try:
                target.run(data)
                n_read += 1
            except EdgeInferError:
                pass
            except (Exception, RecursionError, MemoryError) as error:
                problem = place_of(error)
            took_s = time.monotonic() - began
            if took_s > SLOW_S:
                problem = problem or f"took {took_s:.1f} s"
            if number - first == WARM:
                before = peak_bytes()
            elif before and peak_bytes() - before > MOST_BYTES:
                problem = problem or f"took {(peak_bytes() - before) >> 20} MiB"
                before = peak_bytes()
            if problem:
                print(json.dumps({"number": number, "problem": problem}), flush=True)
    print(json.dumps({"read": n_read}), flush=True)


if __name__ == "__main__":
    main()
