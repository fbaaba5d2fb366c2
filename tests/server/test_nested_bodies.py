"""JSON that is nested too deeply, at every door of the server: a client's error, and the next request is answered."""

from __future__ import annotations

import json

import pytest

from tests.server.conftest import Running

CHAT = "/v1/chat/completions"
DEEP = 100_000
SAY = {"role": "user", "content": "hi"}
CLOSING = {"/api/delete", "/api/pull", "/models/unload", "/models/load", "/api/create", "/api/copy", "/api/push"}


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def records(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def schema(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


def tool(parameters: str) -> str:
    return '[{"type":"function","function":{"name":"f","parameters":' + parameters + "}}]"


def called(arguments: str) -> str:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return json.dumps([SAY, {"role": "assistant", "content": None, "tool_calls": [call]}, SAY])


def body(**fields: str) -> bytes:
    """A body of fields in JSON."""
    told = {"model": '"tiny"', "max_tokens": "1", "messages": json.dumps([SAY]), **fields}
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in told.items()) + "}").encode()


def places(depth: int) -> dict[str, bytes]:
    """Bodies of a chat with something nested so deeply at each place that reads JSON."""
    own = {"content": lists(depth), "records": records(depth)}
    found = {f"messages {name}": body(messages=value) for name, value in own.items()}
    found |= {
        f"content {name}": body(messages='[{"role":"user","content":' + value + "}]") for name, value in own.items()
    }
    found |= {f"unknown field {name}": body(something=value) for name, value in own.items()}
    form = '{"type":"json_schema","json_schema":{"name":"x","schema":' + schema(depth) + "}}"
    found["schema"] = body(response_format=form)
    found["tool"] = body(tools=tool(schema(depth)))
    found["tool of records"] = body(tools=tool(records(depth)))
    found["arguments"] = body(messages=called(records(depth)))
    found["template"] = body(chat_template_kwargs=records(depth))
    found["bias"] = body(logit_bias=lists(depth))
    return found


def still_answers(server: Running) -> bool:
    return bool(server.http().post(CHAT, content=body()).status_code == 200)


@pytest.mark.usefixtures("uncollected")
def test_whole_bodies_at_every_route(server: Running) -> None:
    http = server.http()
    paths = http.get("/openapi.json").json()["paths"]
    routes = [(path, method) for path, own in paths.items() for method in own if method in ("post", "put", "delete")]
    assert len(routes) > 20
    for path, method in routes:
        for text in (lists(DEEP), records(DEEP), "[" * DEEP):
            found = http.request(method, path.replace("{", "").replace("}", ""), content=text.encode())
            assert 400 <= found.status_code < 500, (path, method, found.status_code, found.text[:300])
    assert still_answers(server)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("depth", [60, 150, 230, 300, 600, 960, 1500, DEEP])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/api/chat", "/apply-template"])
def test_any_place_of_a_chat(server: Running, depth: int, path: str) -> None:
    http = server.http()
    for place, content in places(depth).items():
        if path == "/v1/responses":
            content = content.replace(b'"messages":', b'"input":').replace(b'"max_tokens"', b'"max_output_tokens"')
        found = http.post(path, content=content)
        assert found.status_code < 500, (place, found.status_code, found.text[:300])
    assert still_answers(server)
