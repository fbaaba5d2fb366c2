"""Texts with half a surrogate pair, as clients make them that cut an emoji in two: no door of the server fails."""

from __future__ import annotations

import json

import pytest

from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.objects import json_line
from tests.server.conftest import Running

HALF = "\ud83e"
SAY = [{"role": "user", "content": "the rain"}]
PLAIN = {"model": "tiny", "messages": SAY, "max_tokens": 1, "max_output_tokens": 1, "n_predict": 1}
OPTIONS = {"options": {"num_predict": 1}, "stream": False}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_what_is_told_back_is_escaped(server: Running, is_streamed: bool) -> None:
    body = {"input": "Hi", "max_output_tokens": 1, "metadata": {"a": f"b{HALF}"}, "stream": is_streamed}
    answer = server.http().post("/v1/responses", content=json.dumps(body))
    assert answer.status_code == 200
    assert b'"b\\ud83e"' in answer.content.replace(b'": "', b'":"')
    assert "response.failed" not in answer.text


def test_json_with_halves_is_read_as_it_was() -> None:
    record = {"a": [f"b{HALF}", "é"], HALF: 1}
    for data in (json_line(record), JSONAnswer(record).body):
        assert json.loads(bytes(data).decode("utf-8")) == record


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF}]}),
        ("/v1/chat/completions", {"stop": [HALF]}),
        ("/v1/chat/completions", {"grammar": f'root ::= "{HALF}"'}),
        ("/v1/chat/completions", {"model": HALF}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f", "description": HALF}}]}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"a": HALF}}),
        ("/v1/chat/completions", {"response_format": {"type": HALF}}),
        ("/v1/chat/completions", {"temperature": HALF}),
        ("/v1/completions", {"prompt": HALF}),
        ("/v1/completions", {"prompt": HALF, "echo": True}),
        ("/v1/messages", {"system": HALF}),
        ("/v1/messages", {"stop_sequences": [HALF]}),
        ("/v1/messages/count_tokens", {"system": HALF}),
        ("/v1/responses", {"input": HALF}),
        ("/v1/responses", {"input": "Hi", "instructions": HALF}),
        ("/v1/responses", {"input": "Hi", "previous_response_id": HALF}),
        ("/completion", {"prompt": HALF}),
        ("/infill", {"input_prefix": HALF, "input_suffix": ""}),
        ("/tokenize", {"content": HALF, "with_pieces": True}),
        ("/apply-template", {"messages": [{"role": "user", "content": HALF}]}),
        ("/v1/embeddings", {"input": HALF}),
        ("/v1/rerank", {"query": HALF, "documents": [HALF]}),
        ("/api/generate", {"prompt": HALF, **OPTIONS}),
        ("/api/chat", {"messages": [{"role": "user", "content": HALF}], **OPTIONS}),
        ("/api/show", {"model": HALF}),
        ("/api/pull", {"model": HALF}),
        ("/models/load", {"model": HALF}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_no_door_fails(server: Running, path: str, fields: dict[str, object]) -> None:
    answer = server.http().post(path, content=json.dumps({**PLAIN, **fields}))
    assert answer.status_code < 500 or answer.status_code == 501, answer.text
    json.loads(answer.content.decode("utf-8"))


def test_an_item_with_half_a_pair_is_kept_and_told(server: Running) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    returned = {"type": "function_call_output", "call_id": f"c{HALF}", "output": "1"}
    say = {"type": "message", "role": "user", "content": "Hi"}
    body = {"input": [say, call, returned], "max_output_tokens": 1}
    answer = server.http().post("/v1/responses", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    kept = server.http().get(f"/v1/responses/{answer.json()['id']}/input_items")
    assert f"c{HALF}" in [item.get("call_id") for item in json.loads(kept.content)["data"]]
