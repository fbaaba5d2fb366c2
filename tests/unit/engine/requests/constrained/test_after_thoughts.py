"""Answers that follow a schema after their thoughts, and thoughts within a limit."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts, ThoughtMarks
from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from tests.unit.engine.requests.constrained.test_guidance import byte_level

TOKENIZER = byte_level()
END = tuple(TOKENIZER.encode("</think>", add_special=False))
EOG = next(iter(TOKENIZER.vocabulary.end_of_generation))
MARKS = ThoughtMarks((), "</think>", END)


def after(text: str, *, opened: bool = True, budget: int | None = None, schema: bool = True) -> AfterThoughts:
    inner = Guidance(TOKENIZER).constraint(Grammar("json", '{"type": "boolean"}')) if schema else None
    found = AfterThoughts(inner, MARKS, TOKENIZER, opened=opened, budget=budget)
    found.end_within(400)
    for token in TOKENIZER.encode(text, add_special=False):
        assert found.allows(token)
        assert found.mask()[token]
        assert found.n_allowed([token]) == 1
        found.accept(token)
    return found


def allowed(found: AfterThoughts, text: str) -> bool:
    tokens = TOKENIZER.encode(text, add_special=False)
    assert found.allows(tokens[0]) == bool(found.mask()[tokens[0]]) == (found.n_allowed(tokens) > 0)
    return found.allows(tokens[0])


def test_the_schema_begins_after_the_thought() -> None:
    thinking = after("why { not")
    assert allowed(thinking, "x")
    assert not thinking.allows(EOG)
    assert not thinking.mask()[EOG]
    answering = after("why</think>")
    assert allowed(answering, "t")
    assert not allowed(answering, "x")
    done = after("why</think>true")
    assert done.allows(EOG)


def test_without_a_thought_it_begins_at_once() -> None:
    assert not allowed(after("", opened=False), "x")
    assert after("true", opened=False).allows(EOG)


@pytest.mark.parametrize("schema", [True, False])
def test_a_thought_ends_at_its_limit(schema: bool) -> None:
    found = after("abc", budget=3, schema=schema)
    assert tuple(found.forced()) == END
    assert np.flatnonzero(found.mask()).tolist() == [END[0]]
    for token in END:
        assert found.allows(token)
        found.accept(token)
    assert not found.forced() or schema
    assert allowed(found, "x") != schema
    assert tuple(after("", budget=0, schema=schema).forced()) == END
    assert after("ab</think>", budget=30, schema=False).allows(EOG)


def test_drafts_may_close_a_thought() -> None:
    tokens = TOKENIZER.encode("ab</think>tr", add_special=False)
    found = after("")
    assert found.n_allowed(tokens) == 2 + len(END)
    assert after("", budget=1).n_allowed(tokens) == 1
