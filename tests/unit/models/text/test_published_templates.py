"""Published chat templates against Jinja as `transformers` sets it up; read from where EDGEINFER_TEST_TEMPLATES says.

The folder is `models/templates` of llama.cpp's sources. None of them is part of this project.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text import ChatTemplate
from edgeinfer.models.text.message import Message
from edgeinfer.models.text.message_forms import first_form
from edgeinfer.models.text.special_tokens import MarkMatcher
from edgeinfer.models.text.written_marks import WrittenMarks
from tests.unit.models.text.jinja_judge import TODAY, render_unguarded

FOLDER = Path(os.environ.get("EDGEINFER_TEST_TEMPLATES", "/nowhere"))
PATHS = sorted(FOLDER.glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The <weather> & more in «Köln»",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "a city"},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}


def call(identity: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "What is the weather, <b>you</b>?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = call("call00001", "weather", {"city": "Köln", "days": [1, 2]})
TIMED = call("call00002", "clock", {})
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"degrees": 5}'}
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": ([USER], {}),
    "turns": ([USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "And 🦙 now?"}], {}),
    "no prompt": ([USER, {"role": "assistant", "content": "Hello!"}], {"add_generation_prompt": False}),
    "system": ([SYSTEM, USER], {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, USER], {}),
    "tools": ([SYSTEM, USER], {"tools": [WEATHER, CLOCK]}),
    "no system and tools": ([USER], {"tools": [WEATHER]}),
    "result": (
        [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [ASKED]}, RESULT],
        {"tools": [WEATHER, CLOCK]},
    ),
    "null": (
        [USER, {"role": "assistant", "content": None, "tool_calls": [ASKED]}, RESULT],
        {"tools": [WEATHER, CLOCK]},
    ),
    "two calls": (
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [ASKED, TIMED]},
            RESULT,
            {"role": "tool", "tool_call_id": "call00002", "name": "clock", "content": "noon"},
        ],
        {"tools": [WEATHER, CLOCK]},
    ),
    "calls without tools": ([USER, {"role": "assistant", "content": "", "tool_calls": [ASKED]}, RESULT], {}),
    "no user": ([SYSTEM, {"role": "assistant", "content": "", "tool_calls": [ASKED]}, RESULT], {"tools": [WEATHER]}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]}], {}),
    "thoughts": ([USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "why"}, USER], {}),
    "thinking": ([USER], {"enable_thinking": True}),
    "not thinking": ([USER], {"enable_thinking": False}),
}


def judged(source: str, chat: list[dict[str, Any]], variables: dict[str, Any]) -> str | None:
    """What Jinja makes of the first form that it takes and tells in full.

    None if it takes none, as where a template changes its own lists or writes what a filter made as JSON: llama.cpp
    allows both.
    """
    if "developer" not in source:
        chat = [{**message, "role": message["role"].replace("developer", "system")} for message in chat]

    def render(messages: Sequence[Message], scope: Mapping[str, object]) -> str:
        told = [message.as_mapping() for message in messages]
        try:
            return render_unguarded(source, messages=told, documents=None, **{**SPECIAL, **scope})
        except Exception as reason:
            raise BadTemplate(str(reason)) from None

    try:
        return first_form([Message.of(message) for message in chat], source, variables, TODAY, render)
    except BadTemplate:
        return None


@pytest.mark.skipif(not PATHS, reason="needs EDGEINFER_TEST_TEMPLATES")
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_text_equals_jinjas(path: Path, chat: str) -> None:
    source, (messages, options) = path.read_text(encoding="utf-8"), CHATS[chat]
    variables = {"add_generation_prompt": True, "tools": None, **options}
    template = ChatTemplate({"default": source}, SPECIAL, now=lambda: TODAY)
    expected = judged(source, messages, variables)
    found = template.rendering(messages, **variables)
    assert all(
        str(message["content"] or "").strip() in found.text for message in messages if message["role"] == "system"
    )
    if not found.system_merged and expected is not None:
        assert found.text == expected


MARK = re.compile(r"<[|｜][^<>|｜{}' ]+[|｜]>|</?[a-z_:]+>|\[/?[A-Z_]+\]|</?s>")


@pytest.mark.skipif(not PATHS, reason="needs EDGEINFER_TEST_TEMPLATES")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_marks_that_users_write_are_not_the_templates(path: Path) -> None:
    """A text with marks gives the control tokens that the same text with letters in their place gives."""
    source = path.read_text(encoding="utf-8")
    template = ChatTemplate({"default": source}, SPECIAL, now=lambda: TODAY)
    matcher = MarkMatcher({mark: number for number, mark in enumerate(sorted({*MARK.findall(source), "<s>", "</s>"}))})
    marks = WrittenMarks(matcher)

    def told(mark: str, chat: str) -> tuple[list[str], str]:
        messages, options = CHATS[chat]
        said = f"What {mark}{mark} now?"
        spoiled = [
            Message.of({**each, "content": said} if each["role"] in ("user", "tool") else each) for each in messages
        ]
        hidden = marks.hide(spoiled, options.get("tools") or (), {})
        text = template.render(hidden.messages, tools=hidden.tools or None)
        shown = hidden.stand_ins.shown(text)
        assert said in shown or json.dumps(said, ensure_ascii=False)[1:-1] in shown
        return [text[start:end] for start, end, _ in matcher.matches(text)], shown

    for chat in ("plain", "system", "result"):
        for mark in sorted(matcher.texts):
            assert told(mark, chat)[0] == told("x" * len(mark), chat)[0], mark
