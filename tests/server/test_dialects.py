"""Fields of llama-server, vLLM and Ollama: obeyed, or refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from edgeinfer.app.server.dialects import sampler_options
from edgeinfer.app.server.errors import APIError
from tests.server.conftest import Running

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the rain in the tin"}]
COLOUR = {"type": "object", "properties": {"name": {"enum": ["red", "green"]}}, "required": ["name"]}


def answer(server: Running, **options: Any) -> dict[str, Any]:
    found = server.http().post(CHAT, json={"messages": MESSAGES, "max_tokens": 30, **options})
    assert found.status_code == 200, found.text
    (choice,) = found.json()["choices"]
    return choice


@pytest.mark.parametrize(
    "options",
    [
        {"guided_json": COLOUR},
        {"guided_json": json.dumps(COLOUR)},
        {"format": COLOUR},
        {"structured_outputs": {"json": COLOUR}},
    ],
)
def test_schemas_by_other_names(server: Running, options: dict[str, Any]) -> None:
    assert json.loads(answer(server, **options)["message"]["content"])["name"] in ("red", "green")


@pytest.mark.parametrize("options", [{"format": "json"}, {"structured_outputs": {"json_object": True}}])
def test_any_json(server: Running, options: dict[str, Any]) -> None:
    assert isinstance(json.loads(answer(server, **options)["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"guided_regex": "x[0-9]y"}, "x[0-9]y"),
        ({"guided_choice": ["a|b", "(c)"]}, r"a\|b|\(c\)"),
        ({"guided_grammar": 'root ::= "a" | "bb"'}, "a|bb"),
        ({"structured_outputs": {"regex": "x[0-9]y"}}, "x[0-9]y"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "bb"'}}, "a|bb"),
    ],
)
def test_other_forms_of_answers(server: Running, options: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, answer(server, **options)["message"]["content"])


def test_limits_and_penalties_by_other_names(server: Running) -> None:
    http, endless = server.http(), {"logit_bias": {"2": -100}}
    for path, asked in ((CHAT, {"messages": MESSAGES}), (COMPLETION, {"prompt": "the rain"})):
        found = http.post(path, json={**asked, **endless, "n_predict": 5}).json()
        assert found["usage"]["completion_tokens"] == 5
        found = http.post(path, json={**asked, **endless, "n_predict": 5, "max_tokens": 3}).json()
        assert found["usage"]["completion_tokens"] == 3
    greedy = {"temperature": 0, **endless}
    plain, named = (answer(server, **greedy, **{name: 100}) for name in ("repeat_penalty", "repetition_penalty"))
    assert plain["message"]["content"] == named["message"]["content"] != answer(server, **greedy)["message"]["content"]


def test_samplers_that_are_not_named_do_nothing(server: Running) -> None:
    options = {"seed": 3, "temperature": 5, "logit_bias": {"2": -100}}
    likeliest = answer(server, **options, top_k=1, samplers=["top_k"])["message"]["content"]
    assert likeliest == answer(server, **options, top_k=1)["message"]["content"]
    assert likeliest != answer(server, **options, top_k=1, samplers="t")["message"]["content"]
    assert sampler_options("pm") == {
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 0,
        "temperature": 1.0,
    }
    assert sampler_options(["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]) == {}


@pytest.mark.parametrize(
    ("options", "param", "reason"),
    [
        ({"samplers": ["temperature", "top_k"]}, "samplers", "in this order"),
        ({"samplers": ["infill"]}, "samplers", "no sampler 'infill'"),
        ({"mirostat": 2}, "mirostat", "leave it out"),
        ({"dry_multiplier": 0.5}, "dry_multiplier", "leave it out"),
        ({"keep_alive": "5m"}, "keep_alive", "--idle-unload"),
        ({"guided_json": COLOUR, "guided_regex": "a"}, "guided_regex", "one form"),
        ({"guided_json": COLOUR, "json_schema": COLOUR}, "json_schema", "one form"),
        ({"guided_json": COLOUR, "response_format": {"type": "json_object"}}, "response_format", "one form"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"stop_token_ids": [2]}, "stop_token_ids", "set it to []"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "set it to true"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "leave it out"),
        ({"web_search_options": {}}, "web_search_options", "leave web_search_options out"),
        ({"reasoning_format": "none"}, "reasoning_format", "leave it out"),
    ],
)
def test_what_cannot_be_obeyed_is_named(server: Running, options: dict[str, Any], param: str, reason: str) -> None:
    refused = server.http().post(CHAT, json={"messages": MESSAGES, **options})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], reason in error["message"]) == (400, param, True), error


def test_neutral_values_are_taken(server: Running) -> None:
    answer(server, typical_p=1.0, mirostat=0, dry_multiplier=0.0, top_n_sigma=-1.0, xtc_probability=0.0, format="")
    answer(server, bad_words=[], stop_token_ids=[], skip_special_tokens=True, include_stop_str_in_output=False)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        *((CHAT, {"messages": MESSAGES, "max_tokens": 7}), (COMPLETION, {"prompt": "the rain", "max_tokens": 7})),
        ("/v1/responses", {"input": "the rain", "max_output_tokens": 7}),
        ("/completion", {"prompt": "the rain", "n_predict": 7}),
    ],
)
def test_an_answer_that_must_not_end_goes_on_to_its_limit(server: Running, path: str, asked: dict[str, Any]) -> None:
    """The bias makes the model end at once."""
    ends = sorted(server.llm.prompts.tokenizer.vocabulary.end_of_generation)
    body = {**asked, "logit_bias": {str(token): 100 for token in ends}}

    def n_generated(**more: Any) -> int:
        found = server.http().post(path, json={**body, **more}).json()
        usage = found.get("usage", {})
        return usage.get("completion_tokens", usage.get("output_tokens", found.get("tokens_predicted")))

    assert [n_generated(), n_generated(ignore_eos=False), n_generated(ignore_eos=True)] == [0, 0, 7]


@pytest.mark.parametrize("samplers", ["kz", ["nothing"]])
def test_unknown_samplers(samplers: str | list[str]) -> None:
    with pytest.raises(APIError, match="no sampler"):
        sampler_options(samplers)


def test_biases_in_every_form(server: Running) -> None:
    (z,) = server.llm.tokenize("z")
    usual = server.llm.chat(MESSAGES, temperature=0, max_tokens=1)
    usual.read()
    (token,) = usual.tokens
    told: list[Any] = [{str(z): 100}, {"z": 100}, [[z, 100]], [["z", 100]], [{str(z): 100}], [{"z": 100}]]
    for bias in told:
        assert answer(server, temperature=0, max_tokens=1, logit_bias=bias)["message"]["content"] == "z"
    for bias in ({str(token): False}, [[token, False]]):
        other = answer(server, temperature=0, max_tokens=1, logit_bias=bias, logprobs=True)["logprobs"]["content"][0]
        assert other["bytes"] != list(server.llm.prompts.tokenizer.piece(token))


@pytest.mark.parametrize("bias", [[["z", "much"]], [[1.5, 2]], [["z"]]])
def test_what_is_no_bias(server: Running, bias: Any) -> None:
    refused = server.http().post(CHAT, json={"messages": MESSAGES, "logit_bias": bias})
    assert (refused.status_code, refused.json()["error"]["param"].split(".")[0]) == (400, "logit_bias")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_only_read(server: Running, stream: bool) -> None:
    http = server.http()
    text = "the hen in the inn " * 9
    for path, asked in (
        (CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 0}),
        (COMPLETION, {"prompt": text, "n_predict": 0}),
    ):
        found = http.post(path, json={**asked, "stream": stream, "stream_options": {"include_usage": True}})
        assert found.status_code == 200
        if stream:
            lines = [line.removeprefix("data: ") for line in found.text.splitlines() if line]
            usage, choice = json.loads(lines[-2])["usage"], json.loads(lines[-3])["choices"][0]
        else:
            usage, choice = found.json()["usage"], found.json()["choices"][0]
            assert not (choice["message"]["content"] if path == CHAT else choice["text"])
        assert (usage["completion_tokens"], choice["finish_reason"]) == (0, "length")
        again = http.post(path, json={**asked, "max_tokens": 1, "n_predict": None}).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] >= again["prompt_tokens"] - 1


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_stop_string_has_no_probabilities(server: Running, path: str) -> None:
    asked = {"prompt": "a"} if path == COMPLETION else {"messages": MESSAGES}
    options = {**asked, "temperature": 0, "max_tokens": 12, "logprobs": 0 if path == COMPLETION else True}
    options["guided_regex"] = "[a-z]{12}"

    def read(**more: Any) -> tuple[str, list[str]]:
        (choice,) = server.http().post(path, json={**options, **more}).json()["choices"]
        found = choice["logprobs"] or {"tokens": [], "content": []}
        if path == COMPLETION:
            return choice["text"], found["tokens"]
        return choice["message"]["content"], [each["token"] for each in found["content"]]

    text, tokens = read()
    assert (len(tokens) > 5, "".join(tokens)) == (True, text)
    stop = "".join(tokens[3:5])
    cut, shown = read(stop=[stop])
    assert cut == text[: text.index(stop)]
    assert "".join(shown) == cut
