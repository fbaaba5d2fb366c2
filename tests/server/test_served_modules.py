"""Modules over HTTP: put once, named by requests of several APIs, listed and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import Running, served

RULES = "the rain in the tin, the hen in the inn, and a moth in the broth. "
MANUAL = "one two three four five six seven. "
QUESTION = "who is in the inn?"
GREEDY = {"temperature": 0.0, "max_tokens": 8}


@pytest.fixture(scope="module")
def running(tiny_model: Any) -> Iterator[Running]:
    with served(tiny_model) as server:
        yield server


@pytest.fixture
def http(running: Running) -> Iterator[httpx.Client]:
    """A client of a server that has no modules, and has none afterwards."""
    client = running.http()
    yield client
    for module in client.get("/modules").json()["data"]:
        client.delete(f"/modules/{module['name']}")


def put(http: httpx.Client, name: str, text: str, **fields: Any) -> dict[str, Any]:
    response = http.put(f"/modules/{name}", json={"text": text, **fields})
    assert response.status_code == 200, response.text
    record: dict[str, Any] = response.json()
    return record


def chat(http: httpx.Client, content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], **GREEDY, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    record: dict[str, Any] = response.json()
    return record


def said(record: dict[str, Any]) -> str:
    text: str = record["choices"][0]["message"]["content"]
    return text


def test_modules_are_put_listed_and_deleted(http: httpx.Client) -> None:
    assert http.get("/modules").json()["data"] == []
    record = put(http, "rules", RULES)
    assert record.items() >= {"object": "module", "name": "rules", "temperature": 1.0}.items()
    assert record["n_tokens"] > 10 < record["n_prefix"] + 10
    put(http, "manual", MANUAL, temperature=0.9)
    listed = http.get("/modules").json()
    assert [each["name"] for each in listed["data"]] == ["rules", "manual"]
    assert listed["data"][1]["temperature"] == 0.9
    assert http.delete("/modules/rules").json() == {"object": "module", "name": "rules", "deleted": True}
    missing = http.delete("/modules/rules")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "module_not_found")
    assert "there are: manual" in missing.json()["error"]["message"]


def test_a_field_or_a_part_places_them(http: httpx.Client, running: Running) -> None:
    put(http, "rules", RULES)
    put(http, "manual", MANUAL)
    by_field = chat(http, modules=["rules", "manual"])
    details, tokens = by_field["usage"]["prompt_tokens_details"], [module.tokens for module in running.llm.modules]
    assert details["cached_tokens"] >= details["module_tokens"] == sum(map(len, tokens))
    assert "approximate" in by_field["notices"][0]
    assert "(rules, manual)" in by_field["notices"][0]
    messages = [{"role": "user", "content": QUESTION}]
    assert said(by_field) == running.llm.chat(messages, modules=["rules", "manual"], **GREEDY).read()
    parts = [{"type": "module", "name": "rules"}, {"type": "text", "text": QUESTION}]
    by_part = chat(http, parts)
    told = [{"type": "module", "name": "rules"}, {"type": "text", "text": f"\n{QUESTION}"}]
    assert said(by_part) == running.llm.chat([{"role": "user", "content": told}], **GREEDY).read()
    assert said(chat(http, modules=["manual", "rules"])) == said(chat(http, modules=["manual", "rules"]))


def test_other_apis_have_the_field_too(http: httpx.Client, running: Running) -> None:
    put(http, "rules", RULES)
    fields: dict[str, Any] = {"modules": ["rules"], "temperature": 0.0}
    text = http.post("/v1/completions", json={"prompt": QUESTION, "max_tokens": 8, **fields}).json()
    assert text["choices"][0]["text"] == running.llm.complete(QUESTION, modules=["rules"], **GREEDY).read()
    native = http.post("/completion", json={"prompt": QUESTION, "n_predict": 8, **fields}).json()
    assert native["content"] == text["choices"][0]["text"]
    expected = said(chat(http, modules=["rules"]))
    messages = [{"role": "user", "content": QUESTION}]
    anthropic = http.post("/v1/messages", json={"messages": messages, "max_tokens": 8, **fields}).json()
    assert anthropic["content"][0]["text"] == expected
    response = http.post("/v1/responses", json={"input": QUESTION, "max_output_tokens": 8, **fields}).json()
    assert response["output"][-1]["content"][0]["text"] == expected
    counted = http.post("/v1/chat/completions/input_tokens", json={"messages": messages, "modules": ["rules"]}).json()
    assert counted["input_tokens"] > len(running.llm.modules["rules"].tokens)
    verbose = chat(http, modules=["rules"], verbose=True)
    assert RULES in verbose["__verbose"]["prompt"]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"modules": ["nothing"]}, 400, "there is no module 'nothing'; there are: rules"),
        ({"modules": "rules"}, 400, "modules"),
        ({"modules": [""]}, 400, "modules"),
        ({"modules": ["rules"] * 60}, 400, "longer than the model's context"),
        ({"messages": [{"role": "user", "content": [{"type": "module"}]}]}, 400, "modules by their 'name'"),
        ({"messages": [{"role": "user", "content": [{"type": "module", "name": "x"}]}]}, 400, "there is no module 'x'"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "module", "name": "rules"}]}]},
            400,
            "message of the assistant",
        ),
    ],
)
def test_errors_say_what_there_is(http: httpx.Client, fields: dict[str, Any], status: int, message: str) -> None:
    put(http, "rules", RULES)
    body = {"messages": [{"role": "user", "content": QUESTION}], **GREEDY, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("a b", {"text": RULES}, "the name of a module cannot be"),
        ("a", {"text": ""}, "is empty"),
        ("a", {}, "text"),
        ("a", {"text": RULES, "temperature": 50}, "temperature"),
        ("a", {"text": RULES * 60}, "context"),
    ],
)
def test_what_cannot_be_put_is_refused(http: httpx.Client, name: str, body: dict[str, Any], message: str) -> None:
    response = http.put(f"/modules/{name}", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert http.get("/modules").json()["data"] == []


def test_a_model_that_was_closed_has_its_modules_again(http: httpx.Client, running: Running) -> None:
    put(http, "rules", RULES)
    before = said(chat(http, modules=["rules"]))
    closed = running.llm
    assert http.post("/models/unload", json={"model": running.pool.open[0].name}).status_code == 200
    assert said(chat(http, modules=["rules"])) == before
    assert running.llm is not closed
    assert [each["name"] for each in http.get("/modules").json()["data"]] == ["rules"]
    http.delete("/modules/rules")
    assert http.get("/modules").json()["data"] == []
