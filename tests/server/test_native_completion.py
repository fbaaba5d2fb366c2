"""POST /completion and /infill: llama-server's own fields and answers; /v1/completions says what is generated."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from edgeinfer.app.server.native_answers import LineLimits, only
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

PROMPT = "the hen in the inn"
GAP = (3, 4, 5)


@pytest.fixture(scope="module")
def http(server: Running) -> httpx.Client:
    return server.http()


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server over a model with tokens for filling in gaps."""
    with served(write_tiny_llama(tmp_path_factory.mktemp("gap") / "gap.gguf", gap=GAP)) as running:
        yield running


def complete(http: httpx.Client, **fields: object) -> dict:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, **fields}
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx.Client, **fields: object) -> list[dict]:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "stream": True, **fields}
    lines = http.post("/completion", json=body).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_an_answer_tells_what_llama_server_tells(server: Running, http: httpx.Client) -> None:
    answer = complete(http, return_tokens=True, seed=7)
    plain = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    openai = http.post("/v1/completions", json=plain).json()
    assert answer["content"] == openai["choices"][0]["text"]
    assert len(answer["tokens"]) == answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 8
    assert server.llm.detokenize(answer["tokens"]) == answer["content"]
    n_prompt = len(server.llm.tokenize(PROMPT))
    assert (answer["tokens_evaluated"], answer["tokens_cached"]) == (n_prompt, n_prompt + 8)
    told = answer["prompt"], answer["stop"], answer["stop_type"], answer["stopping_word"], answer["truncated"]
    assert told == (PROMPT, True, "limit", "", False)
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["temperature"]) == (8, 7, 0)
    assert all(value >= 0 for value in answer["timings"].values())
    assert complete(http)["tokens"] == []


def test_a_stream_is_the_same_answer_in_parts(http: httpx.Client) -> None:
    whole, parts = complete(http, return_tokens=True), events(http)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts[:-1] for token in part["tokens"]] == whole["tokens"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1]["content"], parts[-1]["stop_type"]) == ("", "limit")


