"""Thoughts beside answers: reasoning_content, whole and in chunks; a limit; a schema after the thoughts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from edgeinfer.engine.requests.request import thinking_variables
from edgeinfer.models.text import ChatTemplate
from tests.server.conftest import Running, served

CHAT = "/v1/chat/completions"
THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
ASKED = {"messages": [{"role": "user", "content": "the rain"}], "temperature": 0, "max_tokens": 40}


@pytest.fixture
def thinker(server: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    give_template(server, monkeypatch)
    return server


def give_template(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate({"default": THINKING})
    monkeypatch.setattr(running.llm, "prompts", dataclasses.replace(running.llm.prompts, template=template))


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


def test_thinking_off_holds_where_a_request_does_not_say(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tiny_model, defaults={"template_variables": thinking_variables(False)}) as running:
        give_template(running, monkeypatch)
        assert "reasoning_content" not in answer(running)
        assert prompt(running).endswith("</think>\n\n")
        for on in (
            {"enable_thinking": True},
            {"reasoning_effort": "low"},
            {"chat_template_kwargs": {"thinking": True}},
        ):
            assert answer(running, **on)["reasoning_content"]
            assert prompt(running, **on).endswith("<think>\n")


def test_a_limit_holds_where_a_request_does_not_say(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tiny_model, defaults={"max_thought_tokens": 5}) as running:
        give_template(running, monkeypatch)
        assert answer(running)["content"]
        assert not answer(running, thinking_budget_tokens=-1)["content"]


def prompt(running: Running, **more: object) -> str:
    """What /apply-template says."""
    body = {"messages": ASKED["messages"], **more}
    return str(running.http().post("/apply-template", json=body).json()["prompt"])


def test_python_has_the_thoughts_too(thinker: Running) -> None:
    stream = thinker.llm.chat(ASKED["messages"], max_tokens=30, temperature=0, max_thought_tokens=4)
    text = stream.read()
    assert stream.reasoning
    assert stream.content
    assert text.partition("</think>")[2].strip() == stream.content.strip()
