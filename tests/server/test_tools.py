"""Calls of functions: told to the model, forced to their schemas, found in what it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gguf
import jsonschema
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.app.server.streaming import ContentReader
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.call_grammars import tool_grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.earlier_calls import calls_in_words, with_instructions
from edgeinfer.models.text.tool_formats import TOOL_FORMATS, format_of
from edgeinfer.models.text.tools import ToolCall, ToolReader, functions_of
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
TOOLS = [WEATHER, CLOCK]
NAMES = frozenset({"weather", "clock"})
MESSAGES = [{"role": "user", "content": "the weather in Rome"}]
TEMPLATES = Path(__file__).parents[1] / "unit/models/text/templates"
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}; {"name": "clock", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, '
    '{"name": "clock", "arguments": {}}]',
    "phi4": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, '
    '{"name": "clock", "arguments": {}}]<|/tool_call|>',
}
LISTED = WRITTEN["mistral"].removeprefix("[TOOL_CALLS]")
PLANNED = LISTED.replace('"name"', '"tool_name"').replace('"arguments"', '"parameters"')
WRITTEN |= {
    "apriel": f"<tool_calls>{LISTED}</tool_calls>",
    "command_r": f"Action:\n```json\n{PLANNED}```",
    "command_r7b": f"<|START_ACTION|>{PLANNED}<|END_ACTION|>",
    "firefunction": f"functools{LISTED}",
    "gigachat": '<|function_call|>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n'
    '<|function_call|>{"name": "clock", "arguments": {}}',
    "gigachat_roles": '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Rome", '
    '"days": 2}}<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "clock", "arguments": {}}',
    "granite": f"<|tool_call|>{LISTED}",
    "nemotron_v2": f"<TOOLCALL>{LISTED}</TOOLCALL>",
}
CALLS = [ToolCall("weather", '{"city": "Rome", "days": 2}'), ToolCall("clock", "{}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose context has room for functions in words."""
    path = write_tiny_llama(tmp_path_factory.mktemp("tools") / "tiny.gguf", context=4096)
    with served(path) as running:
        yield running


def read(name: str, text: str, cuts: list[int]) -> tuple[str, list[ToolCall]]:
    reader, content, last = ToolReader(TOOL_FORMATS.get(name), NAMES), "", 0
    for cut in sorted(min(cut, len(text)) for cut in cuts):
        content, last = content + reader.push(text[last:cut]), cut
    content += reader.push(text[last:])
    return content + reader.finish(), reader.calls


def test_there_is_a_sample_for_every_format() -> None:
    assert set(WRITTEN) == {name for name, form in TOOL_FORMATS.entries().items() if form.read is None}


@given(st.sampled_from(sorted(WRITTEN)), st.lists(st.integers(0, 200)), st.booleans())
def test_calls_are_found_however_the_text_arrives(name: str, cuts: list[int], said: bool) -> None:
    before = "I will look. " if said and name != "llama3" else ""
    content, calls = read(name, before + WRITTEN[name], cuts)
    assert (content, calls) == (before.rstrip(), CALLS)


@given(st.sampled_from(sorted(WRITTEN)), st.text(), st.lists(st.integers(0, 60)))
def test_text_that_calls_nothing_is_all_content(name: str, text: str, cuts: list[int]) -> None:
    assert read(name, text, cuts) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no object</tool_call>",
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "argum',
        "a <tool_call",
        "<tool_call>[1, 2]</tool_call>",
        '<tool_call>\n{"name": }\n</tool_call>',
    ],
)
def test_what_only_looks_like_a_call_is_not_lost(text: str) -> None:
    for cuts in ([], list(range(len(text)))):
        assert read("hermes", text, cuts) == (text, [])


def test_a_call_without_its_end_counts(tokenizer: Tokenizer) -> None:
    text = '<tool_call>\n{"name": "clock", "arguments": {}}'
    assert read("hermes", text, []) == ("", [ToolCall("clock", "{}")])


