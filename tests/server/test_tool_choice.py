"""Which functions an answer may call, and answers that follow a schema where functions may be called."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.constrained.call_grammars import tool_grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolCall, functions_of
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served
from tests.server.test_tools import MESSAGES, NAMES, TEMPLATES, TOOLS, WRITTEN, check, read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose context has room for functions in words."""
    path = write_tiny_llama(tmp_path_factory.mktemp("choices") / "tiny.gguf", context=4096)
    with served(path) as running:
        yield running


def test_a_function_that_is_named_is_called_once(server: Running) -> None:
    for seed in range(6):
        found = server.client().chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "clock"}},
            seed=seed,
            temperature=1.5,
            max_tokens=300,
        )
        assert [call.function.name for call in found.choices[0].message.tool_calls] == ["clock"]
        assert found.choices[0].finish_reason == "tool_calls"


def allowed(mode: str, name: str) -> dict[str, object]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": name}}]},
    }


def test_only_functions_that_are_allowed_are_called(server: Running) -> None:
    options = {"model": "tiny", "tools": TOOLS, "temperature": 1.5, "parallel_tool_calls": False}
    for choice, flat in (
        (allowed("required", "weather"), {"type": "allowed_tools", "mode": "required", "tools": [{"name": "weather"}]}),
        (allowed("required", "clock"), {"type": "allowed_tools", "mode": "required", "tools": [{"name": "clock"}]}),
        ("any", "any"),
    ):
        names = set()
        for seed in range(3):
            found = server.client().chat.completions.create(
                messages=MESSAGES, tool_choice=choice, seed=seed, max_tokens=300, **options
            )
            names |= {call.function.name for call in found.choices[0].message.tool_calls}
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        answer = server.client().responses.create(
            input="the weather", tool_choice=flat, max_output_tokens=300, **{**options, "tools": tools}
        )
        names |= {item.name for item in answer.output if item.type == "function_call"}
        wanted = {choice["allowed_tools"]["tools"][0]["function"]["name"]} if choice != "any" else NAMES
        assert names
        assert names <= wanted


RAIN = {
    "type": "object",
    "properties": {"rain_mm": {"enum": [1, 2, 30]}, "where": {"type": "array", "items": {"enum": ["here", "there"]}}},
    "required": ["rain_mm", "where"],
    "additionalProperties": False,
}


def test_with_a_schema_an_answer_calls_or_follows_it(server: Running) -> None:
    """The model's weights are random: what is neither a call nor JSON of the schema shows within a few answers."""
    schema = {"type": "json_schema", "json_schema": {"name": "rain", "schema": RAIN}}
    kinds = set()
    for seed in range(20):
        found = server.client().chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=TOOLS,
            response_format=schema,
            seed=seed,
            max_tokens=300,
            temperature=40,
            top_p=1,
            extra_body={"min_p": 0, "top_k": -1},
        )
        message = found.choices[0].message
        for call in message.tool_calls or ():
            check(call)
        if not message.tool_calls:
            jsonschema.validate(json.loads(message.content), RAIN)
        kinds.add(bool(message.tool_calls))
        if len(kinds) == 2:
            break
    assert len(kinds) == 2
    forced = server.client().chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, response_format=schema, tool_choice="required", max_tokens=300
    )
    assert forced.choices[0].message.tool_calls


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_a_grammar_with_a_schema_allows_calls_and_what_follows_it(tokenizer: Tokenizer, name: str) -> None:
    form = TOOL_FORMATS.get(name)
    grammar = tool_grammar(form, functions_of(TOOLS), tokenizer.marks, required=False, several=True, answer=RAIN)

    def is_allowed(text: str) -> bool:
        constraint, tokens = Guidance(tokenizer).constraint(grammar), tokenizer.encode(text, add_special=False)
        if constraint.n_allowed(tokens) < len(tokens):
            return False
        for token in tokens:
            constraint.accept(token)
        return constraint.allows(2)

    assert is_allowed(WRITTEN[name])
    assert is_allowed('{"rain_mm": 30, "where": ["here"]}')
    for text in ("only text", '{"rain_mm": 4, "where": []}', f"so {WRITTEN[name]}", f'{WRITTEN[name]}{{"rain_mm": 1}}'):
        assert not is_allowed(text)


