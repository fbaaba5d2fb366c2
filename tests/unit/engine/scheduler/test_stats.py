"""The numbers of an answer, while it is generated and after: time besides passes, first answers, drafted parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.stats import DraftSpan, GenerationMeter, spans_of
from edgeinfer.graph.step import Int32s
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import stream_of
from tests.unit.engine.scheduler.test_sequence import make_pool, request
from tests.unit.engine.speculation.test_speculative_generation import Drafting, right


def meter_of(pass_seconds: Sequence[float | None]) -> GenerationMeter:
    """A meter of steps that end a second apart."""
    seconds = count(0.0, 1.0)
    meter = GenerationMeter(clock=lambda: next(seconds))
    for pass_s in pass_seconds:
        meter.step(1, pass_s)
    return meter


def test_a_step_takes_what_its_pass_does_not_and_the_first_one_counts_as_the_prompts() -> None:
    assert meter_of([0.9, 0.75, 0.25]).step_s == pytest.approx(0.5)


@pytest.mark.parametrize("pass_seconds", [[], [0.5], [0.5, 0.5, None, 0.5]])
def test_of_too_few_steps_and_of_passes_with_others_nothing_is_said(pass_seconds: list[float | None]) -> None:
    assert meter_of(pass_seconds).step_s is None


def test_passes_that_seem_to_take_longer_than_steps_leave_nothing() -> None:
    assert meter_of([0.5, 2.0]).step_s == 0.0


def test_waiting_for_the_disk_is_no_prefill() -> None:
    moments = iter([0.0, 3.0, 4.0, 5.0])  # it begins, the disk has been read, a part of the prompt has, the first token
    meter = GenerationMeter(clock=lambda: next(moments))
    meter.begin_reading()
    meter.prompt(10)
    meter.step(1)
    assert (meter.ttft_s, meter.prefill_tok_s, meter.prefill_so_far_tok_s) == (5.0, 5.0, 10.0)


def test_the_first_answer_of_a_model_is_known_and_every_step_is_measured(home: Path, tiny_model: Path) -> None:
    with load(tiny_model, device="reference") as llm:
        found = []
        for text in ("once upon a time", "the rain"):
            stream = llm.complete(text, max_tokens=8)
            assert "".join(stream) == stream.text
            assert stream.stats is not None
            found.append(stream.stats)
    assert [stats.is_first for stats in found] == [True, False]
    for stats in found:
        assert stats.step_s is not None
        assert stats.decode_tok_s is not None
        assert 0 <= stats.step_s < 1 / stats.decode_tok_s


ASKED = [{"role": "user", "content": "the rain in the inn " * 12}]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


class Named(Drafting):
    """Whose drafts are by "odd" and "even" nodes of the path."""

    def sources(self, path: Int32s) -> list[str | None]:
        return ["even" if number % 2 else "odd" for number in range(len(path) - 1)]


def test_runs_of_one_source_are_joined() -> None:
    assert spans_of(["a", "bc", "", "d", "e"], [None, "x", "y", "x"]) == (
        DraftSpan(1, None),
        DraftSpan(3, "x"),
        DraftSpan(1, None),
    )
    assert spans_of([], ["x"]) == ()
    assert spans_of(["ab"], ["x", "y"]) == (DraftSpan(2, "x"),)


def test_drafted_tokens_are_marked_with_who_drafted_them(tokenizer: Tokenizer) -> None:
    wanted = request(range(3, 80), 20, temperature=0)
    plain = stream_of(make_pool().open(), tokenizer, wanted)
    list(plain)
    assert [mark.source for mark in plain.marks] == [None]
    drafting = Named(right(plain.tokens, 77, 2, 1)._make)
    generation = stream_of(make_pool().open(), tokenizer, wanted, drafting)
    text = ""
    for piece in generation:
        text += piece
        assert sum(mark.n_characters for mark in generation.marks) == len(text)
    assert generation.text == plain.text == text
    sources: list[str | None] = [None]  # the prompt's own token, then two drafted ones and one more in a pass
    for _, walked in drafting.walks:
        sources += [*drafting.sources(walked.path), None]
    pieces = [tokenizer.piece(token) for token in plain.tokens]
    if all(piece.isascii() for piece in pieces):
        assert generation.marks == spans_of([piece.decode() for piece in pieces], sources[: len(pieces)])
    assert {"odd", "even"} <= {mark.source for mark in generation.marks}


def test_numbers_are_there_while_the_answer_is_made(tiny_model: Path) -> None:
    with load(tiny_model, device="reference", spec="off") as llm, llm.session() as session:
        stream = session.chat(ASKED, max_tokens=6, temperature=0.0, logit_bias={0: -100.0, 2: -100.0})
        assert (stream.live.n_read, stream.live.n_generated, stream.live.ttft_s) == (0, 0, None)
        next(stream)
        live = stream.live
        assert live.n_read == live.n_prompt
        assert live.n_generated >= 1
        assert live.prefill_tok_s > 0
        stream.read()
        live, stats = stream.live, stream.stats
        assert (live.n_prompt, live.n_cached, live.n_generated, live.steps) == (stats.n_prompt, 0, 6, stats.steps)
        assert (live.decode_tok_s, live.accepted_per_step) == (stats.decode_tok_s, stats.accepted_per_step)
        again = session.chat(ASKED, max_tokens=2, temperature=0.0)
        again.read()
        assert again.live.n_cached == again.stats.n_cached > 0
        assert again.live.n_read == again.live.n_prompt


def test_numbers_show_how_far_a_prompt_is_read(tiny_model: Path) -> None:
    with load(tiny_model, device="reference", spec="off") as llm, llm.session() as session:
        seen: list[int] = []
        asked = [{"role": "user", "content": "rain" * 90}]

        def look(what: str, done: int, total: int) -> None:
            seen.append(stream.live.n_read)

        stream = session.chat(asked, max_tokens=1, temperature=0.0, progress=look)
        stream.read()
        assert seen[0] == 0
        assert seen == sorted(seen)
        assert seen[-1] == stream.stats.n_prompt


@pytest.mark.model
def test_the_starter_model_marks_what_its_drafters_said(starter_model: Path) -> None:
    asked = [{"role": "user", "content": "Repeat this three times: one two three four five six seven eight."}]
    with load(starter_model, n_context=1024, spec="on") as llm:
        stream = llm.chat(asked, max_tokens=80, temperature=0.0)
        stream.read()
        assert sum(mark.n_characters for mark in stream.marks) == len(stream.text)
        accepted = {name for name, count in stream.stats.draft.sources.items() if count.accepted}
        named = {mark.source for mark in stream.marks} - {None}
        assert named
        assert named <= accepted