def test_the_stop_string_is_named(http: httpx.Client) -> None:
    whole = complete(http)["content"]
    stop = whole[len(whole) // 2 :][:2]
    answer = complete(http, stop=["never", stop])
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", stop)
    assert answer["content"] == whole[: whole.index(stop)]


def test_prompts_are_texts_tokens_or_both(server: Running, http: httpx.Client) -> None:
    whole, tokens = complete(http)["content"], server.llm.tokenize(PROMPT)
    assert complete(http, prompt=tokens)["content"] == whole
    assert complete(http, prompt={"prompt_string": PROMPT})["content"] == whole
    half = server.llm.detokenize(tokens[3:])
    assert complete(http, prompt=[*tokens[:3], half])["prompt"] == PROMPT
    several = complete(http, prompt=[PROMPT, tokens, {"prompt_string": PROMPT}])
    assert [each["index"] for each in several] == [0, 1, 2]
    assert {each["content"] for each in several} == {whole}
    assert isinstance(complete(http, prompt=[PROMPT]), list)


def test_probabilities_of_tokens(http: httpx.Client) -> None:
    answer = complete(http, n_probs=3, return_tokens=True)
    told = answer["completion_probabilities"]
    assert [each["id"] for each in told] == answer["tokens"]
    assert all(each["top_logprobs"][0]["id"] == each["id"] for each in told)  # greedy
    assert all(bytes(each["bytes"]).decode("utf-8", "replace") == each["token"] for each in told)
    parts = events(http, n_probs=3)
    assert [part["completion_probabilities"] for part in parts[:-1]] == [[each] for each in told]
    assert "".join(part["content"] for part in parts) == answer["content"]


def test_tokens_may_be_forbidden_by_number_or_text(server: Running, http: httpx.Client) -> None:
    first = complete(http, return_tokens=True)["tokens"][0]
    text = server.llm.detokenize([first])
    for bias in ([[first, False]], {str(first): -100.0}, [[first, -100]]):
        assert complete(http, logit_bias=bias, return_tokens=True)["tokens"][0] != first
    if server.llm.tokenize(text, add_special=False) == [first]:
        assert complete(http, logit_bias=[[text, False]], return_tokens=True)["tokens"][0] != first
    ends = complete(http, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert {each["token"] for each in ends} == server.llm.prompts.tokenizer.vocabulary.end_of_generation
    assert {each["bias"] for each in ends} == {None}


def test_samplers_are_obeyed_or_refused(http: httpx.Client) -> None:
    settings = complete(http, samplers=["top_k", "infill"], top_k=5, min_p=0.5)["generation_settings"]
    assert (settings["top_k"], settings["top_p"], settings["min_p"], settings["temperature"]) == (5, 1.0, 0.0, 1.0)
    assert complete(http, samplers="kt")["generation_settings"]["samplers"] == ["top_k", "temperature"]
    assert complete(http, xtc_probability=0, mirostat=0, top_n_sigma=-1.0, dry_multiplier=0.0)["content"]
    for field, value in (
        ("xtc_probability", 0.5),
        ("mirostat", 2),
        ("typical_p", 0.9),
        ("samplers", ["temperature", "top_k"]),
        ("samplers", ["nonsense"]),
        ("n_probs", 21),
        ("prompt", {"prompt_string": "x", "multimodal_data": ["x"]}),
        ("prompt", []),
        ("prompt", [[1.5]]),
        ("prompt", "the hen " * 600),
    ):
        refused = http.post("/completion", json={"prompt": PROMPT, field: value})
        assert refused.status_code == 400, field


def test_only_some_fields(http: httpx.Client) -> None:
    answer = complete(http, response_fields=["content", "generation_settings/n_predict", "nothing/here"])
    assert answer.keys() == {"content", "generation_settings/n_predict"}
    assert answer["generation_settings/n_predict"] == 8
    assert only({"a": {"b": 1}}, []) == {"a": {"b": 1}}


def test_no_tokens_read_the_prompt_alone(http: httpx.Client) -> None:
    prompt = "an inn there then " * 20
    answer = complete(http, prompt=prompt, n_predict=0, return_tokens=True)
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert complete(http, prompt=prompt)["timings"]["cache_n"] > 0


def test_progress_of_prompts_is_told(server: Running, http: httpx.Client) -> None:
    prompt = "then an inn " * 20
    parts = events(http, prompt=prompt, return_progress=True, timings_per_token=True)
    told = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    n_prompt = len(server.llm.tokenize(prompt))
    assert [each["total"] for each in told] == [n_prompt] * len(told)
    assert told[0]["processed"] == told[0]["cache"]
    assert told[-1]["processed"] == n_prompt
    assert parts[0]["timings"]["prompt_n"] == parts[0]["timings"]["prompt_ms"] == 0
    assert "".join(part["content"] for part in parts) == complete(http, prompt=prompt)["content"]


def test_a_line_that_is_indented_less_ends_the_answer() -> None:
    limits = LineLimits(n_indent=4)
    text = "if x:\n    one\n\n        two\n  out\n    never"
    assert "".join(limits.push(letter) for letter in text).rstrip() == "if x:\n    one\n\n        two"
    assert limits.is_over
    assert LineLimits(n_indent=4).push(text) == "if x:\n    one\n\n        two"


def test_time_ends_an_answer_after_a_line() -> None:
    now = [0.0]
    limits = LineLimits(most_s=1.0, clock=lambda: now[0])
    assert limits.push("one ") == "one "
    now[0] = 2.0
    assert (limits.push("two "), limits.is_over) == ("two ", False)
    assert (limits.push("three\n"), limits.is_over, limits.push("four")) == ("three\n", True, "")


def test_gaps_are_filled_in(filling: Running) -> None:
    http, llm = filling.http(), filling.llm
    before, after = "the hen ", " in an inn"
    body = {"input_prefix": "the ", "prompt": "hen ", "input_suffix": after, "n_predict": 8, "temperature": 0}
    answer = http.post("/infill", json=body).json()
    around = [llm.tokenize(text, add_special=False) for text in (before, after)]
    prompt = [GAP[0], *around[0], GAP[1], *around[1], GAP[2]]
    assert answer["content"] == complete(http, prompt=prompt)["content"]
    plain = {"model": "gap", "prompt": before, "suffix": after, "max_tokens": 8, "temperature": 0}
    assert http.post("/v1/completions", json=plain).json()["choices"][0]["text"] == answer["content"]
    theirs = {"model": "gap", "prompt": before, "suffix": after, "options": {"num_predict": 8, "temperature": 0}}
    assert http.post("/api/generate", json={**theirs, "stream": False}).json()["response"] == answer["content"]
    extra = http.post("/infill", json={**body, "input_extra": [{"filename": "a.py", "text": "an inn"}]}).json()
    assert extra["prompt"].endswith(answer["prompt"])
    assert "an inn" in extra["prompt"].removesuffix(answer["prompt"])
    long = http.post("/infill", json={**body, "input_prefix": "a" * 2000, "input_suffix": "b" * 2000}).json()
    assert long["tokens_evaluated"] == 512 - 8
    assert (long["prompt"].count("b"), long["prompt"].endswith(f"b{llm.detokenize([GAP[2]])}")) == (141, True)
    assert "insert" in http.post("/api/show", json={"model": "gap"}).json()["capabilities"]


def test_gaps_that_cannot_be_filled_in(http: httpx.Client, filling: Running) -> None:
    body = {"input_prefix": "a", "input_suffix": "b"}
    assert "no tokens for filling in gaps" in http.post("/infill", json=body).json()["error"]["message"]
    for extra in ({}, {"filename": "ok"}, {"filename": 123, "text": "abc"}):
        assert filling.http().post("/infill", json={**body, "input_extra": [extra]}).status_code == 400
