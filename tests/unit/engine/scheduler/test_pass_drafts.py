"""Drafts of answers that share passes: nothing that is drafted changes them, and drafts take memory from nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgeinfer.engine.requests.drafting import Draft, DraftRequest, DraftRoom, Speculator
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import Served, request
from tests.unit.engine.speculation.test_speculative_generation import Drafting, right, tree, wild

N_PROMPT = 5


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def wanted(count: int, n_tokens: int = 30) -> list[Request]:
    return [request(range(3 + n, 3 + n + N_PROMPT), n_tokens, n) for n in range(count)]


def entered(served: Served, wants: Request, speculator: Speculator) -> ScheduledSequence:
    """An answer with drafts that has entered."""
    own = served.pool.reserve(), served.tokenizer, wants, speculator
    sequence = ScheduledSequence(*own, counts_energy=False)
    sequence.is_driven, sequence.released = True, lambda over: over.cached.close()
    served.scheduler.enter(sequence)
    return sequence


class Together(Drafting):
    """Drafts for several texts with one drafter; keeps the requests and the room of each pass."""

    def __init__(self, make: Callable[[Sequence[int], int, int], Draft], shared: Together | None = None) -> None:
        super().__init__(make)
        self._shared = shared or self
        self.passes: list[tuple[list[DraftRequest], DraftRoom]] = []
        self.observed: list[tuple[int, float]] = []

    @property
    def drafter(self) -> Together:
        return self._shared

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        self.passes.append((list(requests), room))
        found = []
        for asked in requests:
            assert isinstance(asked.speculator, Together)
            found.append(asked.speculator._make(asked.history, asked.most, asked.deepest))
        return found

    def observe(self, n_tokens: int, seconds: float) -> None:
        self.observed.append((n_tokens, seconds))

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        assert tuple(nodes) == (0,)  # memory was short
        return tree(int(draft.tokens[0]), [])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_wild_drafts_change_no_answer_of_a_pass(tokenizer: Tokenizer, count: int) -> None:
    """Unknown tokens, wrong parents, many more tokens than a pass takes."""
    served, wants = Served(tokenizer), wanted(count)
    sequences = [entered(served, each, wild(seed)) for seed, each in enumerate(wants)]
    served.run(*sequences)
    for sequence, each in zip(sequences, wants, strict=True):
        served.same(sequence, each)
    assert max(served.lane.sizes) <= 32
    assert (served.scheduler.counts.n_drafted > 0) == (count < 8)  # a pass has eight outputs


def test_right_drafts_save_passes_of_all_answers(tokenizer: Tokenizer) -> None:
    served, wants = Served(tokenizer), wanted(2)
    answers = [served.alone(each).tokens for each in wants]
    first = Together(right(answers[0], N_PROMPT, 2, 0)._make)
    second = Together(right(answers[1], N_PROMPT, 2, 0)._make, first)
    sequences = [entered(served, each, drafts) for each, drafts in zip(wants, (first, second), strict=True)]
    served.run(*sequences)
    for sequence, each in zip(sequences, wants, strict=True):
        served.same(sequence, each)
        assert sequence.stats is not None
        assert sequence.stats.steps == 1 + -(-29 // 3)
    counts = served.scheduler.counts
    assert (counts.passes, counts.n_drafted) == (len(served.lane.sizes), counts.n_accepted)
    assert [len(requests) for requests, _ in first.passes] == [2] * len(first.passes)  # asked once a pass
    assert second.passes == []
    assert first.observed
    assert {n_tokens for n_tokens, _ in first.observed} <= {2, 4, 6}


def test_a_pass_has_room_for_so_many_outputs(tokenizer: Tokenizer) -> None:
    """Eight: what two answers need, and six drafted tokens."""
    served, wants = Served(tokenizer), wanted(2)
    first = Together(lambda history, most, deepest: tree(history[-1], [(5, node) for node in range(most + 3)]))
    second = Together(first._make, first)
    sequences = [entered(served, each, drafts) for each, drafts in zip(wants, (first, second), strict=True)]
    served.run(*sequences)
    assert {room.n_tokens for _, room in first.passes} == {8}
    assert max(served.lane.sizes[2:]) == 8
    for sequence, each in zip(sequences, wants, strict=True):
        served.same(sequence, each)


@pytest.mark.parametrize("n_prompt", [40, 150])
def test_answers_are_drafted_while_another_prompt_is_read(tokenizer: Tokenizer, n_prompt: int) -> None:
    """In every pass that reads some of it; it leaves them room, also where it could fill passes."""
    served, wants = Served(tokenizer), wanted(2, 60)
    late = request(range(3, 3 + n_prompt), 5, 9)
    answers = [served.alone(each).tokens for each in wants]
    first = Together(right(answers[0], N_PROMPT, 2, 0)._make)
    second = Together(right(answers[1], N_PROMPT, 2, 0)._make, first)
    sequences = [entered(served, each, drafts) for each, drafts in zip(wants, (first, second), strict=True)]
    for _ in range(4):
        served.scheduler.step()
    third, shared = entered(served, late, wild(3)), list[int]()
    while not third.n_generated:
        before, n_missing = served.scheduler.counts.n_drafted, third.n_missing
        served.scheduler.step()
        if served.lane.sizes[-1] > 6:  # both answers with their drafts, and something of the prompt
            shared.append(served.scheduler.counts.n_drafted - before)
            assert third.n_missing < n_missing
    assert sum(room.n_prompt for _, room in first.passes) == n_prompt
    assert shared == [4] * len(shared)
    assert max(room.n_prompt for _, room in first.passes) <= 32 - 8 - 2  # tokens of a pass, of drafts, of answers
    served.run(*sequences, third)
    for sequence, each in zip((*sequences, third), (*wants, late), strict=True):
        served.same(sequence, each)


@pytest.mark.parametrize("n_pages", [2, 3, 4, 5, 6, 8])
def test_drafts_take_no_memory_that_answers_need(tokenizer: Tokenizer, n_pages: int) -> None:
    """Wherever they have room without drafts, they have it with drafts, and nobody is preempted for a draft."""
    wants = wanted(2, 100)
    plain, drafted = Served(tokenizer, n_pages), Served(tokenizer, n_pages)
    without = [plain.sequence(each, shares=False) for each in wants]
    plain.run(*without)
    answers = [plain.alone(each).tokens for each in wants]
    first = Together(right(answers[0], N_PROMPT, 3, 1)._make)
    second = Together(right(answers[1], N_PROMPT, 3, 1)._make, first)
    sequences = [entered(drafted, each, drafts) for each, drafts in zip(wants, (first, second), strict=True)]
    drafted.run(*sequences)
    for sequence, other, each in zip(sequences, without, wants, strict=True):
        assert sequence.n_preempted <= other.n_preempted
        drafted.same(sequence, each)
    assert all(room.n_pages <= n_pages - len(requests) for requests, room in first.passes)
    assert drafted.scheduler.counts.n_accepted > 0
    assert drafted.pool.executor.n_free_pages == n_pages


def test_a_drafter_that_fails_fails_the_answers_it_drafts_for(tokenizer: Tokenizer) -> None:
    def broken(history: Sequence[int], most: int, deepest: int) -> Draft:
        raise ArithmeticError("no idea")

    served, (first, second) = Served(tokenizer), wanted(2)
    failing, sound = entered(served, first, Together(broken)), entered(served, second, wild(1))
    served.run(failing, sound)
    assert isinstance(failing.error, ArithmeticError)
    served.same(sound, second)


def test_a_pass_without_room_for_its_drafts_goes_on_without_them(tokenizer: Tokenizer) -> None:
    """A drafter that takes more memory than it was given costs nobody a page: three are enough for two answers."""
    served, wants = Served(tokenizer, n_pages=3), wanted(2, 20)
    left_out = list[Sequence[int]]()

    class Greedy(Together):
        def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
            left_out.append(draft.tokens.tolist()[1:])
            return super().narrow(draft, nodes)

    first = Greedy(lambda history, most, deepest: tree(history[-1], [(5, 0), (6, 0), (7, 0)]))
    second = Greedy(first._make, first)
    sequences = [entered(served, each, drafts) for each, drafts in zip(wants, (first, second), strict=True)]
    served.run(*sequences)
    for sequence, each in zip(sequences, wants, strict=True):
        served.same(sequence, each)
        assert sequence.n_preempted == 0
    assert [5, 6, 7] in left_out
    assert served.scheduler.counts.passes == len(served.lane.sizes)
