"""Log probabilities of prompts that share passes, lose their memory, and begin with what others have read."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.lane import row_logits
from tests.unit.engine.scheduler.served import N_VOCAB, Served, request

HEAD = tuple(3 + n % 200 for n in range(100))


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def scored(prompt: tuple[int, ...], first: int, n: int = 0) -> Request:
    return replace(request(prompt, n), logprobs=0, scored_from=first)


def check(sequence: ScheduledSequence, first: int) -> None:
    """Every token as likely as the lane's own rows say, by another formula."""
    prompt, found = sequence.request.prompt, sequence.scores.found
    rows = [row_logits(list(prompt[:n]), N_VOCAB).astype(np.float64) for n in range(first, len(prompt))]
    assert sequence.error is None
    assert [each.token for each in found] == list(prompt[first:])
    expected = [float(row[prompt[first + n]] - np.logaddexp.reduce(row)) for n, row in enumerate(rows)]
    assert [each.logprob for each in found] == pytest.approx(expected)


@pytest.mark.parametrize("first", [1, 60, 99, 100])
def test_all_that_is_asked_about_is_told_whoever_shares_the_passes(tokenizer: Tokenizer, first: int) -> None:
    served = Served(tokenizer)
    wanted = scored(HEAD, first, 12)
    others = [request(range(3, 3 + n), 20, n) for n in (1, 90)]
    sequence, *entered = [served.sequence(each) for each in (wanted, *others)]
    served.run(sequence, *entered)
    check(sequence, first)
    for other, each in zip((sequence, *entered), (wanted, *others), strict=True):
        served.same(other, each)


def test_several_prompts_share_the_outputs_of_a_pass(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    entered = [served.sequence(scored((5 + n, *HEAD[:40]), 1), "background", shares=False) for n in range(4)]
    served.run(*entered)
    for sequence in entered:
        check(sequence, 1)


@pytest.mark.parametrize("place", ["ram", "nowhere"])
def test_a_prompt_whose_memory_was_taken_is_told_whole_and_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(**_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    served = Served(tokenizer, n_pages=5, swap=SwapSpace(1 << 30 if place == "ram" else 0))
    behind = served.sequence(scored(tuple(range(3, 203)), 20), "background", shares=False)
    while not behind.scores.found:
        served.scheduler.step()
    watched = served.sequence(request(range(60, 160), 60, 2), shares=False)
    served.run(watched)
    assert behind.n_preempted
    assert 0 < len(behind.scores.found) < 180
    served.run(behind)
    check(behind, 20)


def test_a_prompt_begins_with_what_others_have_read_up_to_what_it_asks_about(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    served.run(served.sequence(request(HEAD, 1)))
    n_before = sum(served.lane.sizes)
    sequence = served.sequence(scored((*HEAD[:80], 7, 8, 9), 70))
    served.run(sequence)
    check(sequence, 70)
    assert sequence.stats is not None
    assert sequence.stats.n_cached == 69
    assert sum(served.lane.sizes) - n_before == 82 - 69  # the last token is only asked about
