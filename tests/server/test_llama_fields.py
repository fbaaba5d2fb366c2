"""llama-server's fields in OpenAI's routes: progress of prompts, timings, probabilities, prompts that are too long."""

from __future__ import annotations

import json
import math

import httpx
import openai
import pytest

from tests.server.conftest import Running

TEXT = "then an inn " * 20
ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT},
}


@pytest.fixture(scope="module")
def http(server: Running) -> httpx.Client:
    return server.http()


def chunks(http: httpx.Client, path: str, **fields: object) -> list[dict]:
    body = {**ROUTES[path], "max_tokens": 6, "temperature": 0, "stream": True, **fields}
    lines = http.post(path, json=body).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def words(parts: list[dict]) -> str:
    choices = [choice for part in parts for choice in part["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize("path", ROUTES)
def test_progress_of_prompts_is_told_in_streams(http: httpx.Client, path: str) -> None:
    plain, parts = chunks(http, path), chunks(http, path, return_progress=True)
    told = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert len(told) >= 2
    assert all(each.keys() == {"total", "cache", "processed", "time_ms"} for each in told)
    assert told[0]["cache"] == told[0]["processed"] == told[0]["total"] - 1  # it was read before
    assert told[-1]["processed"] == told[-1]["total"]
    assert words(parts) == words(plain)
    assert not any("prompt_progress" in part for part in plain)


@pytest.mark.parametrize("path", ROUTES)
def test_progress_of_several_choices_is_told_apart(http: httpx.Client, path: str) -> None:
    parts = [part for part in chunks(http, path, return_progress=True, n=2) if "prompt_progress" in part]
    assert {part["choices"][0]["index"] for part in parts} == {0, 1}


@pytest.mark.parametrize("path", ROUTES)
def test_timings_are_told_with_each_chunk_if_asked_for(http: httpx.Client, path: str) -> None:
    parts = chunks(http, path, timings_per_token=True, stream_options={"include_usage": True})
    assert "timings" not in parts[0] or "chat" not in path  # the chunk with the role
    with_text = [part for part in parts if words([part])]
    assert all(part["timings"]["predicted_n"] > 0 for part in with_text)
    assert parts[-1]["choices"] == []
    assert parts[-1]["timings"]["predicted_n"] == parts[-1]["usage"]["completion_tokens"] == 6
    plain = chunks(http, path)
    assert [("timings" in part) for part in plain] == [False] * (len(plain) - 1) + [True]


def records_of(choice: dict) -> list[dict]:
    return choice["logprobs"]["content"]


@pytest.mark.parametrize("path", ROUTES)
def test_probabilities_have_llama_servers_form(http: httpx.Client, path: str) -> None:
    body = {**ROUTES[path], "max_tokens": 4, "temperature": 0, "n_probs": 3}
    records = records_of(http.post(path, json=body).json()["choices"][0])
    native = http.post("/completion", json={"prompt": TEXT, "n_predict": 4, "temperature": 0, "n_probs": 3}).json()
    assert len(records) == 4
    assert all(each.keys() == native["completion_probabilities"][0].keys() for each in records)
    if path == "/v1/completions":
        assert [each["id"] for each in records] == [each["id"] for each in native["completion_probabilities"]]
    streamed = chunks(http, path, n_probs=3, max_tokens=4)
    told = [part["choices"][0]["logprobs"] for part in streamed if part["choices"][0].get("logprobs")]
    assert [record["id"] for each in told for record in each["content"]] == [each["id"] for each in records]


@pytest.mark.parametrize("path", [*ROUTES, "/completion"])
def test_probabilities_after_sampling_are_those_of_the_draw(http: httpx.Client, path: str) -> None:
    base = ROUTES.get(path, {"prompt": TEXT})
    body = {**base, "max_tokens": 6, "seed": 3, "n_probs": 20, "post_sampling_probs": True}

    def drawn(**sampling: float) -> list[dict]:
        answer = http.post(path, json={**body, **sampling}).json()
        return answer["completion_probabilities"] if path == "/completion" else records_of(answer["choices"][0])

    for record in drawn(temperature=1, top_k=5, top_p=1, min_p=0):
        assert len(record["top_probs"]) == 5
        assert math.isclose(sum(each["prob"] for each in record["top_probs"]), 1, rel_tol=1e-6)
        assert record["prob"] in [each["prob"] for each in record["top_probs"] if each["id"] == record["id"]]
    assert [(each["prob"], len(each["top_probs"])) for each in drawn(temperature=0)] == [(1.0, 1)] * 6


def test_they_stay_within_a_grammar(http: httpx.Client) -> None:
    body = {"prompt": TEXT, "n_predict": 1, "temperature": 1, "grammar": 'root ::= "a" | "e"', "top_k": 0, "top_p": 1}
    told = http.post("/completion", json={**body, "min_p": 0, "n_probs": 20, "post_sampling_probs": True}).json()
    (record,) = told["completion_probabilities"]
    assert {each["token"] for each in record["top_probs"]} <= {"a", "e"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses"])
def test_a_prompt_that_is_too_long_has_llama_servers_type_and_openais_code(server: Running, path: str) -> None:
    text, n_context = "z" * 2000, server.llm.info.n_context
    bodies = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/responses": {"input": text},
    }
    for fields in ({}, {"stream": True}):
        refused = server.http().post(path, json={**bodies.get(path, {"prompt": text}), **fields})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (400, "exceed_context_size_error")
        assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", n_context)
        assert 2000 <= error["n_prompt_tokens"] < 2100


def test_openais_client_knows_it(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model="tiny", messages=[{"role": "user", "content": "z" * 2000}])
    assert (refused.value.code, refused.value.status_code) == ("context_length_exceeded", 400)
    assert refused.value.body["n_ctx"] == server.llm.info.n_context


@pytest.mark.parametrize("path", ROUTES)
def test_the_window_of_penalties_is_obeyed(http: httpx.Client, path: str) -> None:
    body = {**ROUTES[path], "max_tokens": 12, "temperature": 0, "frequency_penalty": 100, "logit_bias": {"70": 50}}

    def text(**fields: int) -> str:
        (choice,) = http.post(path, json={**body, **fields}).json()["choices"]
        return choice.get("text") or choice["message"]["content"]

    assert text(repeat_last_n=0) != text(repeat_last_n=-1)


def test_the_tokens_of_a_conversation_are_counted(http: httpx.Client) -> None:
    body = {**ROUTES["/v1/chat/completions"], "max_tokens": 1}
    n_prompt = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert http.post(path, json=body).json()["input_tokens"] == n_prompt
    long = {"messages": [{"role": "user", "content": "z" * 2000}]}
    assert http.post("/v1/chat/completions/input_tokens", json=long).json()["input_tokens"] > 2000


def test_the_prompt_is_shown_if_asked_for(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "the hen"}], "max_tokens": 1}
    told = http.post("/v1/chat/completions", json={**body, "verbose": True}).json()
    assert "the hen" in told["__verbose"]["prompt"]
    assert "__verbose" not in http.post("/v1/chat/completions", json=body).json()


@pytest.mark.parametrize(
    ("role", "fields", "status"),
    [
        ("user", {"add_generation_prompt": True, "continue_final_message": False}, 200),
        ("assistant", {"add_generation_prompt": False, "continue_final_message": True}, 200),
        ("assistant", {"add_generation_prompt": True, "continue_final_message": True}, 400),
        ("user", {"add_generation_prompt": False}, 400),
        ("user", {"continue_final_message": True}, 400),
    ],
)
def test_where_an_answer_begins(http: httpx.Client, role: str, fields: dict[str, bool], status: int) -> None:
    messages = [{"role": "user", "content": "the hen"}, {"role": role, "content": "an inn"}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **fields})
    assert answer.status_code == status
