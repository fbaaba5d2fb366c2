"""Runs a target on one input after another, in a process of its own, and tells what is not as it should be.

In: a target, a seed, how many inputs. Out: lines of JSON on standard output, one a finding: an error that is not ours,
more than SLOW_S seconds, more than MOST_MEMORY_BYTES beyond what was there before; and now and then how many inputs
were done, and how many of them read without an error. The input under way is in a file mapped into memory, where it
outlives a crash.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import resource
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from mutation import ROOM_BYTES, input_of

from edgeinfer.errors import EdgeInferError

SLOW_S = 1.0
MOST_MEMORY_BYTES = 200 << 20
ADDRESS_SPACE = 6 << 30
"""Beyond this an allocation fails, before the machine does."""
WARM = 200
"""Inputs after which memory counts: the first ones import modules."""
TOLD_S = 20.0
CORPUS = Path(__file__).resolve().parents[2] / "tests/golden/fuzz"
"""A folder for each target: further inputs to begin with, which coverage or a finding has shown to be worth it."""


def seeds_of(name: str, target: Any) -> list[bytes]:
    """Valid inputs of a target, and those that are kept of it."""
    folder = CORPUS / name
    kept = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return [*target.seeds(), *(path.read_bytes() for path in kept)]


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def place_of(error: BaseException) -> str:
    """Where an error comes from: the last line of our own code, and the kind of error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "edgeinfer" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:120]}"


def waited_s(process: int | str = "self") -> float:
    """Seconds that threads of a process have waited for a core, as far as the system tells."""
    waited_ns = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, IndexError):
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


def tried(target: Any, data: bytes, *, is_again: bool = False) -> tuple[bool, str]:
    """Whether an input was read without an error, and what is wrong with that; "" for nothing.

    What takes long is tried again, without the time that its threads wait for a core, as a machine may be busy.
    """
    waited, began, problem, is_read = waited_s() if is_again else 0.0, time.monotonic(), "", False
    try:
        target.run(data)
        is_read = True
    except EdgeInferError:
        pass
    except (Exception, RecursionError, MemoryError) as error:
        problem = place_of(error)
    took_s = time.monotonic() - began - (waited_s() - waited if is_again else 0.0)
    if problem or took_s <= SLOW_S:
        return is_read, problem
    return (is_read, f"took {took_s:.1f} s") if is_again else tried(target, data, is_again=True)


def tell(**record: object) -> None:
    """Write a line for the parent."""
    print(json.dumps(record), flush=True)


def main() -> None:
    """Arguments: target, seed, first input, how many, seconds (0: no limit), file for the input under way."""
    name, seed, first, count, seconds, shared = sys.argv[1], *map(int, sys.argv[2:6]), Path(sys.argv[6])
    target = importlib.import_module(f"targets.{name}")
    seeds = seeds_of(name, target)
    gc.enable()  # modules of the tests turn it off while they are imported
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    ends = time.monotonic() + seconds if seconds else float("inf")
    with shared.open("r+b") as file, mmap.mmap(file.fileno(), ROOM_BYTES + 16) as current:
        before = n_done = n_read = 0
        told_at = time.monotonic()
        for number in range(first, first + count):
            data = input_of(target, seeds, seed, number)
            current[:16] = number.to_bytes(8, "little") + len(data).to_bytes(8, "little")
            current[16 : 16 + len(data)] = data
            is_read, problem = tried(target, data)
            n_done, n_read = n_done + 1, n_read + is_read
            if number - first == WARM:
                before = peak_bytes()
            elif before and peak_bytes() - before > MOST_MEMORY_BYTES:
                problem = problem or f"took {(peak_bytes() - before) >> 20} MiB"
                before = peak_bytes()
            if problem:
                tell(number=number, problem=problem)
            now = time.monotonic()
            if problem or now - told_at > TOLD_S or now > ends:
                tell(done=n_done, read=n_read)
                n_done, n_read, told_at = 0, 0, now
            if now > ends:
                break
    tell(done=n_done, read=n_read)


if __name__ == "__main__":
    main()
