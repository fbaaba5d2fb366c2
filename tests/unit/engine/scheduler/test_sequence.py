"""The generator loop over a lane whose logits depend on every token it attends to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import Sampler, SamplingSettings
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import BadSetting, ContextOverflow, DoesNotFit, EngineClosed
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import StreamDecoder, Tokenizer
from tests.unit.engine.lane import SlotDevice, SlotLane, row_logits
from tests.unit.engine.scheduler.served import stream_of

N_VOCAB = 268
EOG = (0, 2)
NO_EOG = dict.fromkeys(EOG, -np.inf)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def make_pool(n_context: int = 256, n_pages: int = 12, max_tokens: int = 32) -> Pool:
    limits = Limits(n_context, n_pages, max_tokens, 8)
    return Pool(Executor(SlotDevice(N_VOCAB), SlotLane(n_pages, N_VOCAB), limits, "slots"))


@pytest.fixture
def cached() -> CachedSequence:
    return make_pool().open()


def request(prompt: Sequence[int], n: int | None = 20, **options: object) -> Request:
    sampling = SamplingSettings(**{"seed": 5, "temperature": 0.9, "logit_bias": NO_EOG, **options})
    return Request(tuple(prompt), sampling, n)


def generate(cached: CachedSequence, tokenizer: Tokenizer, wanted: Request) -> TextStream:
    generation = stream_of(cached, tokenizer, wanted)
    pieces = list(generation)
    assert "".join(pieces) == generation.text
    assert all(pieces)
    return generation


def plain(prompt: Sequence[int], n: int, sampling: SamplingSettings, n_vocab: int) -> list[int]:
    """The tokens of an answer, with no cache at all."""
    history, sampler = list(prompt), Sampler(sampling)
    for index in range(n):
        history.append(sampler.choose(row_logits(history, N_VOCAB)[:n_vocab], history, index))
    return history[len(prompt) :]


def whole(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of tokens, without a character that they end inside of."""
    decoder = StreamDecoder(tokenizer)
    return "".join(map(decoder.push, tokens))


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"repeat_penalty": 1.2, "frequency_penalty": 0.1}])
def test_tokens_are_those_of_a_loop_without_a_cache(
    cached: CachedSequence, tokenizer: Tokenizer, options: dict[str, float]
) -> None:
    wanted = request(range(3, 80), **options)
    done = generate(cached, tokenizer, wanted)
    assert list(done.tokens) == plain(wanted.prompt, 20, wanted.sampling, tokenizer.n_tokens)
    assert whole(done.tokens, tokenizer) == done.text
    stats = done.stats
    assert stats is not None
    assert (stats.n_prompt, stats.n_cached, stats.n_generated, stats.steps) == (77, 0, 20, 20)
    assert (stats.finish_reason, stats.truncated, stats.accepted_per_step, stats.seed) == ("length", False, 1.0, 5)
    assert stats.ttft_s > 0
    assert stats.prefill_tok_s > 0
    assert stats.decode_tok_s > 0


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_suppressed_tokens_are_never_chosen(
    cached: CachedSequence, tokenizer: Tokenizer, tiny_model: Path, temperature: float
) -> None:
    free = generate(cached, tokenizer, request(range(3, 80), temperature=temperature))
    suppressed = frozenset(free.tokens[1::2])
    with GGUFFile.open(tiny_model) as file:
        vocabulary = replace(tokenizer.vocabulary, suppressed=suppressed)
        held_back = Tokenizer.with_vocabulary(vocabulary, file.metadata)
    found = generate(cached, held_back, request(range(3, 80), temperature=temperature))
    biased = request(range(3, 80), temperature=temperature, logit_bias=NO_EOG | dict.fromkeys(suppressed, -np.inf))
    assert found.tokens == generate(cached, tokenizer, biased).tokens
    assert suppressed.isdisjoint(found.tokens)


@pytest.mark.parametrize("n_same", [0, 1, 40, 76])
def test_a_prompt_that_begins_as_the_last_one_reads_only_the_rest(
    cached: CachedSequence, tokenizer: Tokenizer, n_same: int
) -> None:
    first = request(range(3, 80))
    generate(cached, tokenizer, first)
    prompt = [*first.prompt[:n_same], *range(200, 230)]
    again = generate(cached, tokenizer, request(prompt))
    assert again.stats is not None
    assert again.stats.n_cached == n_same
    assert again.tokens == generate(make_pool().open(), tokenizer, request(prompt)).tokens


def test_the_same_prompt_again_reads_its_last_token_and_answers_the_same(
    cached: CachedSequence, tokenizer: Tokenizer
) -> None:
    first, second = (generate(cached, tokenizer, request(range(3, 80))) for _ in range(2))
    assert second.stats is not None
    assert (second.stats.n_cached, second.tokens) == (76, first.tokens)