@pytest.mark.parametrize("name", sorted(WRITTEN))
@pytest.mark.parametrize("required", [True, False])
def test_grammars_allow_what_families_write_and_nothing_else(tokenizer: Tokenizer, name: str, required: bool) -> None:
    grammar = tool_grammar(
        TOOL_FORMATS.get(name), functions_of(TOOLS), tokenizer.marks, required=required, several=True
    )

    def n_allowed(text: str) -> tuple[int, bool]:
        constraint, tokens = Guidance(tokenizer).constraint(grammar), tokenizer.encode(text, add_special=False)
        n = constraint.n_allowed(tokens)
        for token in tokens[:n]:
            constraint.accept(token)
        return n - len(tokens), constraint.allows(2)

    assert n_allowed(WRITTEN[name]) == (0, True)
    assert n_allowed(WRITTEN[name].replace("Rome", "Bonn"))[0] < 0
    assert n_allowed("only text") == ((0, True) if not required else (-len(tokenizer.encode("only text")), False))


def test_families_are_told_by_their_templates() -> None:
    found = {path.stem: format_of(path.read_text()) for path in sorted(TEMPLATES.glob("*.jinja"))}
    assert {name: each and each[0] for name, each in found.items()} == {
        "gemma2": None,
        "llama3": "llama3",
        "mistral": None,
        "phi3": None,
        "qwen25": "hermes",
        "qwen3": None,
        "smollm2": None,
    }


def test_a_template_that_knows_functions_gets_them() -> None:
    template = ChatTemplate({"default": (TEMPLATES / "qwen25.jinja").read_text()}, {})
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {}}}],
    }
    text = template.render([*MESSAGES, called, {"role": "tool", "content": "noon"}], tools=TOOLS)
    assert '{"name": "clock", "arguments": {}}' in text
    assert "<tool_response>\nnoon\n</tool_response>" in text


def test_a_template_that_does_not_is_told_in_words() -> None:
    messages = [
        Message("system", "Be kind."),
        Message("user", "what time is it?"),
        Message("assistant", None, {"tool_calls": [{"function": {"name": "clock", "arguments": "{}"}}]}),
        Message("tool", "noon"),
    ]
    told = calls_in_words(with_instructions(messages, TOOLS))
    assert told[0].text.startswith("Be kind.")
    assert '"weather"' in told[0].text
    assert told[2].text == '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    assert (told[3].role, told[3].text) == ("user", "<tool_response>\nnoon\n</tool_response>")
    assert with_instructions(messages[1:], TOOLS)[0].role == "system"


def check(call: object) -> None:
    assert call.type == "function"
    assert call.id.startswith("call_")
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_that_must_be_made_follow_their_schemas(server: Running, choice: object) -> None:
    """The model's weights are random: nothing but the grammar makes it call anything."""
    for seed in range(3):
        found = server.client().chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=choice, seed=seed, temperature=1.2, max_tokens=300
        )
        choice_found = found.choices[0]
        assert choice_found.message.tool_calls
        assert choice_found.finish_reason in ("tool_calls", "length")
        assert choice_found.message.content is None
        for call in choice_found.message.tool_calls:
            check(call)
            assert choice == "required" or call.function.name == "weather"


def test_calls_are_streamed_whole(server: Running) -> None:
    options = {"tools": TOOLS, "tool_choice": "required", "seed": 2, "temperature": 1.2, "max_tokens": 300}
    whole = server.client().chat.completions.create(model="tiny", messages=MESSAGES, **options)
    calls, reasons = [], []
    for chunk in server.client().chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **options):
        calls += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert reasons[-1] == whole.choices[0].finish_reason
    assert [call.index for call in calls] == list(range(len(calls)))
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        (call.function.name, call.function.arguments) for call in whole.choices[0].message.tool_calls
    ]


LONG = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 30, "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
"""A call of this is cut by short answers."""


@pytest.mark.parametrize("max_tokens", [25, 160])
def test_a_stream_tells_what_a_whole_answer_does(server: Running, max_tokens: int) -> None:
    for seed in range(4):
        options = {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": LONG}],
            "tool_choice": "required",
            "max_tokens": max_tokens,
            "seed": seed,
            "logprobs": True,
        }
        whole = server.client().chat.completions.create(model="tiny", **options).choices[0]
        content, calls, told = "", [], []
        for chunk in server.client().chat.completions.create(model="tiny", stream=True, **options):
            part = chunk.choices[0]
            content += part.delta.content or ""
            calls += [call.function.arguments for call in part.delta.tool_calls or ()]
            told += [] if part.logprobs is None else part.logprobs.content
        assert content == (whole.message.content or "")
        assert calls == [call.function.arguments for call in whole.message.tool_calls or ()]
        assert told == whole.logprobs.content


