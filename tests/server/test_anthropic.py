"""Anthropic's API, with its own client: messages whole and streamed, tools, thoughts, counts and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.conftest import write_tiny_llama
from tests.server.conftest import UNENCRYPTED, Running, served
from tests.server.test_reasoning import give_template

MESSAGES = [{"role": "user", "content": "in the tin"}]
GREEDY = {"temperature": 0}
ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "extra_body": GREEDY}
BODY = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, **GREEDY}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("anthropic") / "tiny.gguf", context=4096)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Running]:
    with served(tiny) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as found:
        yield found


def client_of(server: Running, key: str = "none") -> anthropic.Anthropic:
    plain = anthropic.DefaultHttpxClient(verify=UNENCRYPTED)
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, http_client=plain)


def dumped(message: anthropic.types.Message) -> list[dict[str, Any]]:
    """The blocks of a message without their ids, which differ each time."""
    return [{**block.model_dump(exclude_none=True), "id": None} for block in message.content]


def both(client: anthropic.Anthropic, **more: Any) -> anthropic.types.Message:
    """A whole message, after checking that a stream says the same."""
    whole = client.messages.create(**ASKED | more)
    with client.messages.stream(**ASKED | more) as stream:
        streamed = stream.get_final_message()
    assert dumped(streamed) == dumped(whole)
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    return whole


def test_a_message_is_that_of_a_chat(server: Running, client: anthropic.Anthropic) -> None:
    found = both(client, system="the rain")
    told = [{"role": "system", "content": "the rain"}, *MESSAGES]
    assert [block.text for block in found.content] == [server.llm.chat(told, temperature=0, max_tokens=20).read()]
    assert (found.type, found.role, found.model) == ("message", "assistant", "tiny")
    assert (found.stop_reason, found.usage.output_tokens) == ("max_tokens", 20)
    blocks = [{"type": "text", "text": "the rain", "cache_control": {"type": "ephemeral"}}]
    again = client.messages.create(**ASKED, system=blocks, metadata={"user_id": "x"})
    assert again.content == found.content
    assert again.usage.cache_read_input_tokens


def test_the_events_of_a_stream(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(**ASKED, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) <= {"content_block_delta"}
    begun, ended = events[0].message, events[-2]
    assert (begun.content, begun.stop_reason) == ([], None)
    assert begun.usage.input_tokens == ended.usage.input_tokens + ended.usage.cache_read_input_tokens
    assert (ended.delta.stop_reason, ended.usage.output_tokens) == ("max_tokens", 20)


def test_a_ping_follows_the_start(server: Running) -> None:
    lines = server.http().post("/v1/messages", json={**BODY, "stream": True}).text.splitlines()
    assert [line for line in lines if line.startswith("event: ")][:2] == ["event: message_start", "event: ping"]
    assert [json.loads(line[6:])["type"] for line in lines if line.startswith("data: ")][:2] == [
        "message_start",
        "ping",
    ]


async def test_the_asynchronous_client(server: Running, client: anthropic.Anthropic) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, auth_token="none", max_retries=0) as other:
        whole = await other.messages.create(**ASKED)
        async with other.messages.stream(**ASKED) as stream:
            text = "".join([part async for part in stream.text_stream])
    assert text == whole.content[0].text


@pytest.mark.parametrize("tools", [None, [WEATHER, CLOCK]])
def test_tokens_are_counted_as_a_message_counts_them(client: anthropic.Anthropic, tools: list[Any] | None) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "system": "the rain"} | ({"tools": tools} if tools else {})
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    alone = client.messages.count_tokens(model="tiny", messages=MESSAGES)
    assert alone.input_tokens < counted


def test_a_count_may_be_larger_than_the_context(client: anthropic.Anthropic) -> None:
    long = [{"role": "user", "content": "the rain " * 5000}]
    assert client.messages.count_tokens(model="tiny", messages=long).input_tokens > 4096
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
        client.messages.create(**ASKED | {"messages": long})
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_a_stop_sequence_is_told(server: Running, client: anthropic.Anthropic) -> None:
    text = server.llm.chat(MESSAGES, temperature=0, max_tokens=20).read()
    found = both(client, stop_sequences=[text[4:6], "never said"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[4:6])
    assert found.content[0].text == text[: text.index(text[4:6])]


def test_a_last_message_of_the_assistant_is_continued(server: Running, client: anthropic.Anthropic) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "the"}]
    said = server.llm.chat(begun, temperature=0, max_tokens=20).read()
    assert both(client, messages=begun).content[0].text == said


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"weather", "clock"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"weather", "clock"}),
        ({"type": "tool", "name": "weather"}, {"weather"}),
    ],
)
def test_calls_are_blocks(client: anthropic.Anthropic, choice: dict[str, Any], names: set[str]) -> None:
    found = both(client, tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=400)
    calls = [block for block in found.content if block.type == "tool_use"]
    assert {call.name for call in calls} <= names
    assert calls
    if choice != {"type": "any"}:  # a model without a mind of its own calls on and on
        assert len(calls) == 1
        assert found.stop_reason == "tool_use"
    for call in calls:
        assert call.id.startswith("toolu_")
        jsonschema.validate(call.input, (WEATHER if call.name == "weather" else CLOCK)["input_schema"])


def test_no_call_is_made_where_none_is_allowed(client: anthropic.Anthropic) -> None:
    found = both(client, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in found.content] == ["text"]


def test_an_agent_of_several_steps(client: anthropic.Anthropic) -> None:
    """The client's own loop: each call is answered, and all of it goes back."""
    asked_for: list[int] = []

    @anthropic.beta_tool(input_schema=WEATHER["input_schema"])
    def weather(city: str, days: int) -> str:
        """The weather of a city."""
        asked_for.append(days)
        return f"{city}: rain"

    asked = ASKED | {"max_tokens": 200, "extra_body": GREEDY | {"tool_choice": {"type": "tool", "name": "weather"}}}
    answers = list(client.beta.messages.tool_runner(**asked, tools=[weather], max_iterations=4))
    assert len(answers) == 4
    assert all(answer.stop_reason == "tool_use" for answer in answers)
    assert len(asked_for) >= 3
    assert all(1 <= each <= 9 for each in asked_for)
    assert answers[-1].usage.cache_read_input_tokens > answers[0].usage.input_tokens


