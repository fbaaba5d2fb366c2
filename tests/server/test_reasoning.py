"""Thoughts beside answers: reasoning_content, whole and in chunks; a limit; a schema after the thoughts."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edgeinfer.models.text import ChatTemplate
from tests.server.conftest import Running

CHAT = "/v1/chat/completions"
THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
ASKED = {"messages": [{"role": "user", "content": "the rain"}], "temperature": 0, "max_tokens": 40}


@pytest.fixture
def thinker(server: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    template = ChatTemplate({"default": THINKING})
    monkeypatch.setattr(server.llm, "prompts", dataclasses.replace(server.llm.prompts, template=template))
    return server


def answer(server: Running, **more: object) -> dict[str, str]:
    """The message of a whole answer, after checking that a stream says the same."""
    http = server.http()
    message = http.post(CHAT, json={**ASKED, **more}).json()["choices"][0]["message"]
    streamed = {"content": "", "reasoning_content": ""}
    for line in http.post(CHAT, json={**ASKED, **more, "stream": True}).text.splitlines():
        if line.startswith("data: {"):
            for name, text in json.loads(line[6:])["choices"][0]["delta"].items():
                if name in streamed and text:
                    streamed[name] += text
    assert streamed == {"content": message["content"], "reasoning_content": message.get("reasoning_content", "")}
    return message


def test_an_answer_that_only_thinks(thinker: Running) -> None:
    message = answer(thinker)
    assert message["content"] == ""
    assert message["reasoning_content"]


def test_a_limit_makes_it_answer(thinker: Running) -> None:
    message = answer(thinker, thinking_budget_tokens=5)
    assert message["content"]
    assert 0 < len(message["reasoning_content"]) < 60
    assert "</think>" not in message["content"] + message["reasoning_content"]


@pytest.mark.parametrize(
    "off", [{"enable_thinking": False}, {"reasoning_effort": "none"}, {"thinking_budget_tokens": 0}]
)
def test_thinking_is_turned_off(thinker: Running, off: dict[str, object]) -> None:
    message = answer(thinker, **off)
    assert message["content"]
    assert "reasoning_content" not in message


def test_a_schema_holds_after_the_thoughts(thinker: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    message = answer(thinker, response_format=format_, max_tokens=160, thinking_budget_tokens=5)
    assert isinstance(json.loads(message["content"])["a"], bool)
    assert message["reasoning_content"]
    cut = answer(thinker, response_format=format_, max_tokens=160)
    assert isinstance(json.loads(cut["content"])["a"], bool)


def test_python_has_the_thoughts_too(thinker: Running) -> None:
    stream = thinker.llm.chat(ASKED["messages"], max_tokens=30, temperature=0, max_thought_tokens=4)
    text = stream.read()
    assert stream.reasoning
    assert stream.content
    assert text.partition("</think>")[2].strip() == stream.content.strip()
