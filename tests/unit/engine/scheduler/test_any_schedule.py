"""Scheduled at random: whatever comes, each answer is what it is alone, and nothing stays held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import Served, request


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["interactive", "background"]),
        st.integers(1, 120),  # tokens of the prompt
        st.sampled_from([3, 3, 50]),  # where it begins: many begin alike
        st.integers(0, 60),  # tokens of the answer
        st.integers(0, 40),  # passes before it comes
        st.sampled_from([None, None, 3, 30]),  # passes after which it is given up
        st.sampled_from([None, None, 1, 40]),  # the first token of the prompt whose log probability it asks for
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(4, 14), st.sampled_from([1, 2, 3, 8]), st.sampled_from([0, 30_000, 1 << 30]))
def test_whatever_comes_each_answer_is_what_it_is_alone(
    tokenizer: Tokenizer, jobs: list[tuple], n_pages: int, most_active: int, ram_bytes: int
) -> None:
    served = Served(tokenizer, n_pages=n_pages, most_active=most_active, swap=SwapSpace(ram_bytes))
    wanted = [
        replace(request(range(first, first + n), n_answer, n), scored_from=scored)
        for _, n, first, n_answer, _, _, scored in jobs
    ]
    entered: dict[int, ScheduledSequence] = {}
    for number in range(4000):
        for index, (priority, _, _, _, at, until, _) in enumerate(jobs):
            if at == number:
                entered[index] = served.sequence(wanted[index], priority)
            if until is not None and number == at + until:
                entered[index].stop()
        if len(entered) == len(jobs) and all(sequence.is_over for sequence in entered.values()):
            break
        served.scheduler.step()
    else:
        raise AssertionError("they never end")
    for index, sequence in entered.items():
        assert sequence.error is None
        whole = served.alone(wanted[index])
        n = len(sequence.tokens)
        assert sequence.tokens == whole.tokens[:n]
        scores = tuple(sequence.scores.found)
        assert scores == whole.prompt_logprobs[: len(scores)]
        is_whole = n == len(whole.tokens) and len(scores) == len(whole.prompt_logprobs)
        assert is_whole or sequence.stats.finish_reason == "cancelled"
    assert served.scheduler.admission.sequences == ()
    assert served.scheduler.admission.swap.ram_bytes == 0
    served.scheduler.close()
    assert served.pool.executor.n_free_pages == n_pages
    assert served.pool.members == ()
