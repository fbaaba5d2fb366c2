"""What real clients send in agents' loops: every request is answered, and no call or result is lost on the way.

Against the server over HTTP; and against chat templates: built-in ones, and those of llama.cpp where
EDGEINFER_TEST_TEMPLATES says they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.requests import ChatRequest
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.models.text.template_choice import built_in, built_in_names
from scripts.clients.compact_histories import RecordedRequest, history_file, recorded_requests
from tests.conftest import write_tiny_llama
from tests.server.client_histories import chat_of, last_of_runs, named, recorded, told_apart
from tests.server.conftest import Running, served

REQUESTS = recorded()
LIMITS = {"/v1/responses": "max_output_tokens"}
"""The field that limits an answer, where it is another than max_tokens."""
FULL = list(last_of_runs(REQUESTS))
"""Requests that have all that was said in their runs."""
RUNS = {named(one): [each for each in REQUESTS if named(each) == named(one)] for one in REQUESTS}
FOLDER = Path(os.environ.get("EDGEINFER_TEST_TEMPLATES", "/nowhere"))
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
SOURCES |= {f"built-in {name}": built_in(name).source for name in built_in_names()}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LATE, BEFORE, AFTER = "From here on, answer in German.", "Ja.", "And <b>now</b>?"
COLLECT_SYSTEM = ("DeepSeek-V3", "DeepSeek-V4", "tencent-Hy3", "Solar-Open")
"""Templates that write all system messages at the beginning themselves."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose context has room for histories, one token per character."""
    path = write_tiny_llama(tmp_path_factory.mktemp("clients") / "test-model.gguf", context=16384)
    with served(path) as running:
        yield running


