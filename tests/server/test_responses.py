"""OpenAI's newer API: whole and streamed, with schemas, calls and thoughts, and continued by id."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.responses_schemas import Item, ResponseRequest
from edgeinfer.app.server.stored_responses import StoredResponses
from edgeinfer.models.text import ChatTemplate
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served
from tests.server.test_reasoning import THINKING

MESSAGES = [{"role": "system", "content": "the rain"}, {"role": "user", "content": "in the tin"}]
CLOCK = {
    "type": "function",
    "name": "clock",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
OPTIONS = {"temperature": 0, "max_output_tokens": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_tiny_llama(tmp_path_factory.mktemp("responses") / "tiny.gguf", context=4096)
    with served(path) as running:
        yield running


def expected(server: Running) -> str:
    return server.llm.chat(MESSAGES, temperature=0, max_tokens=20).read()


def test_an_answer_is_that_of_a_chat(server: Running) -> None:
    found = server.client().responses.create(model="tiny", instructions="the rain", input="in the tin", **OPTIONS)
    assert found.output_text == expected(server)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 20
    parts = [
        {"role": "system", "content": "the rain"},
        {"role": "user", "content": [{"type": "input_text", "text": "in the tin"}]},
    ]
    again = server.client().responses.create(model="tiny", input=parts, **OPTIONS)
    assert again.output_text == found.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_a_stream_of_events(server: Running) -> None:
    text, kinds = "", []
    with server.client().responses.stream(model="tiny", input=MESSAGES, **OPTIONS) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == expected(server)
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]


COLOUR = {"schema": {"type": "object", "properties": {"name": {"enum": ["red"]}}, "required": ["name"]}}


class Colour(pydantic.BaseModel):
    name: Literal["red", "green"]


def test_answers_that_follow_a_schema(server: Running) -> None:
    found = server.client().responses.parse(model="tiny", input="a colour", text_format=Colour, max_output_tokens=200)
    assert isinstance(found.output_parsed, Colour)
    assert found.status == "completed"


def test_calls(server: Running) -> None:
    options = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    found = server.client().responses.create(model="tiny", input="what time is it?", **options)
    (call,) = found.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "clock", {})
    kinds = []
    with server.client().responses.stream(model="tiny", input="what time is it?", **options) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output[0].name == "clock"
    assert "response.function_call_arguments.done" in kinds
    turn = [
        {"role": "user", "content": "what time is it?"},
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "noon"},
    ]
    after = server.client().responses.create(model="tiny", input=turn, tools=[CLOCK], **OPTIONS)
    assert after.output_text


def test_functions_of_namespaces_are_called_by_both_names(server: Running) -> None:
    """Codex offers the tools of MCP servers in namespaces."""
    spaces = [
        {"type": "namespace", "name": name, "description": "Clocks.", "tools": [CLOCK, {"type": "custom", "name": "x"}]}
        for name in ("mcp__rome", "mcp__oslo")
    ]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "mcp__oslo__clock"}]}
    options = {"tools": [*spaces, CLOCK], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 200}
    with server.client().responses.stream(model="tiny", input="what time is it?", **options) as stream:
        found = stream.get_final_response()
    (call,) = found.output
    assert (call.namespace, call.name, json.loads(call.arguments)) == ("mcp__oslo", "clock", {})
    assert [(tool.type, tool.name) for tool in found.tools] == [
        ("namespace", "mcp__rome"),
        ("namespace", "mcp__oslo"),
        ("function", "clock"),
    ]
    assert [tool.name for tool in found.tools[0].tools] == ["clock"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    body = {"input": [call.model_dump(), result], "tools": options["tools"]}
    told = ResponseRequest.model_validate(body).as_chat()
    assert [each.function.name for each in told.messages[0].tool_calls or ()] == ["mcp__oslo__clock"]
    assert [each.function.name for each in told.tools or ()] == ["mcp__rome__clock", "mcp__oslo__clock", "clock"]
    with pytest.raises(openai.BadRequestError, match="two functions 'mcp__rome__clock'"):
        server.client().responses.create(model="tiny", input="hi", tools=[spaces[0], spaces[0]])


def test_a_conversation_goes_on_by_the_id_of_a_response(server: Running) -> None:
    client = server.client()
    first = client.responses.create(model="tiny", input="the rain", instructions="be brief", **OPTIONS)
    second = client.responses.create(model="tiny", input="in the tin", previous_response_id=first.id, **OPTIONS)
    whole = [
        {"role": "user", "content": "the rain"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "in the tin"},
    ]
    assert second.output_text == server.llm.chat(whole, temperature=0, max_tokens=20).read()
    assert second.previous_response_id == first.id
    with client.responses.stream(
        model="tiny", input="and?", previous_response_id=second.id, max_output_tokens=3
    ) as stream:
        third = list(stream)[-1].response
    assert client.responses.retrieve(third.id).output_text == third.output_text
    asked = {"input": "and?", "previous_response_id": second.id}
    assert client.responses.input_tokens.count(model="tiny", **asked).input_tokens == third.usage.input_tokens
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="keeps the latest"):
            call(first.id)


def test_what_is_not_stored_cannot_be_continued(server: Running) -> None:
    client = server.client()
    for store in (None, False):
        options = {} if store is None else {"store": store}
        found = client.responses.create(model="tiny", input="hi", max_output_tokens=1, **options)
        assert found.store is (store is None)
        if store is None:
            assert client.responses.retrieve(found.id).id == found.id
        else:
            with pytest.raises(openai.BadRequestError, match="there is no response") as refused:
                client.responses.create(model="tiny", input="hi", previous_response_id=found.id)
            assert refused.value.code == "previous_response_not_found"


def test_stored_responses_are_limited() -> None:
    stored = StoredResponses(most=3, most_bytes=1000)
    for number in range(5):
        stored.put({"id": str(number), "output": []}, [Item(role="user", content="hi")])
        stored.get("2")
    assert [stored.get(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    assert stored.n_bytes > 0
    stored.put({"id": "long", "output": []}, [Item(role="user", content="x" * 850)])
    assert (stored.get("2"), stored.get("long") is not None) == (None, True)
    stored.put({"id": "too long", "output": []}, [Item(role="user", content="x" * 2000)])
    assert (stored.get("too long"), stored.n_bytes) == (None, 0)


def test_what_conversations_share_counts_once() -> None:
    """An image is in all turns of its conversation; items of one name that clients chose are not the same."""
    image, stored = Item(role="user", content="x" * 10_000), StoredResponses(most=5)
    stored.put({"id": "0", "output": []}, [image])
    for number in range(1, 5):
        earlier = stored.get(str(number - 1)).items
        stored.put({"id": str(number), "output": []}, [*earlier, Item(role="user", content="and?")])
    assert 10_000 < stored.n_bytes < 12_000
    for number in range(5):
        again = Item(id="mine", role="user", content="y" * 1000)
        stored.put({"id": f"other {number}", "output": []}, [again])
    assert 5000 < stored.n_bytes < 7000
    for number in range(5):
        stored.delete(f"other {number}")
    assert stored.n_bytes == 0


def test_what_a_response_was_made_of_is_listed(server: Running) -> None:
    client, list_items = server.client(), server.client().responses.input_items.list
    turn = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "what time"}, {"type": "input_text", "text": "?"}]},
        {"type": "reasoning", "id": "rs_mine", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "and now?"},
    ]
    first = client.responses.create(model="tiny", input=turn, **OPTIONS)
    told = list(list_items(first.id, order="asc"))
    assert [item.type for item in told] == ["message"] * 2 + [item.get("type", "message") for item in turn[2:]]
    assert [part.text for part in told[1].content] == ["what time", "?"]
    assert (told[2].id, told[2].summary[0].text, told[4].output) == ("rs_mine", "hm", "noon")
    assert (told[3].name, told[3].call_id, told[5].content[0].type) == ("clock", "a", "output_text")
    assert len({item.id for item in told}) == len(turn)
    second = client.responses.create(model="tiny", input="so?", previous_response_id=first.id, **OPTIONS)
    whole = list(list_items(second.id, limit=2))
    assert [item.id for item in whole[1:]] == [first.output[0].id, *(item.id for item in reversed(told))]
    page = list_items(second.id, limit=3, after=whole[1].id, order="desc")
    assert ([item.id for item in page.data], page.has_more) == ([item.id for item in whole[2:5]], True)
    for wrong in ({"after": "none"}, {"limit": 0}, {"limit": 101}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            list_items(first.id, **wrong)
    with pytest.raises(openai.NotFoundError):
        list_items("resp_none")


def test_items_are_referred_to_by_their_ids(server: Running) -> None:
    client = server.client()
    first = client.responses.create(model="tiny", input="the rain", **OPTIONS)
    asked = next(iter(client.responses.input_items.list(first.id)))
    names = [asked.id, first.output[0].id]
    whole = [{"role": "user", "content": "the rain"}, first.output[0].model_dump(), {"role": "user", "content": "so?"}]
    plain = client.responses.create(model="tiny", input=whole, **OPTIONS)
    for named in (lambda name: {"type": "item_reference", "id": name}, lambda name: {"id": name}):
        referring = [*map(named, names), whole[-1]]
        found = client.responses.create(model="tiny", input=referring, **OPTIONS)
        assert (found.output_text, found.usage.input_tokens) == (plain.output_text, plain.usage.input_tokens)
        assert [item.id for item in client.responses.input_items.list(found.id, order="asc")][:2] == names
        count = client.responses.input_tokens.count(model="tiny", input=referring)
        assert count.input_tokens == plain.usage.input_tokens
        again = client.responses.create(model="tiny", input=referring, previous_response_id=first.id, **OPTIONS)
        assert again.usage.input_tokens == plain.usage.input_tokens  # what is there is not told twice
    with pytest.raises(openai.NotFoundError, match=r"no item 'msg_none'") as refused:
        client.responses.create(model="tiny", input=[{"type": "item_reference", "id": "msg_none"}])
    assert refused.value.param == "input[0]"


def test_only_the_latest_items_are_known() -> None:
    stored = StoredResponses(most=2)
    for number in range(3):
        earlier = stored.get("1").items if number == 2 else ()
        stored.put({"id": str(number), "output": []}, [*earlier, Item(id=f"item {number}", role="user", content="hi")])
    references = [Item(type="item_reference", id=f"item {number}") for number in range(3)]
    assert [item.content for item in stored.resolved(references[1:], ())] == ["hi", "hi"]
    with pytest.raises(APIError, match="no item 'item 0'"):
        stored.resolved(references, ())
    stored.delete("1")
    assert [item.content for item in stored.resolved(references[1:], ())] == ["hi", "hi"]
    stored.delete("2")
    with pytest.raises(APIError, match="no item 'item 1'"):
        stored.resolved(references[1:], ())
    assert stored.n_bytes == 0


def test_what_is_finished_is_not_cancelled_or_streamed_again(server: Running) -> None:
    client = server.client()
    found = client.responses.create(model="tiny", input="the rain", **OPTIONS)
    with pytest.raises(openai.BadRequestError, match="in the background"):
        client.responses.cancel(found.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")
    with pytest.raises(openai.BadRequestError, match="leave stream out"):
        client.responses.retrieve(found.id, stream=True)
    assert client.responses.retrieve(found.id, stream=False).id == found.id


def test_what_it_does_not_have_is_skipped_or_refused(server: Running) -> None:
    client = server.client()
    skipped = [
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "the rain"},
        {"type": "image_generation_call", "id": "x", "result": "", "status": "completed"},
    ]
    tools = [{"type": "web_search"}, {"type": "mcp", "server_label": "s", "server_url": "http://x"}, CLOCK]
    found = client.responses.create(model="tiny", input=skipped, tools=tools, tool_choice="none", **OPTIONS)
    assert [tool.name for tool in found.tools] == ["clock"]
    plain = client.responses.create(model="tiny", input="the rain", **OPTIONS)
    assert found.output_text == plain.output_text
    for options in (
        {"input": skipped[:1]},
        {"input": "hi", "conversation": "conv_1"},
        {"input": "hi", "background": True},
        {"input": "hi", "tools": tools[:1], "tool_choice": "required"},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
        {"input": "the hen " * 4000},
        {"input": []},
        {"input": [{"type": {}, "content": "hi"}]},
    ):
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="tiny", **options)


@pytest.mark.parametrize("summary", [None, "auto"])
def test_thoughts_are_an_item_of_their_own(
    server: Running, monkeypatch: pytest.MonkeyPatch, summary: str | None
) -> None:
    template = ChatTemplate({"default": THINKING})
    monkeypatch.setattr(server.llm, "prompts", dataclasses.replace(server.llm.prompts, template=template))
    reasoning = {} if summary is None else {"reasoning": {"summary": summary}}
    for schema, types in ((None, ["reasoning"]), (Colour, ["reasoning", "message"])):
        form = {} if schema is None else {"text": {"format": {"type": "json_schema", "name": "c", **COLOUR}}}
        limit = {"max_output_tokens": 30 if schema is None else 300, "temperature": 0}
        options = {"model": "tiny", "input": "the rain", **limit, **form, **reasoning}
        if schema is not None:
            monkeypatch.setattr(server.llm, "chat", functools.partial(server.llm.chat, max_thought_tokens=5))
        found = server.client().responses.create(**options)
        assert [item.type for item in found.output] == types
        thoughts = found.output[0].summary if summary else found.output[0].content
        assert thoughts[0].type == ("summary_text" if summary else "reasoning_text")
        assert found.usage.output_tokens_details.reasoning_tokens > 0
        assert found.output[-1].status == ("incomplete" if schema is None else "completed")
        with server.client().responses.stream(**options) as stream:
            events = list(stream)
        name = "response.reasoning_summary_text" if summary else "response.reasoning_text"
        assert "".join(event.delta for event in events if event.type == f"{name}.delta") == thoughts[0].text
        kinds = [event.type for event in events]
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(types)
        assert kinds.index(f"{name}.done") > kinds.index(f"{name}.delta")
        last = events[-1].response
        assert [item.type for item in last.output] == types
        assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_cut_message_is_incomplete(server: Running) -> None:
    found = server.client().responses.create(model="tiny", input="in the tin", **OPTIONS)
    assert (found.status, found.output[0].status) == ("incomplete", "incomplete")
    whole = server.client().responses.parse(model="tiny", input="a colour", text_format=Colour, max_output_tokens=200)
    assert whole.output[0].status == "completed"


def test_the_parts_of_an_answer_are_one_message() -> None:
    """Thoughts, text and calls; thoughts that no answer follows, and those of a user's turn, are left out."""
    call = {"type": "function_call", "call_id": "a", "name": "clock", "arguments": ""}
    items = [
        {"type": "message", "role": "user", "content": [{"text": "one"}, {"text": "two"}]},
        {"type": "reasoning", "summary": [{"text": "hm"}], "content": []},
        {"type": "message", "role": "assistant", "content": "I look."},
        call,
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
        {"type": "function_call_output", "call_id": "b", "output": "one"},
        {"type": "reasoning", "content": [{"text": "so"}], "summary": [{"text": "short"}]},
        {"type": "reasoning", "summary": [{"text": "more"}]},
        {"type": "message", "role": "assistant", "content": [{"text": "Noon."}]},
        {"type": "message", "role": "assistant", "content": [{"text": "Or one."}]},
        {"type": "reasoning", "summary": [{"text": "lost"}]},
        {"type": "message", "role": "user", "content": "thanks"},
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
    ]
    chat = ResponseRequest.model_validate({"input": items}).as_chat()
    calls = [{"id": name, "type": "function", "function": {"name": "clock", "arguments": "{}"}} for name in "ab"]
    assert [message.model_dump(exclude_none=True) for message in chat.messages] == [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_call_id": "a"},
        {"role": "tool", "content": "one", "tool_call_id": "b"},
        {"role": "assistant", "content": "Noon.", "reasoning_content": "so\n\nmore"},
        {"role": "assistant", "content": "Or one."},
        {"role": "user", "content": "thanks"},
    ]
