"""Drawn with drafts, answers are distributed as the model says: all short answers are counted and compared.

The expected shares are worked out here, from logits of every beginning run for itself: no sampler, no tree, no cache.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafts import ModelDrafts, loops_library
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import stream_of

N_CONTEXT, N_ANSWERS, LENGTH = 128, 3000, 3
FEWEST = 5.0
"""Rarer answers are counted together: chi-square wants so many of each."""
MOST_STRANGE = 4.0
"""Standard deviations: one right sampler in 30,000 would be beyond. The seeds are fixed."""
Answer = tuple[int, ...]


def strangeness(counted: Counter[Answer], shares: dict[Answer, float]) -> float:
    """Pearson's chi-square as a normal deviate (Wilson and Hilferty, 1931)."""
    total = sum(counted.values())
    assert set(counted) <= set(shares)
    often = [answer for answer, share in shares.items() if share * total >= FEWEST]
    pairs = [(counted[answer], shares[answer] * total) for answer in often]
    rest = total - sum(expected for _, expected in pairs)
    if rest >= FEWEST:
        pairs.append((total - sum(count for count, _ in pairs), rest))
    freedom = len(pairs) - 1
    assert freedom > 5
    found = sum((count - expected) ** 2 / expected for count, expected in pairs) / freedom
    return (found ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def enumerate_answers(
    executor: Executor, prompt: Sequence[int], allowed: Sequence[int], top_k: int, temperature: float
) -> dict[Answer, float]:
    """The share of every answer of LENGTH tokens when one of the `top_k` likeliest of `allowed` is drawn each time."""
    shares: dict[Answer, float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[Answer, float] = {}
        for begun, share in shares.items():
            logits = last_logits(executor, [*prompt, *begun]).astype(np.float64)
            best = sorted(allowed, key=lambda token, values=logits: -values[token])[:top_k]  # type: ignore[misc]
            weights = np.exp((logits[best] - logits[best].max()) / temperature)
            for token, weight in zip(best, weights / weights.sum(), strict=True):
                longer[*begun, token] = share * float(weight)
        shares = longer
    return shares


def last_logits(executor: Executor, tokens: Sequence[int]) -> np.ndarray:
    """Logits after a text that is run as one chain."""
    sequence, order = executor.create(), np.arange(len(tokens), dtype=np.int32)
    found = executor.evaluate(
        Batch(np.array(tokens, np.int32), np.full(len(tokens), sequence, np.int32), order, order - 1, order[-1:])
    )[0].copy()
    executor.free(sequence)
    return found


def count_answers(
    executor: Executor, tokenizer: Tokenizer, prompt: Sequence[int], settings: dict[str, object], n_answers: int
) -> tuple[Counter[Answer], int]:
    """Answers drawn with seeds 0 and up and trees of eight tokens; and how many drafted tokens were accepted."""
    drafts = ModelDrafts(loops_library(), tokenizer.n_tokens, Costs({64: 1.0}, corrected=False), 8)
    session, pool = drafts.session(), Pool(executor)
    cached, n_accepted = pool.open(), 0
    counted: Counter[Answer] = Counter()
    for seed in range(n_answers):
        wanted = Request(tuple(prompt), SamplingSettings(seed=seed, **settings), LENGTH)  # type: ignore[arg-type]
        generation = stream_of(cached, tokenizer, wanted, session)
        for _ in generation:
            pass
        counted[generation.tokens] += 1
        n_accepted += sum(count.accepted for count in session.report().sources.values())
    cached.close()
    return counted, n_accepted


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_every_answer_of_a_tiny_vocabulary_comes_as_often_as_it_should(tiny_model: Path, temperature: float) -> None:
    with open_model(tiny_model, N_CONTEXT) as model:
        tokenizer, limits = Tokenizer.from_metadata(model.file.metadata), limits_for(N_CONTEXT, n_sessions=2)
        allowed, prompt = list(range(40, 46)), [7, 9, 11, 13]
        bias = {token: float("-inf") for token in range(tokenizer.n_tokens) if token not in allowed}
        settings = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logit_bias": bias}
        request = OpeningRequest(model.spec, model.file, limits, DeviceOptions(n_workers=2))
        with open_executor("cpu", request, "tiny") as executor:
            shares = enumerate_answers(executor, prompt, allowed, len(allowed), temperature)
            wrong = enumerate_answers(executor, prompt, allowed, len(allowed), 1.15 * temperature)
            counted, n_accepted = count_answers(executor, tokenizer, prompt, settings, N_ANSWERS)
    assert set(shares) == set(itertools.product(allowed, repeat=LENGTH))
    assert n_accepted > N_ANSWERS / 2  # drafts did take part
    assert strangeness(counted, shares) < MOST_STRANGE
    assert strangeness(counted, wrong) > MOST_STRANGE  # such a difference would be seen


@pytest.mark.model
def test_answers_of_the_starter_model_come_as_often_as_they_should(starter_model: Path) -> None:
    with open_model(starter_model, N_CONTEXT) as model:
        tokenizer, limits = Tokenizer.from_metadata(model.file.metadata), limits_for(N_CONTEXT, n_sessions=2)
        prompt = tokenizer.encode("Once upon a time there was a")
        settings = {"temperature": 0.9, "top_k": 6, "top_p": 1.0, "min_p": 0.0}
        request = OpeningRequest(model.spec, model.file, limits, DeviceOptions(n_workers=2))
        with open_executor("cpu", request, "starter") as executor:
            everything = range(tokenizer.n_tokens)
            shares = enumerate_answers(executor, prompt, everything, 6, 0.9)
            wrong = enumerate_answers(executor, prompt, everything, 6, 1.1)
            counted, n_accepted = count_answers(executor, tokenizer, prompt, settings, N_ANSWERS // 3)
    assert n_accepted > N_ANSWERS / 8
    assert strangeness(counted, shares) < MOST_STRANGE
    assert strangeness(counted, wrong) > MOST_STRANGE
