"""Answers that take text from other positions, over a lane whose logits depend on token ids alone.

There such an answer is what it would be if all were read, so every mistake about which tokens stand where shows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.shifted_reuse import REREAD
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.lane import SlotDevice, TurningLane
from tests.unit.engine.scheduler.served import N_VOCAB, CountingLane, Served, request, stream_of

N_PAGES = 60
N = 8
"""Tokens of an answer."""


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


class CountingTurningLane(CountingLane, TurningLane):
    """Does both."""


class Shifting(Served):
    """Served over such a lane."""

    def __init__(self, tokenizer: Tokenizer, n_pages: int = N_PAGES) -> None:
        super().__init__(tokenizer)
        self.lane = CountingTurningLane(n_pages)
        self.pool = Pool(Executor(SlotDevice(N_VOCAB), self.lane, Limits(1024, n_pages, 32, 8), "slots"))
        self.scheduler = Scheduler(self.pool)
        self.driver = StepDriver(self.scheduler)

    def answer(self, wanted: Request, **options: bool) -> ScheduledSequence:
        """An answer that is over and what it is alone."""
        sequence = self.sequence(wanted, **options)
        self.run(sequence)
        self.same(sequence, wanted)
        return sequence

    def alone(self, wanted: Request) -> object:
        other = Shifting(self.tokenizer)
        generation = stream_of(other.pool.open(), self.tokenizer, replace(wanted, reuse="exact"))
        list(generation)
        return generation

    def n_read(self) -> int:
        """Tokens evaluated since the last call."""
        found, self.lane.sizes = sum(self.lane.sizes), []
        return found

    def check_memory(self) -> None:
        """All pages are free once what is kept is given up."""
        self.scheduler.admission.prefixes.close()
        assert self.pool.executor.n_free_pages == self.n_free_at_most
        assert not self.pool.members

    @property
    def n_free_at_most(self) -> int:
        return self.pool.executor.limits.n_pages


def text(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


BODY, MORE = text(400, 1), text(300, 2)


def shifted(prompt: list[int], n: int = N) -> Request:
    return replace(request(prompt, n), reuse="shifted")


def numbers(sequence: ScheduledSequence) -> tuple[int, int]:
    assert sequence.stats is not None
    return sequence.stats.n_cached, sequence.stats.n_shifted


def test_what_follows_a_changed_line_is_not_read(tokenizer: Tokenizer) -> None:
    served = Shifting(tokenizer)
    assert numbers(served.answer(shifted([1, *text(20, 5), *BODY, *text(9, 6)]))) == (0, 0)
    served.n_read()
    found = served.answer(shifted([1, *text(31, 7), *BODY, *text(12, 8)]))
    assert numbers(found) == (0 + 400 - REREAD, 400 - REREAD)  # a common prefix of one token is too short to share
    assert served.n_read() == 1 + 31 + REREAD + 12 + N - 1
    served.check_memory()


def test_the_common_prefix_is_shared_as_ever_and_not_counted_as_shifted(tokenizer: Tokenizer) -> None:
    served, head = Shifting(tokenizer), text(40, 3)
    served.answer(shifted([*head, 7, *BODY]))
    assert numbers(served.answer(shifted([*head, 8, 9, *BODY, 5]))) == (40 + 400 - REREAD, 400 - REREAD)
    served.check_memory()


def test_several_holes_from_several_texts(tokenizer: Tokenizer) -> None:
    served = Shifting(tokenizer)
    served.answer(shifted([*text(5, 3), *BODY]))
    served.answer(shifted([*text(6, 4), *MORE]))
    served.n_read()
    found = served.answer(shifted([9, *BODY[:200], *text(50, 5), *MORE[20:], 8, *BODY[210:], 7]))
    assert numbers(found)[1] == 200 + 280 + 190 - 3 * REREAD
    assert served.n_read() == 1 + 50 + 1 + 1 + 3 * REREAD + N - 1
    served.check_memory()


def test_exact_requests_never_see_such_tokens(tokenizer: Tokenizer) -> None:
    served, head = Shifting(tokenizer), text(40, 3)
    prompt = [*head, 8, 9, *BODY, 5]
    served.answer(request([*head, 7, *BODY], N))
    assert numbers(served.answer(request(prompt, N))) == (40, 0)
    served.scheduler.admission.prefixes.drop(prompt, ())
    served.answer(request([*head, 7, *BODY], N))
    assert numbers(served.answer(shifted(prompt)))[1] == 400 - REREAD
    assert numbers(served.answer(request(prompt, N))) == (42 + REREAD, 0)  # all that was read before them
    assert numbers(served.answer(request(prompt, N))) == (len(prompt) - 1, 0)


def test_later_turns_go_on_from_such_tokens_if_they_may(tokenizer: Tokenizer) -> None:
    served, head = Shifting(tokenizer), text(40, 3)
    served.answer(shifted([*head, 7, *BODY]))
    first = served.answer(shifted(prompt := [*head, 8, *BODY]))
    assert numbers(first)[1] == 400 - REREAD - 1
    served.n_read()
    longer = [*prompt, *first.tokens, *text(20, 9)]
    n_before = len(prompt) + N - 1
    assert numbers(served.answer(shifted(longer))) == (n_before, n_before - 41 - REREAD)
    assert served.n_read() == 1 + 20 + N - 1
    served.check_memory()


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_session_takes_it_from_its_own_earlier_text(tokenizer: Tokenizer, is_exact: bool) -> None:
    served = Shifting(tokenizer)
    cached, other = served.pool.open(), Shifting(tokenizer)
    for place, prompt in enumerate(([1, *BODY], [1, 2, *BODY], [3, *BODY, *MORE])):
        wanted = replace(shifted(prompt), reuse="exact" if is_exact else "shifted")
        generation = stream_of(cached, tokenizer, wanted, driver=served.driver)
        list(generation)
        assert generation.tokens == other.alone(wanted).tokens
        assert (generation.stats.n_shifted > 0) == (place > 0 and not is_exact)
        assert len(served.pool.members) == 1
    cached.close()
    served.check_memory()


def test_without_anything_to_take_an_answer_is_as_ever(tokenizer: Tokenizer) -> None:
    for wanted in (shifted(BODY), request(BODY, N)):
        served = Shifting(tokenizer)
        served.answer(wanted)
        assert served.lane.sizes == [32] * 12 + [16] + [1] * (N - 1)
        longer = replace(wanted, prompt=(*BODY, *text(20, 4)))
        assert numbers(served.answer(longer)) == (400, 0)


def test_together_with_others(tokenizer: Tokenizer) -> None:
    served = Shifting(tokenizer)
    wanted = [shifted([*text(4, seed), *BODY[: 200 + seed], seed]) for seed in range(5)]
    first = served.sequence(wanted[0], shares=False)
    for _ in range(9):
        served.scheduler.step()
    others = [served.sequence(each, shares=False) for each in wanted[1:]]
    served.run(first, *others)
    for sequence, each in zip((first, *others), wanted, strict=True):
        served.same(sequence, each)
    assert all(numbers(sequence)[1] >= 200 - REREAD for sequence in others)
    served.check_memory()


def test_without_room_it_is_read(tokenizer: Tokenizer) -> None:
    """Nine pages have room for a text, and not for another one beside it."""
    served = Shifting(tokenizer, n_pages=9)
    served.answer(shifted([1, *BODY]))
    found = served.answer(shifted([2, 3, *BODY, *MORE[:60]]))
    assert numbers(found)[1] in (0, 400 - REREAD)
    served.check_memory()


@pytest.mark.parametrize("how", ["stop", "abandon", "fail"])
def test_an_answer_that_ends_before_it_takes_anything_leaves_nothing(
    tokenizer: Tokenizer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Shifting(tokenizer)
    served.answer(shifted([1, *BODY]))
    sequence = served.sequence(shifted([*text(100, 5), *BODY]))
    served.scheduler.step()
    if how == "stop":
        sequence.stop()
    elif how == "abandon":
        served.scheduler.abandon(sequence)
    else:
        monkeypatch.setattr(served.lane, "run", lambda step: 1 / 0)
    for _ in range(3):
        served.scheduler.step()
    assert sequence.is_over
    served.check_memory()


def test_what_was_put_away_comes_back_as_what_it_was(tokenizer: Tokenizer) -> None:
    served = Shifting(tokenizer)
    served.answer(shifted([1, *BODY]))
    sequence = served.sequence(shifted([2, 3, *BODY], 40), shares=False)
    for _ in range(12):
        served.scheduler.step()
    cached, swap = sequence.cached, served.scheduler.admission.swap
    n_exact, tokens = cached.n_exact, cached.tokens
    assert n_exact == 2 + REREAD < len(tokens)
    with served.pool.lock:
        swap.swap_out(cached)
        assert (cached.n_exact, cached.tokens) == (0, ())
        swap.swap_in(cached)
    assert (cached.n_exact, cached.tokens) == (n_exact, tokens)
    served.run(sequence)
    served.same(sequence, shifted([2, 3, *BODY], 40))


def test_what_breaks_off_while_runs_are_planned_holds_no_memory(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, branch, n_branches = Shifting(tokenizer), CachedSequence.branch, 0
    one, other = text(200, 1), text(200, 2)
    served.answer(shifted([*one, *other]))

    def failing(cached: CachedSequence) -> CachedSequence:
        nonlocal n_branches
        n_branches += 1
        if n_branches == 2:
            raise KeyboardInterrupt
        return branch(cached)

    with monkeypatch.context() as patched:
        patched.setattr(CachedSequence, "branch", failing)
        sequence = served.sequence(shifted([7, *one, 8, *other, 9]))
        with pytest.raises(KeyboardInterrupt):
            served.run(sequence)
    assert sequence.is_over
    served.check_memory()