def post(http: httpx.Client, path: str, headers: dict[str, str], body: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer as JSON, or the events of a stream."""
    response = http.post(path, headers=headers, content=json.dumps(body).encode())
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return [response.json()]
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    if path == "/v1/chat/completions":
        assert data.pop() == "[DONE]"
    return [json.loads(line) for line in data]


def checked_answer(path: str, body: dict[str, Any], answer: list[dict[str, Any]]) -> tuple[str, list[Any], str]:
    """The text, calls and end of an answer, which has the shape that its API says."""
    if path == "/v1/responses":
        whole = answer[-1]["response"] if body.get("stream") else answer[0]
        assert whole["object"] == "response"
        items = whole["output"]
        texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
        calls = [item for item in items if item["type"] == "function_call"]
        return "".join(texts), calls, {"completed": "stop", "incomplete": "length"}[whole["status"]]
    if path == "/v1/messages":
        return message_read(answer)
    if body.get("stream"):
        assert {event["object"] for event in answer} == {"chat.completion.chunk"}
        choices = [event["choices"][0] for event in answer if event["choices"]]
        assert bool((body.get("stream_options") or {}).get("include_usage")) is bool(answer[-1].get("usage"))
        calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls") or ()]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return text, calls, choices[-1]["finish_reason"]
    assert answer[0]["object"] == "chat.completion"
    choice = answer[0]["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


def message_read(events: list[dict[str, Any]]) -> tuple[str, list[Any], str]:
    """The text, calls and end of a streamed message."""
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    text = "".join(event["delta"].get("text", "") for event in deltas)
    begun = [each for each in events if each["type"] == "content_block_start"]
    names = {each["index"]: each["content_block"].get("name") for each in begun}
    inputs = [event for event in deltas if event["delta"]["type"] == "input_json_delta"]
    calls = [{"name": names[each["index"]], "arguments": each["delta"]["partial_json"]} for each in inputs]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    ends = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    return text, calls, ends[events[-2]["delta"]["stop_reason"]]


def schema_of(request: ChatRequest) -> dict[str, Any] | None:
    """The schema that the answer must follow, unless it calls."""
    form = request.response_format
    return None if form is None or form.json_schema is None else form.json_schema.schema_  # type: ignore[return-value]


@pytest.mark.parametrize("run", RUNS)
def test_every_request_is_answered(server: Running, run: str) -> None:
    for sent in RUNS[run]:
        check_answered(server.http(), sent, chat_of(sent))


def check_answered(http: httpx.Client, sent: RecordedRequest, chat: ChatRequest) -> None:
    """A request is answered with JSON or a stream of its API, with calls and answers that follow their schemas."""
    body, schema = {**sent.body, "seed": 3}, schema_of(chat)
    is_forced = chat.tool_choice not in (None, "auto", "none") and sent.scene != "allowed"
    if not is_forced:
        limit = LIMITS.get(sent.path, "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens")
        body[limit] = 12 if schema is None else 60
    text, calls, reason = checked_answer(sent.path, body, post(http, sent.path, sent.headers, body))
    tools = {tool.function.name: tool.function.parameters for tool in chat.tools or ()}
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), tools[call["name"]] or {"type": "object"})
    assert calls or not is_forced
    if schema is not None and not calls:
        jsonschema.validate(json.loads(text), schema)
    assert reason in ("stop", "length", "tool_calls")


CODING = [one for one in RUNS if one.endswith("-coding-stream")]


@pytest.mark.parametrize("run", CODING)
def test_coding_agents_find_what_was_read_before(server: Running, run: str) -> None:
    """Although lines at the beginning of what some send change with every request."""
    http, before = server.http(), 0
    agents = [sent for sent in RUNS[run] if sent.body.get("tools")]
    turns = [sent for sent in agents if instructions_of(sent) == instructions_of(agents[0])]  # others: titles, memory
    for number, sent in enumerate(turns):
        text = json.dumps(sent.body, ensure_ascii=False)
        changed = text.replace("cc_entrypoint=", f"cch={number:05x}; cc_entrypoint=")
        body = {**json.loads(changed), LIMITS.get(sent.path, "max_tokens"): 1, "stream": False}
        usage = http.post(sent.path, json=body).json()["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        cached = usage.get("cache_read_input_tokens", details.get("cached_tokens"))
        assert cached >= 0.9 * before
        before = usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    assert before > 1000
    assert len(turns) >= 3


def instructions_of(sent: RecordedRequest) -> Any:
    """What a request says before the conversation."""
    return sent.body.get("system") or (sent.body.get("messages") or sent.body["input"])[0]


def test_the_model_is_told_every_call_and_result(server: Running) -> None:
    """As the server renders them, by a template that knows no functions."""
    http = server.http()
    for sent in FULL:
        chat = chat_of(sent)
        tools = [tool.model_dump(exclude_none=True) for tool in chat.tools or ()]
        told, marks = told_apart(messages_of(chat.messages))
        body = {"messages": told, **({"tools": tools} if tools else {})}
        prompt = http.post("/apply-template", json=body).json()["prompt"]
        assert [mark for mark in marks if mark not in prompt] == [], named(sent)


@pytest.mark.parametrize("name", SOURCES)
def test_templates_are_told_every_call_and_result(tokenizer: Tokenizer, name: str) -> None:
    prompts = Prompts(tokenizer, ChatTemplate({"default": SOURCES[name]}, SPECIAL), 1 << 20)
    for sent in FULL:
        chat = chat_of(sent)
        tools = [tool.model_dump(exclude_none=True) for tool in chat.tools or ()]
        told, marks = told_apart(messages_of(chat.messages))
        marks += [message["content"].strip() for message in told if message["role"] in ("system", "user", "developer")]
        text = prompts.render(told, tools)
        missing = [mark for mark in marks if mark not in text and json.dumps(mark)[1:-1] not in text]
        assert missing == [], f"{named(sent)}: {text}"
        if LATE in marks and not any(part in name for part in COLLECT_SYSTEM):
            assert text.rindex(BEFORE) < text.index(LATE) < text.rindex(AFTER), f"{named(sent)}: {text}"


def test_all_clients_and_scenes_are_there() -> None:
    assert len({sent.client for sent in REQUESTS}) == 10
    roles = {message.role for sent in FULL for message in chat_of(sent).messages}
    assert roles == {"system", "developer", "user", "assistant", "tool"}
    texts = json.dumps([sent.body for sent in REQUESTS])
    for said in ('"content": null', '"arguments": ""', "reasoning_content", '"type": "reasoning"', "allowed_tools"):
        assert said in texts


def test_compact_files_have_every_request_in_full() -> None:
    tools, other = [{"type": "function", "function": {"name": "a"}}], []
    bodies = [
        {"messages": [{"role": "user", "content": "one"}], "tools": tools, "tool_choice": "required"},
        {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": None}], "tools": tools},
        {"messages": [{"role": "user", "content": "two"}], "tools": other, "stop": ["x"]},
        {"messages": "no list", "temperature": 0},
    ]
    whole = [{"path": "/v1/x", "headers": {"accept": "*/*"}, "body": body} for body in bodies]
    streamed = [{**each, "body": {**each["body"], "stream": True}} for each in whole]
    text = history_file("client 1.0", {("s", "whole"): whole, ("s", "stream"): streamed, ("t", "stream"): whole[1:]})
    found = list(recorded_requests(text))
    assert [each.body for each in found] == [each["body"] for each in (*whole, *streamed, *whole[1:])]
    assert [(each.scene, each.mode, each.number) for each in found[3:6]] == [
        ("s", "whole", 3),
        ("s", "stream", 0),
        ("s", "stream", 1),
    ]
