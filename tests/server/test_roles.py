"""Developers' messages and late system messages, in templates that know neither."""

from __future__ import annotations

import dataclasses

import pytest

from edgeinfer.models.text import ChatTemplate
from tests.server.conftest import Running

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
LATE = [
    {"role": "developer", "content": "one"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "three"},
    {"role": "system", "content": "four"},
    {"role": "user", "content": "five"},
]


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (PLAIN, "<system>one<user>two<assistant>three<system>four<user>five<assistant>"),
        (PLAIN + "{# developer #}", "<developer>one<user>two<assistant>three<system>four<user>five<assistant>"),
    ],
    ids=["without developers", "with them"],
)
def test_roles_stay_in_place(server: Running, monkeypatch: pytest.MonkeyPatch, source: str, prompt: str) -> None:
    template = ChatTemplate({"default": source})
    monkeypatch.setattr(server.llm, "prompts", dataclasses.replace(server.llm.prompts, template=template))
    found = server.http().post("/apply-template", json={"messages": LATE})
    assert found.json()["prompt"] == prompt
    answered = server.http().post("/v1/chat/completions", json={"messages": LATE, "max_tokens": 1})
    assert answered.status_code == 200