@pytest.fixture
def thinker(server: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    give_template(server, monkeypatch)
    return server


def test_thoughts_are_blocks(thinker: Running, client: anthropic.Anthropic) -> None:
    found = both(client, thinking={"type": "enabled", "budget_tokens": 5}, max_tokens=60)
    thinking, text = found.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking
    assert thinking.signature
    assert text.text
    hidden = both(client, thinking={"type": "enabled", "budget_tokens": 5, "display": "omitted"}, max_tokens=60)
    assert (hidden.content[0].thinking, hidden.content[1]) == ("", text)
    without = both(client, thinking={"type": "disabled"})
    assert [block.type for block in without.content] == ["text"]
    adaptive = both(client, thinking={"type": "adaptive"})
    assert adaptive.content[0].type == "thinking"


def test_a_schema_holds(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "schema": schema}}
    found = both(client, output_config=form, max_tokens=60)
    jsonschema.validate(json.loads(found.content[0].text), schema)


def test_a_line_that_changes_with_every_request_does_not_hide_what_was_read(client: anthropic.Anthropic) -> None:
    def system(n: int) -> list[dict[str, str]]:
        line = f"x-anthropic-billing-header: cc_version=2.1.{n}; cch={n * 7919:05x};"
        return [{"type": "text", "text": line}, {"type": "text", "text": "the rain in the tin " * 20}]

    first = client.messages.create(**ASKED, system=system(1)).usage
    second = client.messages.create(**ASKED, system=system(2)).usage
    assert second.cache_read_input_tokens > 0.9 * (first.input_tokens + first.cache_read_input_tokens)


def test_keys_and_errors(tiny: Path) -> None:
    with served(tiny, ServerOptions(port=0, key="secret")) as running:
        with client_of(running, "secret") as client:
            assert client.messages.create(**ASKED).content
            assert client.messages.create(**ASKED)._request_id.startswith("req_")
            with pytest.raises(anthropic.BadRequestError) as invalid:
                client.messages.create(**ASKED | {"extra_body": {"temperature": -1}})
        assert invalid.value.body["error"]["type"] == "invalid_request_error"
        assert invalid.value.request_id.startswith("req_")
        with client_of(running, "wrong") as client, pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**ASKED)
        assert refused.value.body["type"] == "error"
        assert refused.value.request_id.startswith("req_")
        http = running.http()
        assert http.post("/v1/messages", json=BODY, headers={"x-api-key": "secret"}).status_code == 200
        del http.headers["Authorization"]
        assert http.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        assert http.get("/v1/models", headers={"x-api-key": ""}).status_code == 401


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thread": {"type": "create"}}, "thread"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
            "content[0].source",
        ),
    ],
)
def test_what_cannot_be_met_is_refused_by_name(server: Running, change: dict[str, Any], named: str) -> None:
    found = server.http().post("/v1/messages", json=BODY | change)
    assert (found.status_code, found.json()["type"]) == (400, "error")
    assert found.json()["error"]["type"] == "invalid_request_error"
    assert named in found.json()["error"]["message"]


def test_a_prompt_is_read_in_advance(client: anthropic.Anthropic) -> None:
    told = {"model": "tiny", "messages": [{"role": "user", "content": "the hen in the tin " * 20}]}
    first = both(client, **told, max_tokens=0)
    assert (first.stop_reason, first.usage.output_tokens) == ("max_tokens", 0)
    assert "".join(block.text for block in first.content) == ""
    later = client.messages.create(**told, max_tokens=3)
    assert later.usage.cache_read_input_tokens > later.usage.input_tokens
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**told, max_tokens=-1)


def test_nothing_is_cleared_from_conversations(client: anthropic.Anthropic) -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1}}]}
    plain = client.messages.create(**ASKED)
    found = client.beta.messages.create(**ASKED, context_management=edits, betas=["context-management-2025-06-27"])
    assert [block.text for block in found.content] == [block.text for block in plain.content]
    assert found.context_management is None
