"""Measures how soon the first token of a known prompt comes: read anew, from disk in a new process, and from memory.

Run from the repository root: `python scripts/measure_prefixes.py MODEL [--tokens 4000] [--runs 5] [--cold]`. MODEL is a
path or a name. A first process reads a prompt of random tokens and leaves it on disk; each of the others opens the
model, asks for one token after the whole prompt, and asks again. `--cold`: the files are not in the page cache. Prints
the seconds to the first token, and what of the prompt came from where.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edgeinfer.engine.loading import load
from edgeinfer.engine.prefixes.folders import files_in, folder_of

ANSWER_TOKENS = 4


def measured(model: str, n_tokens: int, seed: int) -> dict[str, object]:
    """Ask twice in this process."""
    with load(model, device="cpu", n_context=n_tokens + 256, prefix_cache=True, prefix_space="8GB") as llm:
        draw = random.Random(seed)
        prompt = [draw.randrange(1000, llm.prompts.tokenizer.n_tokens // 2) for _ in range(n_tokens)]
        found: dict[str, object] = {"fingerprint": llm.info.fingerprint, "load_s": llm.info.load_s}
        for name in ("first", "again"):
            stream = llm.complete(prompt, max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
            stream.read()
            stats = stream.stats
            assert stats is not None
            found[name] = [stats.ttft_s, stats.n_cached, stats.n_from_disk, list(stream.tokens)]
        began = time.perf_counter()
    return {**found, "closing_s": time.perf_counter() - began}


def child(model: str, n_tokens: int, seed: int) -> dict[str, object]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, model, "--tokens", str(n_tokens), "--child", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def drop_from_page_cache(folder: Path) -> None:
    """Let files be read from the disk next time."""
    for each in files_in(folder):
        descriptor = os.open(each.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        print(json.dumps(measured(asked.model, asked.tokens, asked.child)))
        return
    seed = random.randrange(1 << 30)
    found = [child(asked.model, asked.tokens, seed)]
    for _ in range(asked.runs):
        if asked.cold:
            drop_from_page_cache(folder_of(str(found[0]["fingerprint"])))
        found.append(child(asked.model, asked.tokens, seed))
    told = [tuple(each[name]) for each in found for name in ("first", "again")]  # type: ignore[arg-type]
    assert all(each[3] == told[0][3] for each in told), "answers differ"
    for name, each in (("read anew", told[:1]), ("from disk", told[2::2]), ("from memory", told[3::2])):
        seconds = sorted(seconds for seconds, *_ in each)
        told_of = f"{each[0][1]} of {asked.tokens} tokens cached, {each[0][2]} from disk"
        print(f"{name:12} {statistics.median(seconds):8.3f} s (from {seconds[0]:.3f} to {seconds[-1]:.3f}); {told_of}")
    print(f"writing took at most {found[0]['closing_s']:.3f} s at closing")


if __name__ == "__main__":
    main()
