"""Ollama's own client talks to the server: answers, streams, options, tools, thoughts, errors."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_schemas import OllamaChatRequest, OllamaMessage
from edgeinfer.app.server.ollama_wire import lines
from edgeinfer.app.server.requests import ChatRequest
from edgeinfer.models.text import ChatTemplate
from tests.conftest import write_tiny_llama
from tests.server.conftest import UNENCRYPTED, Running, served, written
from tests.server.test_reasoning import THINKING
from tests.server.test_tools import NAMES, TOOLS

ollama = pytest.importorskip("ollama")

MESSAGES = [{"role": "user", "content": "the rain"}]
GREEDY = {"temperature": 0, "num_predict": 12}
ROLES = ("user", "assistant")
METRICS = (
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
)
"""Documented fields of the last object of an answer (docs/api.md of Ollama)."""
LAST = {"model", "created_at", "done", "done_reason", *METRICS}


def connected(running: Running, **options: object) -> Any:
    """Ollama's client of a server."""
    return running.clients.enter_context(ollama.Client(host=running.url, verify=UNENCRYPTED, **options))


@pytest.fixture
def client(server: Running) -> Any:
    return connected(server)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose context has room for functions in words."""
    path = write_tiny_llama(tmp_path_factory.mktemp("roomy") / "tiny.gguf", context=4096)
    with served(path) as running:
        yield running


def sent(server: Running, path: str, **body: object) -> list[Record]:
    """The objects of a stream."""
    response = server.http().post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_chat_streams_what_the_documentation_shows(server: Running) -> None:
    *parts, last = sent(server, "/api/chat", messages=MESSAGES, options=GREEDY)
    assert parts
    for part in parts:
        assert set(part) == {"model", "created_at", "message", "done"}
        assert set(part["message"]) == {"role", "content"}
        assert (part["model"], part["done"], part["message"]["role"]) == ("tiny", False, "assistant")
    assert set(last) == {*LAST, "message"}
    assert (last["done"], last["done_reason"], last["message"]) == (
        True,
        "length",
        {"role": "assistant", "content": ""},
    )
    assert all(isinstance(last[name], int) and last[name] > 0 for name in METRICS)
    assert last["eval_count"] == 12
    assert last["total_duration"] >= last["load_duration"]


def test_generate_streams_what_the_documentation_shows(server: Running) -> None:
    *parts, last = sent(server, "/api/generate", prompt="the rain", options=GREEDY)
    assert all(set(part) == {"model", "created_at", "response", "done"} for part in parts)
    assert set(last) == {*LAST, "response", "context"}
    assert last["response"] == ""
    assert len(last["context"]) == last["prompt_eval_count"] + 12
    whole = server.http().post(
        "/api/generate", json={"model": "tiny", "prompt": "the rain", "options": GREEDY, "stream": False}
    )
    assert whole.headers["content-type"] == "application/json"
    assert set(whole.json()) == set(last)
    assert whole.json()["response"] == "".join(part["response"] for part in parts)
    assert whole.json()["context"] == last["context"]


def test_the_client_gets_what_openais_gets(server: Running, client: Any) -> None:
    told = server.client().chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=12)
    whole = client.chat("tiny", MESSAGES, options=GREEDY)
    parts = list(client.chat("tiny", MESSAGES, options=GREEDY, stream=True))
    text = told.choices[0].message.content
    assert whole.message.content == text
    assert "".join(part.message.content for part in parts) == text
    assert whole.prompt_eval_count == told.usage.prompt_tokens

    async def streamed(other: Any) -> str:
        stream = await other.chat("tiny", MESSAGES, options=GREEDY, stream=True)
        return "".join([part.message.content async for part in stream])

    async def three() -> list[str]:
        async with ollama.AsyncClient(host=server.url) as other:
            return await asyncio.gather(*(streamed(other) for _ in range(3)))

    assert asyncio.run(three()) == [text] * 3


def test_a_raw_prompt_and_a_system_prompt(server: Running, client: Any) -> None:
    raw = client.generate("tiny", "the rain", raw=True, options=GREEDY)
    told = server.client().completions.create(model="tiny", prompt="the rain", temperature=0, max_tokens=12)
    assert raw.response == told.choices[0].text
    assert raw.context is None
    asked = client.generate("tiny", "the rain", system="the sun", options=GREEDY)
    chat = client.chat("tiny", [{"role": "system", "content": "the sun"}, *MESSAGES], options=GREEDY)
    assert asked.response == chat.message.content
    assert asked.prompt_eval_count > client.generate("tiny", "the rain", options=GREEDY).prompt_eval_count


def test_a_context_is_continued(server: Running, client: Any) -> None:
    first = client.generate("tiny", "the rain", options=GREEDY)
    second = client.generate("tiny", "the sun", context=first.context, options=GREEDY)
    assert second.context[: len(first.context)] == first.context
    said = server.llm.detokenize(second.context[len(first.context) : second.prompt_eval_count])
    assert said == server.llm.prompts.render([{"role": "user", "content": "the sun"}])


def test_options_are_obeyed(client: Any) -> None:
    def answer(**options: object) -> Any:
        return client.chat("tiny", MESSAGES, options={"num_predict": 16, "temperature": 1.5, **options})

    assert answer(seed=7).message.content == answer(seed=7).message.content
    assert len({answer(seed=seed).message.content for seed in range(4)}) > 1
    greedy = answer(temperature=0).message.content
    assert answer(top_k=1, seed=3).message.content == greedy
    cut = answer(temperature=0, stop=[greedy[4:6]])
    assert (cut.message.content, cut.done_reason) == (greedy[: greedy.index(greedy[4:6])], "stop")
    free = {"temperature": 0, "repeat_penalty": 1.0, "num_predict": 60}
    penalised = {answer(**{**free, "repeat_penalty": 1.9, "repeat_last_n": n}).message.content for n in (0, 64)}
    assert answer(**free).message.content in penalised  # a window of 0 turns the penalty off
    assert len(penalised) == 2
    assert answer(temperature=0, num_gpu=1, num_thread=3, num_ctx=64, no_such_option=1).message.content == greedy
    assert answer(temperature=0, typical_p=1.0, mirostat=0, tfs_z=0.0).message.content == greedy


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("chat", {"messages": MESSAGES, "options": {"mirostat": 2}}, "mirostat"),
        ("chat", {"messages": MESSAGES, "options": {"typical_p": 0.5}}, "typical_p"),
        ("chat", {"messages": MESSAGES, "options": {"temperature": "hot"}}, "options.temperature"),
        ("chat", {"messages": [{**MESSAGES[0], "images": ["aGk="]}]}, "images"),
        ("chat", {"messages": MESSAGES, "format": "xml"}, "format"),
        ("chat", {"messages": MESSAGES, "keep_alive": "soon"}, "keep_alive"),
        ("chat", {"messages": MESSAGES, "think": True}, "thinking"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "images"),
        ("generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ("generate", {"prompt": "a", "suffix": "b"}, "which a suffix needs"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, "raw"),
        ("generate", {"prompt": "a", "context": [10**6]}, "token 1000000"),
        ("copy", {"source": "tiny", "destination": "other"}, "names"),
        ("create", {"from": "tiny", "model": "other"}, "pull"),
        ("push", {"model": "tiny"}, "sends"),
        ("show", {}, "model"),
    ],
)
def test_what_is_not_done_is_refused_in_words(server: Running, path: str, body: Record, named: str) -> None:
    response = server.http().post(f"/api/{path}", json={"model": "tiny", **body} if path != "show" else body)
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert named in response.json()["error"]


def test_errors_are_those_that_the_client_knows(tiny_model: Path) -> None:
    with served(tiny_model, strict_names=True) as running:
        client = connected(running)
        with pytest.raises(ollama.ResponseError, match="there is no model 'nobody'") as caught:
            client.chat("nobody", MESSAGES)
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="nobody"):
            list(client.generate("nobody", "the rain", stream=True))
    with served(tiny_model, ServerOptions(port=0, key="secret")) as locked:
        refused = connected(locked)
        with pytest.raises(ollama.ResponseError, match="a key is needed"):
            refused.list()
        allowed = connected(locked, headers={"Authorization": "Bearer secret"})
        assert allowed.list().models


def test_an_error_in_a_stream_is_its_last_line() -> None:
    async def records() -> AsyncIterator[Record]:
        yield {"done": False}
        raise APIError(503, "it was closed")

    ended: list[str] = []

    async def done() -> None:
        ended.append("done")

    assert asyncio.run(written(lines(records(), done))) == [b'{"done":false}\n', b'{"error":"it was closed"}\n']
    assert ended == ["done"]


def test_a_format_is_followed(roomy: Running) -> None:
    client = connected(roomy)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    options = {"temperature": 1.0, "seed": 1, "num_predict": 200}
    jsonschema.validate(
        json.loads(client.chat("tiny", MESSAGES, format=schema, options=options).message.content), schema
    )
    made = client.generate("tiny", "the rain", format=schema, options=options)
    jsonschema.validate(json.loads(made.response), schema)
    assert isinstance(json.loads(client.chat("tiny", MESSAGES, format="json", options=options).message.content), dict)


def test_calls_have_arguments_as_objects(roomy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    as_chat = OllamaChatRequest.as_chat

    def forced(body: OllamaChatRequest) -> ChatRequest:
        return as_chat(body).model_copy(update={"tool_choice": "required"})

    monkeypatch.setattr(OllamaChatRequest, "as_chat", forced)
    client, options = connected(roomy), {"temperature": 1.0, "num_predict": 300}
    for seed in range(3):
        whole = client.chat("tiny", MESSAGES, tools=TOOLS, options={**options, "seed": seed})
        parts = list(client.chat("tiny", MESSAGES, tools=TOOLS, options={**options, "seed": seed}, stream=True))
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert calls == list(whole.message.tool_calls)
        assert {call.function.name for call in calls} <= NAMES
        for call in calls:  # the client sends no more of a schema than types and enumerations
            arguments = call.function.arguments
            assert call.function.name == "clock" or arguments["city"] in ("Rome", "Oslo")
            assert call.function.name == "clock" or isinstance(arguments["days"], int)
        assert parts[-1].done_reason == whole.done_reason


def test_calls_and_results_of_a_history_are_told(roomy: Running) -> None:
    history = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [{"function": {"name": "clock", "arguments": {"zone": "Rome"}}}]},
        {"role": "tool", "tool_name": "clock", "content": "noon"},
    ]
    messages = messages_of([OllamaMessage.model_validate(message).as_message() for message in history])
    text = roomy.llm.prompts.render(messages, TOOLS)
    assert all(word in text for word in ("clock", "Rome", "noon"))
    answer = connected(roomy).chat("tiny", history, tools=TOOLS, options=GREEDY)
    assert answer.prompt_eval_count > 20


def test_thoughts_are_apart(roomy: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate({"default": THINKING})
    monkeypatch.setattr(roomy.llm, "prompts", dataclasses.replace(roomy.llm.prompts, template=template))
    client = connected(roomy)
    thinking = client.chat("tiny", MESSAGES, think=True, options=GREEDY)
    assert thinking.message.thinking
    assert thinking.message.content == ""
    parts = list(client.generate("tiny", "the rain", think="low", options=GREEDY, stream=True))
    assert "".join(part.thinking or "" for part in parts) == thinking.message.thinking
    quiet = client.chat("tiny", MESSAGES, think=False, options=GREEDY)
    assert quiet.message.thinking is None
    assert quiet.message.content


def test_logprobs(server: Running, client: Any) -> None:
    told = server.client().chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=5, logprobs=True, top_logprobs=2
    )
    wanted = [(each.token, each.logprob) for each in told.choices[0].logprobs.content]
    options = {"temperature": 0, "num_predict": 5}
    whole = client.chat("tiny", MESSAGES, logprobs=True, top_logprobs=2, options=options)
    assert [(each.token, each.logprob) for each in whole.logprobs] == wanted
    parts = list(client.chat("tiny", MESSAGES, logprobs=True, top_logprobs=2, options=options, stream=True))
    streamed = [each for part in parts for each in part.logprobs or ()]
    assert [(each.token, each.logprob) for each in streamed] == wanted
    assert all(len(each.top_logprobs) == 2 for each in streamed)


def test_a_long_conversation_is_shortened_unless_that_is_refused(server: Running) -> None:
    turns = [{"role": role, "content": f"{number} " + "rain " * 20} for number in range(12) for role in ROLES]
    body = {"model": "tiny", "messages": [*turns, *MESSAGES], "options": GREEDY, "stream": False}
    answer = server.http().post("/api/chat", json=body).json()
    assert answer["done"]
    assert answer["notices"]
    refused = server.http().post("/api/chat", json={**body, "truncate": False})
    assert refused.status_code == 400
    assert "context" in refused.json()["error"]


def test_bodies_need_no_content_type(server: Running) -> None:
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "options": GREEDY, "stream": False}).encode()
    for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
        response = server.http().post("/api/chat", content=body, headers={"Content-Type": kind} if kind else {})
        assert response.json()["done"], response.text
    broken = server.http().post("/api/chat", content=b"{")
    assert broken.status_code == 400
    assert "no JSON" in broken.json()["error"]