def test_calls_that_no_grammar_enforces_may_stand_beside_a_schema(tokenizer: Tokenizer) -> None:
    template = ChatTemplate({"default": "{# <|tool_call_start|> tool_calls #}"}, {})
    use = ToolUse.of(TOOLS, "auto", True, template)
    assert use.form.shape == "block"
    assert use.constraint(Guidance(tokenizer), tokenizer) is None
    for text, is_whole in (
        ('{"rain_mm": 1, "where": []}', True),
        ("<|tool_call_start|>[clock()]<|tool_call_end|>", True),
        ("It rains.", False),
    ):
        constraint = use.constraint(Guidance(tokenizer), tokenizer, json.dumps(RAIN))
        tokens = tokenizer.encode(text, add_special=False)
        assert (constraint.n_allowed(tokens) == len(tokens)) is is_whole


def test_functions_that_cannot_be_enforced_do_not_take_a_schemas_place(tokenizer: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"at": {"const": (1 << 53) + 1}}, "required": ["at"]}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": parameters}}]
    use = ToolUse.of(tools, "auto", True, ChatTemplate({"default": ""}, {}))
    constraint = use.constraint(Guidance(tokenizer), tokenizer, json.dumps(RAIN))
    for text, is_whole in (('<tool_call>\n{"name": "clock", "arguments": {"at": 9', True), ('{"rain_mm": 7', False)):
        tokens = tokenizer.encode(text, add_special=False)
        assert (constraint.n_allowed(tokens) == len(tokens)) is is_whole
    with pytest.raises(BadSetting, match="schema cannot be read"):
        use.constraint(Guidance(tokenizer), tokenizer, "{")


def test_functions_that_are_not_there_cannot_be_allowed(server: Running) -> None:
    for choice, reason in (
        (allowed("required", "other"), "'other', which is none of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason):
            server.client().chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=choice)


def test_definitions_of_a_function_are_known_beside_a_schema(tokenizer: Tokenizer) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Rome", "Oslo"]}},
    }
    functions = functions_of([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
    for name, key in (("llama3", "parameters"), ("hermes", "arguments")):
        form = TOOL_FORMATS.get(name)
        grammar = tool_grammar(form, functions, tokenizer.marks, required=False, several=False, answer=RAIN)
        for city, is_whole in (("Rome", True), ("Bonn", False)):
            text = f'{form.begin}{{"name": "weather", "{key}": {{"city": "{city}"}}}}{form.end}'
            tokens = tokenizer.encode(text, add_special=False)
            assert (Guidance(tokenizer).constraint(grammar).n_allowed(tokens) == len(tokens)) is is_whole


@given(st.lists(st.integers(0, 60)))
def test_a_bare_call_has_white_space_where_json_has_it(cuts: list[int]) -> None:
    """As grammars allow it beside a schema of the answer."""
    content, calls = read("llama3", '\n{ "name"\n  : "clock", "parameters": { }}', cuts)
    assert (content.strip(), calls) == ("", [ToolCall("clock", "{}")])
    text = '{ "named": "clock"}'
    assert read("llama3", text, cuts) == (text, [])


def test_calls_beside_a_schema_are_calls_however_they_are_spaced(tmp_path: Path) -> None:
    template = ChatTemplate({"default": (TEMPLATES / "llama3.jinja").read_text()}, {})
    blank = {"extra_body": {"logit_bias": {" ": 30}}}
    schema = {"type": "json_schema", "json_schema": {"name": "rain", "schema": RAIN}}
    with served(write_tiny_llama(tmp_path / "tiny.gguf", context=4096)) as running:
        running.llm.prompts = dataclasses.replace(running.llm.prompts, template=template)
        n_calls = 0
        for seed in range(12):
            found = running.client().chat.completions.create(
                model="tiny", messages=MESSAGES, tools=TOOLS, response_format=schema, seed=seed, max_tokens=300, **blank
            )
            message = found.choices[0].message
            n_calls += len(message.tool_calls or ())
            if not message.tool_calls:
                jsonschema.validate(json.loads(message.content), RAIN)
        assert n_calls
