"""What templates are given of tools that read no list of them, and of calls that they would leave out."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.models.text import ChatTemplate
from edgeinfer.models.text.message_forms import forms_of_tools

CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"properties": {"zone": {"type": "string"}}}}}


def test_a_text_of_functions_and_the_date_without_the_time() -> None:
    first, second, *others = forms_of_tools({"tools": [CLOCK]}, datetime(2026, 11, 27, 14, 11))
    assert first == {}
    assert second["datetime"] == "Nov 27 2026"
    (function,) = json.loads(str(second["functions"]))
    assert (function["name"], function["description"]) == ("clock", "")
    assert [form["datetime"] for form in others] == ["Nov 27 2026"] * 2


SHORT, LONG = "a hat", "wide " * 300 + "hats"
USERS_ONLY = "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}"
IN_TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index % 2 == 1) %}{{ raise_exception('no turns') }}"
    "{% endif %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}"
)
MISTRAL = (Path(__file__).parent / "templates" / "mistral.jinja").read_text(encoding="utf-8")
"""It leaves out what the assistant says in more than 1000 characters."""


def search(*words: str) -> dict[str, Any]:
    calls = [{"function": {"name": "search", "arguments": json.dumps({"query": word})}} for word in words]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def written(word: str) -> str:
    return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{word}"}}}}\n</tool_call>'


def given(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


@pytest.mark.parametrize("in_words", [False, True])
def test_a_call_is_told_with_its_result_where_the_template_leaves_out_what_the_assistant_says(in_words: bool) -> None:
    chat = [said("user", "Hi"), search(SHORT), said("tool", "one"), search(LONG, SHORT), said("tool", "two")]
    chat += [said("tool", "three"), said("user", "And?")]
    text = ChatTemplate({"default": MISTRAL}, {"eos_token": "</s>"}).render(chat, calls_in_words=in_words)
    first = f"[INST] Hi[/INST] {written(SHORT)}</s>[INST] {given('one')}[/INST]"
    results = f"{given('two')}\n{given('three')}"
    assert text == f"{first}[INST] {written(LONG)}\n{written(SHORT)}\n{results}[/INST][INST] And?[/INST]"


def test_what_is_said_beside_a_call_that_is_left_out_stays_the_assistants() -> None:
    chat = [said("user", "Hi"), {**search(LONG), "content": "Well"}, said("user", "And?")]
    text = ChatTemplate({"default": MISTRAL}, {"eos_token": "</s>"}).render(chat)
    assert text == f"[INST] Hi[/INST] Well</s>[INST] {written(LONG)}[/INST][INST] And?[/INST]"


@pytest.mark.parametrize("template", [USERS_ONLY, IN_TURNS])
def test_a_template_of_what_users_say_gets_calls_in_the_turns_that_it_takes(template: str) -> None:
    text = ChatTemplate({"default": template}).render([said("user", "Hi"), search(SHORT), said("tool", "one")])
    assert text.startswith("[Hi")
    assert text.endswith(f"{written(SHORT)}\n{given('one')}]")


def test_a_call_that_the_template_writes_as_json_stays_where_it_is() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content | tojson if m.role == 'assistant' else m.content }};"
    chat = [said("user", "Hi"), search("é"), said("tool", "one")]
    text = ChatTemplate({"default": template + "{% endfor %}"}).render(chat)
    assert "assistant:" in text
    assert text.endswith(f";user:{given('one')};")