def test_a_streamed_response_tells_what_a_whole_one_does(server: Running) -> None:
    asked = {
        "input": "the weather",
        "tools": [{"type": "function", **LONG}],
        "tool_choice": "required",
        "max_output_tokens": 25,
        "temperature": 0,
    }
    whole = server.client().responses.create(model="tiny", **asked)
    with server.client().responses.stream(model="tiny", **asked) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != ""
    assert events[-1].response.output_text == whole.output_text
    assert "response.output_item.done" in [event.type for event in events]


@given(st.lists(st.sampled_from([*WRITTEN["hermes"].split("\n"), " ", "\n", "I will look", "<tool"])))
def test_white_space_beside_calls_is_no_content(pieces: list[str]) -> None:
    said, text = ContentReader(SimpleNamespace(reader=ToolReader(TOOL_FORMATS.get("hermes"), NAMES))), "".join(pieces)
    streamed = "".join([*map(said.push, pieces), said.finish()])
    content, calls = read("hermes", text, [])
    assert list(said.calls) == calls
    assert streamed == ("" if calls and not content.strip() else content)


def test_one_call_at_a_time(server: Running) -> None:
    for seed in range(4):
        found = server.client().chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=[CLOCK],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
            max_tokens=200,
        )
        assert len(found.choices[0].message.tool_calls) == 1
        assert found.choices[0].finish_reason == "tool_calls"


def test_a_conversation_goes_on_after_a_call(server: Running) -> None:
    first = server.client().chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=[CLOCK],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    message = first.choices[0].message
    turn = [*MESSAGES, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}]
    second = server.client().chat.completions.create(model="tiny", messages=turn, tools=[CLOCK], max_tokens=8)
    assert second.choices[0].message.content is not None
    prompt = server.http().post("/apply-template", json={"messages": MESSAGES, "tools": [CLOCK]}).json()["prompt"]
    assert '"clock"' in prompt


def test_wrong_tools_are_refused(server: Running) -> None:
    client = server.client()
    for options, reason in (
        ({"tools": [CLOCK, CLOCK]}, "two tools"),
        ({"tools": [{"type": "function", "function": {"name": "auto"}}]}, "cannot be called 'auto'"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice is 'other'",
        ),
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": [CLOCK], "extra_body": {"grammar": 'root ::= "a"'}}, "not both"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason):
            client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_the_python_api_gives_calls_too(server: Running, seed: int) -> None:
    stream = server.llm.chat(MESSAGES, tools=TOOLS, seed=seed, temperature=1.5, max_tokens=30)
    text = "".join(stream)
    if "<tool_call>" not in text:
        assert (stream.content, stream.tool_calls) == (text, ())


def test_calls_written_by_tokens_that_texts_do_not_show(tiny_model: Path, tmp_path: Path) -> None:
    """As Mistral's: the token that begins calls is a control token."""
    reader = gguf.GGUFReader(tiny_model)
    path = tmp_path / "mistral-like.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, part in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture")):
            continue
        value = part.contents()
        if name == "tokenizer.ggml.tokens":
            value = ["[TOOL_CALLS]" if token == "<|im_start|>" else token for token in value]
        if name == "tokenizer.chat_template":
            value = "{% for message in messages %}{{ message.content }}{% endfor %}{# [TOOL_CALLS] #}"
        kind = part.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with load(path, spec="off") as llm:
        stream = llm.chat(MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=300, temperature=1.2, seed=3)
        stream.read()
        assert stream.tool_calls
        assert all(call.name in NAMES for call in stream.tool_calls)
        with pytest.raises(BadSetting, match="tool_choice"):
            llm.chat(MESSAGES, tools=TOOLS, tool_choice="nothing")