def test_end_of_generation_ends_the_answer_and_is_no_part_of_it(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    wanted = Request((5, 6), SamplingSettings(temperature=0, logit_bias={2: np.float32(100.0)}))
    done = generate(cached, tokenizer, wanted)
    assert done.stats is not None
    assert (done.tokens, done.text, done.stats.finish_reason, done.stats.steps) == ((), "", "stop", 1)


def test_a_stop_string_over_several_tokens_is_cut_off(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    word = tokenizer.encode("END")
    assert len(word) == 3
    script = [*tokenizer.encode("a text E"), *word, *tokenizer.encode(" more")]
    done = generate_script(cached, tokenizer, script, stop=("END", "never"))
    assert (done.text, done.stats.finish_reason) == ("a text E", "stop")
    assert list(done.tokens) == script[: len(script) - len(tokenizer.encode(" more"))]
    unfinished = generate_script(make_pool().open(), tokenizer, tokenizer.encode("a text EN"), stop=("END",))
    assert (unfinished.text, unfinished.stats.finish_reason) == ("a text EN", "length")


def generate_script(
    cached: CachedSequence, tokenizer: Tokenizer, script: list[int], stop: tuple[str, ...]
) -> TextStream:
    """A generation whose sampler is forced to say `script`."""
    generation = stream_of(cached, tokenizer, Request((3,), SamplingSettings(), len(script), stop))
    generation._sequence.chooser._sampler = Scripted(script)
    assert "".join(generation) == generation.text
    return generation


class Scripted(Sampler):
    def __init__(self, script: list[int]) -> None:
        super().__init__(SamplingSettings(seed=0))
        self._script = script

    def choose(self, logits: np.ndarray, history: Sequence[int], n: int, peaks: np.ndarray | None = None) -> int:
        assert history[1:] == self._script[:n]
        return self._script[n]


class Stopping(Scripted):
    """Asks for a stop when it chooses the token after so many."""

    def __init__(self, script: list[int], n_before: int, generation: TextStream) -> None:
        super().__init__(script)
        self._n_before = n_before
        self._generation = generation

    def choose(self, logits: np.ndarray, history: Sequence[int], n: int, peaks: np.ndarray | None = None) -> int:
        if n == self._n_before:
            self._generation.stop()
        return super().choose(logits, history, n, peaks)


def test_characters_are_never_split(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    script = tokenizer.encode("aé日🦙b")
    assert len(script) > 5
    assert generate_script(cached, tokenizer, script, ()).text == "aé日🦙b"
    cut = generate_script(make_pool().open(), tokenizer, script[:-2], ())
    assert cut.text == "aé日"


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_a_stop_inside_a_character_leaves_nothing_of_it(
    cached: CachedSequence, tokenizer: Tokenizer, n_bytes: int
) -> None:
    script = tokenizer.encode("aé🦙b")
    n_tokens = len(tokenizer.encode("aé")) + n_bytes
    generation = stream_of(cached, tokenizer, request([3], len(script)))
    generation._sequence.chooser._sampler = Stopping(script, n_tokens - 1, generation)
    shown = list(generation)
    assert generation.stats is not None
    assert (generation.stats.finish_reason, len(generation.tokens)) == ("cancelled", n_tokens)
    assert "".join(shown) == generation.text == "aé"


def test_the_end_of_the_context_ends_the_answer_and_is_told(tokenizer: Tokenizer) -> None:
    done = generate(make_pool(n_context=40).open(), tokenizer, request(range(3, 33), None))
    assert done.stats is not None
    assert (len(done.tokens), done.stats.finish_reason, done.stats.truncated) == (11, "length", True)
    assert done.stats.notices == ("the answer was cut: the context of 40 tokens is full",)
    exactly = generate(make_pool(n_context=30).open(), tokenizer, request(range(3, 33), None))
    assert len(exactly.tokens) == 1


def test_requests_that_cannot_be_met_are_refused_with_the_numbers(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    with pytest.raises(ContextOverflow, match="the prompt has 257 tokens and the context holds 256"):
        stream_of(cached, tokenizer, request([3] * 257))
    with pytest.raises(BadSetting, match="no tokens"):
        stream_of(cached, tokenizer, request([]))
    with pytest.raises(BadSetting, match="max_tokens cannot be -1"):
        stream_of(cached, tokenizer, request([3], -1))


def test_stop_ends_the_answer_within_a_step_and_keeps_it(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    generation = stream_of(cached, tokenizer, request(range(3, 9), None))
    shown = []
    for piece in generation:
        shown.append(piece)
        if len(generation.tokens) >= 4:
            n_before = len(generation.tokens)
            generation.stop()
    assert generation.stats is not None
    assert (generation.stats.finish_reason, len(generation.tokens)) == ("cancelled", n_before)
    assert generation.text == "".join(shown) == whole(generation.tokens, tokenizer)


def test_stop_between_chunks_of_the_prompt_keeps_what_was_read(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    seen: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((done, total))
        if done == 64:
            generation.stop()

    wanted = Request(tuple(range(3, 150)), progress=progress)
    generation = stream_of(cached, tokenizer, wanted)
    assert list(generation) == []
    assert generation.stats is not None
    assert (generation.stats.finish_reason, generation.stats.ttft_s) == ("cancelled", None)
    assert seen[:3] == [(0, 147), (32, 147), (64, 147)]
    assert cached.tokens == tuple(range(3, 67))
    assert generate(cached, tokenizer, request(range(3, 150))).stats.n_cached == 64


def test_progress_goes_from_nothing_to_all(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    seen: list[tuple[str, int, int]] = []
    list(stream_of(cached, tokenizer, Request(tuple(range(3, 103)), max_tokens=1, progress=lambda *a: seen.append(a))))
    assert seen == [("reading the prompt", done, 100) for done in (0, 32, 64, 96, 100)]


def test_closing_the_pieces_ends_the_generation(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    generation = stream_of(cached, tokenizer, request(range(3, 9), None))
    next(generation)
    assert not cached.rests
    generation.close()
    assert cached.rests
    assert generation.stats is not None
    assert generation.stats.finish_reason == "cancelled"


def test_a_new_generation_ends_the_one_before(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    first = stream_of(cached, tokenizer, request(range(3, 9), None))
    next(first)
    n_first = len(first.tokens)
    second = generate(cached, tokenizer, request(range(50, 60)))
    assert second.tokens == generate(make_pool().open(), tokenizer, request(range(50, 60))).tokens
    list(first)
    assert len(first.tokens) == n_first
    assert first.stats is not None
    assert first.stats.finish_reason == "cancelled"
    assert generate(cached, tokenizer, request(range(50, 60))).tokens == second.tokens


def test_sequences_of_several_threads_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    pool = make_pool()
    wanted = [request(range(first, first + 40)) for first in (3, 60, 120)]
    found: dict[int, TextStream] = {}

    def work(index: int) -> None:
        found[index] = generate(pool.open(), tokenizer, wanted[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, each in enumerate(wanted):
        assert found[index].tokens == generate(make_pool().open(), tokenizer, each).tokens


def test_resting_sequences_give_their_memory_to_one_that_needs_it(tokenizer: Tokenizer) -> None:
    pool = make_pool(n_context=4 * PAGE, n_pages=5)
    members = [pool.open() for _ in range(3)]
    prompts = [list(range(first, first + 2 * PAGE - 20)) for first in (3, 50, 100)]
    answers = [
        generate(member, tokenizer, request(prompt)).tokens for member, prompt in zip(members, prompts, strict=True)
    ]
    assert [bool(member.tokens) for member in members] == [False, True, True]
    again = generate(members[0], tokenizer, request(prompts[0]))
    assert (again.tokens, again.stats.n_cached) == (answers[0], 0)
    assert [bool(member.tokens) for member in members] == [True, False, True]


def test_running_sequences_keep_their_memory_and_the_lack_of_it_is_told(tokenizer: Tokenizer) -> None:
    pool = make_pool(n_context=4 * PAGE, n_pages=4)
    running = stream_of(pool.open(), tokenizer, request(range(3, 3 + 2 * PAGE), None))
    next(running)
    with pytest.raises(DoesNotFit, match="close other sessions"):
        generate(pool.open(), tokenizer, request(range(3, 3 + 2 * PAGE), None))
    assert next(running)


def test_a_branch_goes_on_like_its_origin(cached: CachedSequence, tokenizer: Tokenizer) -> None:
    first = request(range(3, 90))
    generate(cached, tokenizer, first)
    twin = cached.branch()
    for sequence, last in ((twin, 200), (cached, 201)):
        done = generate(sequence, tokenizer, request([*first.prompt, last]))
        assert done.stats.n_cached == 87
        assert done.tokens == generate(make_pool().open(), tokenizer, request([*first.prompt, last])).tokens


def test_closed_sequences_and_pools_say_so_and_give_their_pages_back(tokenizer: Tokenizer) -> None:
    pool = make_pool()
    first, second = pool.open(), pool.open()
    generate(first, tokenizer, request(range(3, 90)))
    first.close()
    first.close()
    assert pool.executor.n_free_pages == 12
    with pytest.raises(EngineClosed, match="the session is closed"):
        generate(first, tokenizer, request([3]))
    pool.close()
    with pytest.raises(EngineClosed, match="the model is closed"):
        generate(second, tokenizer, request([3]))
    second.close()
    with pytest.raises(EngineClosed):
        pool.open()


def test_seeds_reproduce_and_differ(tokenizer: Tokenizer) -> None:
    answers = [generate(make_pool().open(), tokenizer, request([3, 4], seed=seed)).tokens for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert all(a != b for a, b in pairwise(answers[1:]))
