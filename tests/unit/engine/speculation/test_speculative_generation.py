"""Whatever is drafted, the answer is the one of plain decoding; drafts that are right save passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.requests.drafting import ROOT, Draft, DraftRequest, DraftRoom, Speculator, Walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import stream_of
from tests.unit.engine.scheduler.test_sequence import EOG, make_pool, request

N_PAGES = 12
OPTIONS = [
    {"temperature": 0},
    {},
    {"repeat_penalty": 1.2, "frequency_penalty": 0.1},
    {"temperature": 0.5, "logit_bias": {EOG[0]: 3.0, EOG[1]: 3.0}},
]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def tree(root: int, nodes: Sequence[tuple[int, int]]) -> Draft:
    tokens, parents = zip((root, ROOT), *nodes, strict=True)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))


class Drafting:
    """Drafts what a function makes of the tokens so far; keeps what it was taught, and the seconds it was told."""

    def __init__(self, make: Callable[[Sequence[int], int, int], Draft]) -> None:
        self._make = make
        self.walks: list[tuple[Draft, Walk]] = []
        self.seconds: list[float | None] = []
        self.timings: list[tuple[int, bool]] = []
        self.resting: list[bool] = []
        """For each pass whether drafts rest."""

    def begin(
        self, history: Sequence[int], noise: Noise | None = None, settings: SamplingSettings | None = None
    ) -> None:
        self.begun = list(history)

    expected = 1.0

    @property
    def drafter(self) -> Drafting:
        return self

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        (asked,) = requests
        assert asked.history[: len(self.begun)] == self.begun
        return [self._make(asked.history, asked.most, asked.deepest)]

    def observe(self, n_tokens: int, seconds: float) -> None:
        raise AssertionError("it drafts for one text")

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        raise AssertionError("nothing is left out of what it drafts")

    def report(self) -> None:
        return None

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> Sequence[int]:
        assert logits.shape[0] == len(draft.tokens)
        return ()

    def sources(self, path: Int32s) -> list[str | None]:
        return [None] * (len(path) - 1)

    @property
    def row_reader(self) -> None:
        return None

    @property
    def writer(self) -> None:
        return None

    def take_notices(self) -> tuple[str, ...]:
        return ()

    @property
    def rests(self) -> bool:
        return self.resting[len(self.timings) : len(self.timings) + 1] == [True]

    def timed(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        assert seconds > 0
        self.timings.append((n_tokens, drafted))

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        assert seconds is None or seconds > 0
        self.seconds.append(seconds)
        self.walks.append((draft, walked))


def right(answer: Sequence[int], n_prompt: int, ahead: int, forks: int) -> Drafting:
    """Drafts the next tokens of an answer, each with wrong siblings before it."""

    def make(history: Sequence[int], most: int, deepest: int) -> Draft:
        nodes: list[tuple[int, int]] = []
        parent = 0
        for token in answer[len(history) - n_prompt :][:ahead]:
            nodes += [((token + 1 + fork) % 200, parent) for fork in range(forks)]
            nodes.append((token, parent))
            parent = len(nodes)
        return tree(history[-1], nodes)

    return Drafting(make)


def wild(seed: int) -> Drafting:
    """Drafts anything: random trees, unknown tokens, parents that are not there, far too many, ends."""
    chance = random.Random(seed)

    def make(history: Sequence[int], most: int, deepest: int) -> Draft:
        count = chance.choice([0, 1, 5, most, 4 * most])
        low, high = chance.choice([(0, 8), (0, 300), (-5, 10**6)])
        nodes = [(chance.randint(low, high), chance.randint(-2, max(number, 1))) for number in range(count)]
        return tree(history[-1] if chance.random() < 0.8 else 12345, nodes)

    return Drafting(make)


def run(tokenizer: Tokenizer, wanted: Request, speculator: Speculator | None, **sizes: int) -> TextStream:
    pool = make_pool(n_pages=N_PAGES, **sizes)
    cached = pool.open()
    generation = stream_of(cached, tokenizer, wanted, speculator)
    assert "".join(generation) == generation.text
    everything = [*wanted.prompt, *generation.tokens]
    assert everything[: len(cached.tokens)] == list(cached.tokens)[: len(everything)]
    cached.forget()
    assert pool.executor.n_free_pages == N_PAGES
    return generation


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("forks", [0, 1])
@pytest.mark.parametrize("ahead", [1, 3])
def test_right_drafts_save_passes_and_change_nothing(
    tokenizer: Tokenizer, options: dict[str, float], forks: int, ahead: int
) -> None:
    wanted = request(range(3, 80), 30, **options)
    plain = run(tokenizer, wanted, None)
    drafting = right(plain.tokens, 77, ahead, forks)
    quick = run(tokenizer, wanted, drafting)
    assert (quick.tokens, quick.text) == (plain.tokens, plain.text)
    assert quick.stats.finish_reason == plain.stats.finish_reason
    assert quick.stats.steps == 1 + -(-(plain.stats.steps - 1) // (1 + ahead))
    assert all(len(walked.path) == len(walked.tokens) for _, walked in drafting.walks)


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_passes_without_drafts_in_between_change_nothing(tokenizer: Tokenizer, options: dict[str, float]) -> None:
    wanted = request(range(3, 80), 30, **options)
    plain = run(tokenizer, wanted, None)
    drafting = right(plain.tokens, 77, 3, 1)
    drafting.resting = [False, True, True, False, False, True]
    mixed = run(tokenizer, wanted, drafting)
    assert (mixed.tokens, mixed.text) == (plain.tokens, plain.text)
    assert drafting.timings[:6] == [(4, True), (1, False), (1, False), (4, True), (4, True), (1, False)]
    assert all(drafted for _, drafted in drafting.timings[6:])
    assert len(drafting.walks) == sum(drafted for _, drafted in drafting.timings)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(12))
def test_wild_drafts_change_nothing(tokenizer: Tokenizer, options: dict[str, float], seed: int) -> None:
    wanted = request(range(3, 60), 40, **options)
    plain = run(tokenizer, wanted, None)
    done = run(tokenizer, wanted, wild(seed))
    assert (done.tokens, done.text) == (plain.tokens, plain.text)
    assert done.stats.finish_reason == plain.stats.finish_reason


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7])
def test_an_answer_is_never_longer_than_was_asked(tokenizer: Tokenizer, n_tokens: int) -> None:
    wanted = request(range(3, 80), 30)
    answer = run(tokenizer, wanted, None).tokens
    short = run(tokenizer, request(range(3, 80), n_tokens), right(answer, 77, 3, 0))
    assert short.tokens == answer[:n_tokens]
    assert short.stats.finish_reason == "length"


def test_the_end_of_the_context_is_reached_exactly(tokenizer: Tokenizer) -> None:
    wanted = request(range(3, 33), None)
    plain = run(tokenizer, wanted, None, n_context=40)
    quick = run(tokenizer, wanted, right([*plain.tokens, 9, 9, 9, 9], 30, 6, 0), n_context=40)
    assert (quick.tokens, quick.stats.notices) == (plain.tokens, plain.stats.notices)
    assert len(quick.tokens) == 11


def test_a_stop_string_within_a_draft_ends_the_answer_there(tokenizer: Tokenizer) -> None:
    wanted = request(range(3, 80), 30)
    plain = run(tokenizer, wanted, None)
    pairs = (tokenizer.decode(plain.tokens[at : at + 2], skip_special=True) for at in range(10, 28))
    stop = next(text for text in pairs if "�" not in text)
    stopped = Request(wanted.prompt, wanted.sampling, 30, (stop,))
    first, second = (run(tokenizer, stopped, each) for each in (None, right(plain.tokens, 77, 3, 1)))
    assert (second.tokens, second.text, second.stats.finish_reason) == (first.tokens, first.text, "stop")


def test_drafts_take_no_memory_from_other_sequences(tokenizer: Tokenizer) -> None:
    pool = make_pool(n_pages=3, n_context=256)
    resting = pool.open()
    list(stream_of(resting, tokenizer, request(range(3, 60), 4)))
    cached = pool.open()
    asked = []

    def make(history: Sequence[int], most: int, deepest: int) -> Draft:
        asked.append(most)
        return tree(history[-1], [(token, 0) for token in range(most - 1)])

    list(stream_of(cached, tokenizer, request(range(3, 90), 30), Drafting(make)))
    assert resting.tokens
    assert set(asked) == {1}


def test_closing_within_a_draft_keeps_what_was_shown(tokenizer: Tokenizer) -> None:
    wanted = request(range(3, 80), 30)
    plain = run(tokenizer, wanted, None)
    pool = make_pool()
    cached = pool.open()
    generation = stream_of(cached, tokenizer, wanted, right(plain.tokens, 77, 3, 1))
    shown = []
    while len(generation.tokens) < 7:
        shown.append(next(generation))
    generation.close()
    assert generation.tokens == plain.tokens[:7]
    assert generation.text == "".join(shown)
    again = stream_of(cached, tokenizer, wanted)
    assert "".join(again) == plain.text
