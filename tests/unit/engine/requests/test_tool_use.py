"""How the model is told of functions: by its template, or in words where that has another form of calls than we do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.requests import ChatMessage
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from tests.unit.engine.requests.constrained.test_guidance import byte_level

TEMPLATES = Path(__file__).parents[2] / "models/text/templates"
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
IN_TURNS = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('in turns') }}{% endif %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls %}CALL{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call>\n<function={{ call.function.name }}>\n</function>\n</tool_call>",
        "<call>{{ call.function.name }}</call>",
    ],
)
def test_templates_of_a_form_of_their_own_are_told_in_words(call: str) -> None:
    template = ChatTemplate({"default": IN_TURNS.replace("CALL", call)}, {})
    use = ToolUse.of(TOOLS, "auto", True, template)
    assert use.in_words
    assert use.form == TOOL_FORMATS.get("hermes")
    calls = {"tool_calls": [{"function": {"name": "clock", "arguments": "{}"}}] * 2}
    turns = [Message("user", "?"), Message("assistant", "", calls), Message("tool", "noon"), Message("tool", "one")]
    text = template.render(use.messages(turns), calls_in_words=True)
    assert text.count('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>') == 2
    assert text.endswith("<tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>")


def test_calls_that_a_template_leaves_out_are_in_the_text() -> None:
    """LFM2's first template tells functions, and counts on calls in contents; what is written is what is read."""
    source = "<|tool_list_start|>{{ tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    template = ChatTemplate({"default": source}, {})
    use = ToolUse.of(TOOLS, "auto", True, template)
    assert not use.in_words
    arguments = {"at": "it's 5", "days": [1, 2], "now": True}
    calls = {"tool_calls": [{"function": {"name": "clock", "arguments": json.dumps(arguments)}}] * 2}
    turns = [Message("user", "?"), Message("assistant", None, calls), Message("tool", "noon")]
    text = template.render(use.messages(turns), tools=TOOLS)
    reader = use.reader()
    said = text.partition("assistant: ")[2].partition("\n")[0]
    assert reader.push(said) + reader.finish() == ""
    assert [json.loads(call.arguments) for call in reader.calls] == [arguments, arguments]


@pytest.mark.parametrize("name", ["qwen25", "smollm2"])
@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_arguments_of_earlier_calls_reach_templates_as_objects(name: str, arguments: object) -> None:
    template = ChatTemplate({"default": (TEMPLATES / f"{name}.jinja").read_text()}, {})
    use = ToolUse.of(TOOLS, "auto", True, template)
    calls = [{"type": "function", "function": {"name": "clock", "arguments": arguments}}]
    told = use.messages(
        [Message("user", "?"), Message("assistant", "", {"tool_calls": calls}), Message("tool", "noon")]
    )
    assert '{"name": "clock", "arguments": {"a": 1}}' in template.render(told, tools=None if use.in_words else TOOLS)


def test_they_do_where_no_functions_are_given_any_more(tiny_model: Path) -> None:
    source = "{% for message in messages %}{% for call in message.tool_calls %}{{ call.function.arguments.a }}"
    template = ChatTemplate({"default": source + "{% endfor %}{% endfor %}"}, {})
    calls = [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"a": "noon"}'}}]
    messages = messages_of([ChatMessage.model_validate({"role": "assistant", "content": None, "tool_calls": calls})])
    with load(tiny_model, device="null") as llm:
        prompts = replace(llm.prompts, template=template)
        assert prompts.render([*messages, {"role": "user", "content": "?"}]) == "noon"


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ({"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}, None),
        ({"const": (1 << 53) + 1}, "it wants the number 9007199254740993"),
    ],
)
def test_numbers_of_arguments_are_kept_or_refused(argument: dict[str, object], problem: str | None) -> None:
    parameters = {"type": "object", "properties": {"at": argument}, "required": ["at"]}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": parameters}}]
    tokenizer = byte_level()
    guidance, template = Guidance(tokenizer), ChatTemplate({"default": IN_TURNS}, {})
    required, free = (ToolUse.of(tools, choice, True, template) for choice in ("required", "auto"))
    if problem is None:
        found = required.constraint(guidance, tokenizer)
        call = '<tool_call>\n{"name": "clock", "arguments": {"at": -9200000000000000000}}\n</tool_call>'
        for token in tokenizer.encode(call, add_special=False):
            assert found.allows(token)
            found.accept(token)
        assert found.allows(2)
    else:
        with pytest.raises(BadSetting, match=problem):
            required.constraint(guidance, tokenizer)
        assert free.constraint(guidance, tokenizer) is None
    assert tools[0]["function"]["parameters"] == parameters


def test_without_llguidance_only_what_must_be_called_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    parameters = {"type": "object", "properties": {"at": {"const": (1 << 53) + 1}}}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": parameters}}]
    tokenizer, template = byte_level(), ChatTemplate({"default": IN_TURNS}, {})
    required, free = (ToolUse.of(tools, choice, True, template) for choice in ("required", "auto"))
    assert free.constraint(Guidance(tokenizer), tokenizer) is None
    with pytest.raises(BadSetting, match="pip install"):
        required.constraint(Guidance(tokenizer), tokenizer)
