"""Families that put marks around thoughts and answers: schemas follow the marks, a limit closes thoughts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts, ThoughtMarks
from edgeinfer.engine.requests.constrained.call_grammars import tool_grammar
from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.byte_level import byte_characters
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS, thoughts_of
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import Function, ToolReader
from tests.unit.models.text.small_vocabularies import gguf_metadata

MARKS = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|begin|>", "<|think|>"),
    *("<|content|>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_TEXT|>", "<|channel>"),
    *("<channel|>", "<|inner_prefix|>", "<|inner_suffix|>", "[THINK]", "[/THINK]", "<|START_ACTION|>"),
    *("<|END_ACTION|>", "<|constrain|>", "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>"),
    *("<|tool_call:args|>", "<|tool_call:end|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|calls|>", "<|flush|>"),
)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
FAMILIES = ("harmony", "solar", "command_r7b", "command_a", "gemma4", "apertus", "mistral")


def vocabulary() -> Tokenizer:
    tokens = [*MARKS, *byte_characters().values()]
    types = [3] * len(MARKS) + [1] * (len(tokens) - len(MARKS))
    made = gguf_metadata("gpt2", tokens, types, pre="default", merges=[], bos_token_id=0, eos_token_id=4)
    return Tokenizer.from_metadata(made)


TOKENIZER = vocabulary()
END = TOKENIZER.token_id("<|return|>")


def constraint(name: str, *, schema: bool = True, budget: int | None = None, opened: bool = False) -> AfterThoughts:
    form = THOUGHT_FORMATS.get(name)
    inner = Guidance(TOKENIZER).constraint(Grammar("json", SCHEMA)) if schema else None
    marks = ThoughtMarks.of(form, TOKENIZER, form.answer)
    return AfterThoughts(inner, marks, TOKENIZER, opened=opened, budget=budget)


def written(found: AfterThoughts, says: str) -> str:
    """What a model writes that wants to say this, where it has a choice; checks that all methods agree."""
    wanted = TOKENIZER.encode(says, add_special=False)
    tokens: list[int] = []
    while wanted or found.forced():
        forced = list(found.forced())
        token = forced[0] if forced else wanted[0]
        assert found.settled(token) == token
        assert found.allows(token)
        mask = found.mask()
        assert mask[token]
        if forced:
            assert found.n_allowed(forced) == len(forced)
        if wanted:
            assert bool(mask[wanted[0]]) == found.allows(wanted[0]) == (found.n_allowed(wanted[:1]) == 1)
        assert np.flatnonzero(mask).tolist() == [token] or not forced
        found.accept(token)
        tokens.append(token)
        if wanted and wanted[0] == token:
            wanted.pop(0)
    return TOKENIZER.decode(tokens)


def read(name: str, text: str, *, opened: bool = False) -> tuple[str, str]:
    """Thoughts and content, after checking that it does not matter how the text is cut."""
    found = set()
    for size in range(1, len(text) + 1):
        reader = AnswerReader(THOUGHT_FORMATS.get(name), opened=opened)
        content = "".join([reader.push(text[at : at + size]) for at in range(0, len(text), size)]) + reader.finish()
        found.add((reader.thoughts, content))
    (only,) = found
    return only


@pytest.mark.parametrize("name", FAMILIES)
def test_a_schema_follows_a_thought_that_ends_itself(name: str) -> None:
    form, found = THOUGHT_FORMATS.get(name), constraint(name)
    text = written(found, f'{form.begin}why {{ not{form.end}{{"a": true}}')
    assert text == f'{form.begin}why {{ not{form.end}{form.turn * bool(form.dropped)}{form.answer}{{"a": true}}'
    assert found.allows(END)
    thoughts, content = read(name, text)
    assert (thoughts, json.loads(content)) == ("why { not", {"a": True})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_schema_needs_no_thought(name: str) -> None:
    form, found = THOUGHT_FORMATS.get(name), constraint(name)
    assert not found.allows(END)
    text = written(found, f'{form.answer}{{"a": false}}')
    assert text == f'{form.answer}{{"a": false}}'
    assert found.allows(END)
    thoughts, content = read(name, text)
    assert (thoughts, json.loads(content)) == ("", {"a": False})


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_thoughts_end_at_their_limit(name: str, schema: bool) -> None:
    form, found = THOUGHT_FORMATS.get(name), constraint(name, schema=schema, budget=4)
    text = written(found, f"{form.begin}why ")
    closed = f"{form.begin}why {form.end}{form.turn}{form.answer}"
    assert text.startswith(closed)
    text += written(found, '{"a": true}'.removeprefix(text.removeprefix(closed)))
    assert found.allows(END)
    thoughts, content = read(name, text)
    assert (thoughts, json.loads(content)) == ("why", {"a": True})
    assert schema or not form.anywhere or not found_again(found, form.begin)


def found_again(found: AfterThoughts, begin: str) -> bool:
    """Whether a further thought may begin."""
    for token in TOKENIZER.encode(begin, add_special=False):
        if not found.allows(token):
            assert not found.mask()[token]
            assert found.n_allowed([token]) == 0
            return False
        found.accept(token)
    return True


def test_thoughts_that_come_in_parts_have_one_limit() -> None:
    form = THOUGHT_FORMATS.get("harmony")
    found = constraint("harmony", schema=False, budget=7)
    text = written(found, f"{form.begin}why{form.end}{form.turn}{form.begin}how")
    assert text.endswith(f"{form.begin}how{form.end}{form.turn}{form.answer}")


def test_marks_come_in_their_order() -> None:
    """At the start there is a choice of channels, within the marks none."""
    found, channel = constraint("harmony"), TOKENIZER.token_id("<|channel|>")
    assert list(found.forced()) == [channel]
    found.accept(channel)
    assert not found.forced()
    assert [TOKENIZER.decode([token]) for token in np.flatnonzero(found.mask())] == ["a", "f"]
    found.accept(TOKENIZER.token_id("f"))
    assert TOKENIZER.decode(found.forced()) == "i"


CALLED = {
    "harmony": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>",
    "solar": "<|tool_calls|><|tool_call:begin|>abcdefghi1<|tool_call:name|>clock<|tool_call:args|>",
    "command_r7b": "<|START_ACTION|>[",
    "gemma4": "<|tool_call>call:clock{at:",
}
SAID = {"command_r7b": '{"tool_name": "clock", "parameters": {"at": 3}}]', "gemma4": "3}<tool_call|>"}


@pytest.mark.parametrize("thought", ["why", None])
@pytest.mark.parametrize("name", CALLED)
def test_a_required_call_follows_a_thought_or_comes_at_once(name: str, thought: str | None) -> None:
    form, called = THOUGHT_FORMATS.get(name), TOOL_FORMATS.get(name)
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
    grammar = tool_grammar(called, [Function("clock", "", schema)], TOKENIZER.marks, required=True, several=False)
    inner = Guidance(TOKENIZER).constraint(grammar, [schema])
    found = AfterThoughts(inner, ThoughtMarks.of(form, TOKENIZER, called.lead), TOKENIZER, opened=False)
    said = CALLED[name] + SAID.get(name, '{"at": 3}')
    thoughts = "" if thought is None else f"{form.begin}{thought}{form.end}"
    text = written(found, thoughts + said)
    text += written(found, "".join(TOKENIZER.decode([token]) for token in found.forced()))
    assert found.allows(END)
    reader = AnswerReader(form, ToolReader(called, frozenset({"clock"}), {"clock": schema}))
    content = "".join([*map(reader.push, text), reader.finish()])
    assert (reader.thoughts, content.strip()) == (thought or "", "")
    assert [(call.name, call.arguments) for call in reader.calls] == [("clock", '{"at": 3}')]


@pytest.mark.parametrize("thought", ["why", None])
@pytest.mark.parametrize("name", CALLED)
def test_an_answer_that_follows_a_schema_or_a_call(name: str, thought: str | None) -> None:
    """With marks of their own before both, as requests ask for it that have tools and a schema."""
    marks = (*THOUGHT_FORMATS.get(name).marks, *TOOL_FORMATS.get(name).marks)
    prompts = Prompts(TOKENIZER, ChatTemplate({"default": "".join(f"{{# {mark} #}}" for mark in marks)}), 1000)
    parameters = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": parameters}}]
    form = THOUGHT_FORMATS.get(name)
    thoughts = "" if thought is None else f"{form.begin}{thought}{form.end}"
    called = CALLED[name] + SAID.get(name, '{"at": 3}')
    for said, n_calls in ((f'{form.answer}{{"a": true}}', 0), (called, 1)):
        request = prompts.chat([{"role": "user", "content": "?"}], {"tools": tools, "schema": json.loads(SCHEMA)})
        assert isinstance(request.constraint, AfterThoughts)
        text = written(request.constraint, thoughts + said)
        text += "".join(TOKENIZER.decode([token]) for token in request.constraint.forced())
        reader = request.reader()
        assert reader is not None
        content = "".join([*map(reader.push, text), reader.finish()])
        assert (reader.thoughts, len(reader.calls)) == (thought or "", n_calls)
        assert n_calls or json.loads(content) == {"a": True}
    assert not request.constraint.allows(TOKENIZER.token_id("x") or 0)


def test_later_models_of_cohere_have_their_own_marks() -> None:
    own, former = "<|START_THINKING|> <|START_TEXT|>", "<|START_THINKING|> <|START_RESPONSE|>"
    assert thoughts_of(own) == THOUGHT_FORMATS.get("command_a")
    assert thoughts_of(former) == THOUGHT_FORMATS.get("command_r7b")
