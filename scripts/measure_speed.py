"""Decode and prefill speed of a model on this machine, with the idle share before and after each run.

Run: `python scripts/measure_speed.py [MODEL] [--threads 2] [--prompt-tokens 512] [--gen 128] [--runs 5]`. MODEL is a
name, a path or nothing (the starter model, pulled if it is not here). Prints one line per run and the medians; runs
on a busy machine are marked. Random token ids are evaluated: speed does not depend on the text.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import psutil

from edgeinfer.app.model_choice import choose_model
from edgeinfer.backends.base import Batch, DeviceOptions
from edgeinfer.engine.executor import Executor
from edgeinfer.engine.fingerprint import fingerprint
from edgeinfer.engine.limits import limits_for
from edgeinfer.models.load import open_model
from edgeinfer.settings import load_settings

BUSY_SHARE = 0.1


def evaluate(executor: Executor, sequence: int, tokens: np.ndarray, start: int) -> None:
    """Evaluate a run of tokens of one sequence, keep them, and take the logits of the last."""
    count = len(tokens)
    order = np.arange(count, dtype=np.int32)
    batch = Batch(
        tokens.astype(np.int32),
        np.full(count, sequence, np.int32),
        order + np.int32(start),
        order - 1,
        order[-1:],
    )
    executor.evaluate(batch)
    executor.commit(sequence, order)


def one_run(executor: Executor, tokens: np.ndarray, n_prompt: int) -> tuple[float, float]:
    """Prefill and decode rates, tokens per second."""
    sequence = executor.create()
    limit = executor.limits.max_tokens
    started = time.perf_counter()
    for start in range(0, n_prompt, limit):
        evaluate(executor, sequence, tokens[start : min(n_prompt, start + limit)], start)
    filled = time.perf_counter()
    for position in range(n_prompt, len(tokens)):
        evaluate(executor, sequence, tokens[position : position + 1], position)
    ended = time.perf_counter()
    executor.free(sequence)
    return n_prompt / (filled - started), (len(tokens) - n_prompt) / (ended - filled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    local = choose_model(load_settings({"model": options.model}), remember=False)
    n_tokens = options.prompt_tokens + options.gen
    with open_model(local.path, n_tokens) as model:
        wanted = DeviceOptions(options.threads)
        executor = Executor.open(model.spec, model.file, fingerprint(model.file), limits_for(n_tokens), "cpu", wanted)
        tokens = np.random.default_rng(0).integers(0, model.spec.n_vocab, n_tokens)
        one_run(executor, tokens, options.prompt_tokens)
        rates = []
        for _ in range(options.runs):
            before = 1.0 - psutil.cpu_percent(0.5) / 100
            rates.append(one_run(executor, tokens, options.prompt_tokens))
            after = 1.0 - psutil.cpu_percent(0.5) / 100
            mark = "" if min(before, after) > 1 - BUSY_SHARE else "  (machine busy)"
            prefill, decode = rates[-1]
            print(f"prefill {prefill:7.1f}  decode {decode:6.1f} tok/s  idle {before:.2f} / {after:.2f}{mark}")
        executor.close()
    prefill, decode = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"median  prefill {options.prompt_tokens} {prefill:.1f}  decode {options.gen} {decode:.1f} tok/s")


if __name__ == "__main__":
    main()
