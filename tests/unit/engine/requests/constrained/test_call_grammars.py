"""Calls in families' own forms, enforced: what a grammar lets a model write is read as a call that fits its schema."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.requests.constrained.call_grammars import is_enforceable, tool_grammar
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.byte_level import byte_characters
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS
from edgeinfer.models.text.tool_formats import TOOL_FORMATS, ToolFormat, format_of
from edgeinfer.models.text.tools import Function, ToolCall, ToolReader
from tests.unit.models.text.small_vocabularies import gguf_metadata

FOLDER = Path(os.environ.get("EDGEINFER_TEST_TEMPLATES", "/nowhere"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["C", "<F>"]},
        "city": {"type": "string", "description": "a city"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "now": {"type": "boolean"},
        "more": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "now"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = (
    Function("get_weather", "", SCHEMA),
    Function("clock", "", {"type": "object", "properties": {}, "additionalProperties": False}),
)
KINDS = {"unit": str, "city": str, "days": list, "now": bool, "more": dict}
BLOCKS = [name for name, form in TOOL_FORMATS.entries().items() if form.written is not None]
CLOSERS = ['"', "'", "}", "]", ")", '"}', ", ", ",", " ", "\n", "C", "<F>", "true", "1", "a"]


@cache
def vocabulary(name: str, are_control: bool) -> Tokenizer:
    """Bytes, and the marks of a form as control tokens, or none."""
    form = TOOL_FORMATS.get(name)
    written = form.written
    marks: list[str] = []
    if are_control and written is not None:
        texts = [
            form.begin,
            form.end,
            written.begin,
            written.end,
            written.before,
            written.after,
            *(written.argument or ()),
        ]
        marks = sorted({mark for text in texts if text for mark in marks_in(text)})
    tokens = ["<end>", *marks, *byte_characters().values()]
    types = [3] * (1 + len(marks)) + [1] * 256
    return Tokenizer.from_metadata(gguf_metadata("gpt2", tokens, types, pre="default", merges=[], eos_token_id=0))


def marks_in(text: str) -> list[str]:
    """The tags of a text that have no places for names."""
    found, at = [], 0
    while (begin := min((i for i in (text.find("<", at), text.find("[", at)) if i >= 0), default=-1)) >= 0:
        closing = ">" if text[begin] == "<" else "]"
        end = text.find(closing, begin)
        if end < 0:
            break
        mark = text[begin : end + 1]
        if "{" not in mark and len(mark) > 2:
            found.append(mark)
        at = end + 1
    return found


def constraint(name: str, tokenizer: Tokenizer, *, required: bool = True, several: bool = True) -> Constraint:
    form = TOOL_FORMATS.get(name)
    grammar = tool_grammar(form, FUNCTIONS, tokenizer.marks, required=required, several=several)
    return Guidance(tokenizer).constraint(grammar)


def walked(found: Constraint, tokenizer: Tokenizer, closers: list[list[int]], seed: int) -> str:
    """What a model writes that has no idea, but ends texts now and then."""
    generator, tokens = random.Random(seed), list[int]()

    def take(token: int) -> None:
        assert found.allows(token)
        found.accept(token)
        tokens.append(token)

    while not (found.allows(0) and (generator.random() < 0.7 or not found.mask()[1:].any())):
        forced = found.forced()
        if forced:
            take(forced[0])
        elif generator.random() < 0.15 and (fresh := np.flatnonzero(found.mask()[1:97])).size:
            take(1 + int(generator.choice(fresh.tolist())))
        else:
            ways = [way for way in closers if way and found.n_allowed(way) == len(way)]
            if not ways:
                take(1 + int(generator.choice(np.flatnonzero(found.mask()[1:]).tolist())))
                continue
            for token in generator.choice(ways):
                take(token)
        assert len(tokens) < 9000
    return tokenizer.decode(tokens)


def calls_in(form: ToolFormat, text: str) -> list[ToolCall]:
    tools = ToolReader(form, frozenset({"get_weather", "clock"}), {each.name: each.parameters for each in FUNCTIONS})
    reader = AnswerReader(THOUGHT_FORMATS.get("solar") if form == TOOL_FORMATS.get("solar") else None, tools)
    content = reader.push(text) + reader.finish()
    assert not content.strip(), (text, content)
    return reader.calls


def check(call: ToolCall) -> None:
    arguments = json.loads(call.arguments)
    if call.name == "clock":
        assert arguments == {}
        return
    assert {"city", "now"} <= arguments.keys() <= KINDS.keys()
    assert all(isinstance(value, KINDS[key]) for key, value in arguments.items())
    assert arguments.get("unit", "C") in ("C", "<F>")
    assert all(isinstance(day, int) for day in arguments.get("days", ()))
    assert "more" not in arguments or isinstance(arguments["more"]["a"], int)


@pytest.mark.parametrize("are_control", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_written_is_read_as_a_call(name: str, are_control: bool) -> None:
    tokenizer, form = vocabulary(name, are_control), TOOL_FORMATS.get(name)
    written = form.written
    assert written is not None
    ends = [*CLOSERS, (written.argument or ("", ""))[1].replace("{line}", "\n"), written.texts]
    closers = [tokenizer.encode(text, add_special=False) for text in ends]
    n_calls = 0
    for seed in range(12):
        text = walked(constraint(name, tokenizer, several=seed < 6), tokenizer, closers, seed)
        calls = calls_in(form, (form.trigger if form.trigger not in text else "") + text)
        assert calls, text
        n_calls += len(calls)
        for call in calls:
            check(call)
    assert n_calls > 12 or written.separator is None


@pytest.mark.parametrize("name", BLOCKS)
def test_nothing_but_a_call_is_allowed_where_one_is_required(name: str) -> None:
    tokenizer = vocabulary(name, False)
    for text in ("Hello", "{}"):
        tokens = tokenizer.encode(text, add_special=False)
        assert constraint(name, tokenizer).n_allowed(tokens) < len(tokens)
    assert not constraint(name, tokenizer).allows(0)


@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "harmony"])
def test_strict_functions_are_enforced_once_a_call_begins(name: str) -> None:
    tokenizer, form = vocabulary(name, True), TOOL_FORMATS.get(name)
    found = constraint(name, tokenizer, required=False)
    tokens = tokenizer.encode(f"Well, {form.trigger}", add_special=False)
    assert found.allows(0)
    assert found.n_allowed(tokens) == len(tokens)
    for token in tokens:
        found.accept(token)
    assert not found.allows(0)
    assert found.n_allowed(tokenizer.encode("no such function", add_special=False)) < 3


def template(name: str) -> ChatTemplate:
    return ChatTemplate({"default": " ".join(TOOL_FORMATS.get(name).marks)})


def use(
    name: str, parameters: Mapping[str, Any], choice: str = "required", has_schema: bool = False, **more: Any
) -> ToolUse:
    function = {"name": "f", "parameters": parameters, **more}
    found = ToolUse.of(
        [{"type": "function", "function": function}], choice, True, template(name), has_schema=has_schema
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    "argument",
    [
        {"type": "string", "pattern": "a+"},
        {"type": "string", "maxLength": 3},
        {"type": "string", "enum": ["a", 1]},
        {"$ref": "#/properties/b"},
    ],
)
def test_what_a_form_cannot_enforce_is_asked_for_in_words(argument: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": argument, "b": {"type": "integer"}}}
    assert use("qwen3_coder", parameters).in_words
    assert not use("qwen3_coder", parameters, "auto").in_words
    assert use("qwen3_coder", parameters, "auto", has_schema=True).in_words
    assert not use("kimi_k2", parameters).in_words
    plain = {"type": "object", "properties": {"b": {"type": "integer"}}}
    assert not use("qwen3_coder", plain).in_words
    assert not use("qwen3_coder", plain, "auto", has_schema=True).in_words


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "number", "minimum": 0},
        {"type": ["number", "null"]},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
        {"$ref": "#/$defs/price"},
    ],
)
def test_numbers_among_tags_are_finite(schema: dict[str, Any]) -> None:
    tokenizer = vocabulary("qwen3_coder", False)
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": {"price": {"type": "number"}}}
    grammar = tool_grammar(
        TOOL_FORMATS.get("qwen3_coder"), [Function("f", "", parameters)], tokenizer.marks, required=True, several=False
    )
    before = "<tool_call>\n<function=f>\n<parameter=a>\n"
    for number, is_allowed in (("820.5", True), ("8e99999", False), ("1" * 40, False)):
        tokens = tokenizer.encode(f"{before}{number}\n</parameter>\n", add_special=False)
        n_allowed = Guidance(tokenizer).constraint(grammar).n_allowed(tokens)
        assert (n_allowed == len(tokens)) is is_allowed, number


def test_names_that_a_form_cannot_write() -> None:
    functions = [Function("get-weather", "", {"type": "object", "properties": {}})]
    assert not is_enforceable(TOOL_FORMATS.get("lfm2"), functions)
    assert is_enforceable(TOOL_FORMATS.get("glm"), functions)
    assert not is_enforceable(TOOL_FORMATS.get("muse"), functions)


def test_only_strict_or_required_blocks_are_constrained() -> None:
    tokenizer = vocabulary("glm", True)
    guidance = Guidance(tokenizer)
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert use("glm", parameters, "auto").constraint(guidance, tokenizer) is None
    assert use("glm", parameters, "auto", strict=True).constraint(guidance, tokenizer) is not None
    assert use("glm", parameters, "f").constraint(guidance, tokenizer) is not None


PATHS = [path for path in sorted(FOLDER.glob("*.jinja")) if (each := format_of(path.read_text())) and each[1].written]
TOOLS = [
    {"type": "function", "function": {"name": each.name, "description": "d", "parameters": dict(each.parameters)}}
    for each in FUNCTIONS
]
UNLIKE = frozenset({"LFM2-8B-A1B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "Mistral-Small-3.2-24B-Instruct-2506"})
"""Templates that write no earlier calls, or ids besides."""


@pytest.mark.skipif(not PATHS, reason="needs EDGEINFER_TEST_TEMPLATES")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_templates_write_is_allowed(path: Path) -> None:
    """Earlier calls as published templates write them; all but white space at their ends."""
    source = path.read_text()
    found = format_of(source)
    assert found is not None
    if path.stem in UNLIKE:
        pytest.skip("writes no calls like those of its models")
    arguments = {"unit": "C", "city": "Köln", "days": [1, 2], "now": True}
    calls = [{"id": "abcdefghi1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]
    told = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": "", "tool_calls": calls}],
        tools=TOOLS,
        add_generation_prompt=False,
    )
    form, tokenizer = found[1], vocabulary(found[0], False)
    assert form.written is not None
    begin = form.written.begin or form.begin
    end = form.end.strip() if form.written.end is None else form.written.end
    told = told[told.rindex(begin) :]
    told = told[: told.index(end) + len(end)] if end else told.removesuffix("</s>").partition("<|calls|>")[0]
    told = told.replace("True", "true")
    if found[0] == "harmony":
        told = told.replace("<|channel|>commentary json", " <|constrain|>json").partition("<|call|>")[0]
    if form.written.texts == "JSON":
        told = told.replace("'", '"')
    tokens = tokenizer.encode(told, add_special=False)
    made = constraint(found[0], tokenizer)
    assert tokenizer.decode(tokens[: made.n_allowed(tokens)]) == told
    for token in tokens:
        made.accept(token)
    assert made.allows(0)
