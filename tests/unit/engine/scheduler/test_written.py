"""Answers whose beginning was written before: greedy ones go on as if they had been written in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.prompt_rows import PromptRows
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import BadSetting

PROMPT = "the rain in the tin, the hen in the inn, and a moth in the broth; "
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "logprobs": 2}
QUESTION = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=2, chat_template="deepseek-r1", rows=True) as loaded:
        yield loaded


def written(llm: LLM, request: Request, tokens: Sequence[int] = (), told: Sequence[Any] = ()) -> TextStream:
    """The answer to a request of which so much was written before, taken to its end."""
    prompt = (*request.prompt, *tokens)
    request = replace(request, prompt=prompt, written=len(tokens), told=tuple(told))
    sequence = ScheduledSequence(llm._pool.reserve(), llm._tokenizer, request, shares_prefix=True)
    stream = TextStream(sequence, llm._driver)
    pieces = list(stream)
    assert "".join(pieces) == stream.text
    return stream


def request_of(llm: LLM, options: dict[str, Any]) -> Request:
    given = {**GREEDY, **options}
    if given.pop("chat", False):
        return llm.prompts.chat(QUESTION, given)
    if given.pop("rows", False):
        width = llm.prompts.inputs.row_width
        values = np.linspace(-1, 1, 3 * width, dtype=np.float32).reshape(3, width)
        return llm.prompts.text([3, 4, 5, PromptRows(values), *range(6, 30)], given)
    return llm.prompts.text(PROMPT, given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": ["th", "in"]},
        {"repeat_penalty": 1.3, "penalty_window": -1},
        {"regex": "(the |hen |[a-h]+ ){3,20}end"},
        {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        {"chat": True, "max_thought_tokens": 6},
        {"chat": True, "max_thought_tokens": 5, "regex": "[a-h]{3,9}"},
        {"rows": True},
    ],
    ids=["plain", "stop", "penalty", "regex", "schema", "thoughts", "answer after thoughts", "rows"],
)
def test_a_greedy_answer_goes_on_from_any_token(llm: LLM, options: dict[str, Any]) -> None:
    whole = written(llm, request_of(llm, options))
    assert whole.stats is not None
    assert len(whole.tokens) > 2
    for n_written in range(1, min(len(whole.tokens), GREEDY["max_tokens"] - 1)):
        request = request_of(llm, options)
        own = written(llm, request, whole.tokens[:n_written], whole.logprobs[:n_written])
        assert own.stats is not None
        assert (own.tokens, own.text, own.logprobs) == (whole.tokens, whole.text, whole.logprobs)
        assert (own.content, own.reasoning) == (whole.content, whole.reasoning)
        assert own.stats.finish_reason == whole.stats.finish_reason
        assert (own.stats.n_inherited, own.stats.n_generated) == (n_written, whole.stats.n_generated)
        assert (own.stats.n_prompt, own.stats.n_rows) == (whole.stats.n_prompt, whole.stats.n_rows)
        assert (own.prompt, own.prompt_ids) == (whole.prompt, whole.prompt_ids)
        assert own.live.n_prompt == own.stats.n_prompt
        assert own.stats.n_cached <= own.stats.n_prompt


def test_a_stop_string_that_the_written_part_completes_ends_the_answer(llm: LLM) -> None:
    tokens = llm._tokenizer.encode("a heath", add_special=False)
    stream = written(llm, request_of(llm, {"stop": ["eat"], "logprobs": None}), tokens)
    assert stream.text == "a h"
    assert stream.stats is not None
    assert stream.stats.finish_reason == "stop"
    assert stream.stop_string == "eat"


def test_characters_in_pieces_are_completed(llm: LLM) -> None:
    tokens = llm._tokenizer.encode("né", add_special=False)
    options = {"regex": "né!", "logprobs": None}
    stream = written(llm, request_of(llm, options), tokens[:-1])
    assert stream.text == "né!"


def test_what_cannot_go_on_is_refused(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="max_tokens is 2"):
        written(llm, request_of(llm, {"max_tokens": 2, "logprobs": None}), (5, 6))
    with pytest.raises(BadSetting, match="must match"):
        written(
            llm,
            request_of(llm, {"regex": "yes", "logprobs": None}),
            llm._tokenizer.encode("no", add_special=False),
        )
