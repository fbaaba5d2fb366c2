"""Several answers over HTTP: best_of of completions, the field `edgeinfer` of chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from edgeinfer.engine.several.picking import Judge
from edgeinfer.errors import DeviceFailed
from tests.server.conftest import Running, served
from tests.waiting import until

PROMPT = "the rain in the tin, the hen in the inn"
ENDS = {"2": 8.5}
"""A bias that lets answers of the tiny model come to an end, at different lengths."""


@pytest.fixture(scope="module")
def running(tiny_model: Any) -> Iterator[Running]:
    with served(tiny_model) as server:
        yield server


@pytest.fixture
def http(running: Running) -> httpx.Client:
    return running.http()


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8, "temperature": 1.2, **fields})
    assert response.status_code == 200, response.text
    record: dict[str, Any] = response.json()
    return record


def mean_logprob(choice: dict[str, Any]) -> float:
    told = choice["logprobs"]["token_logprobs"]
    return float(sum(told) / len(told))


def test_best_of_tells_the_answers_with_the_highest_log_probability_per_token(http: httpx.Client) -> None:
    every = [complete(http, seed=40 + number, logprobs=0)["choices"][0] for number in range(6)]
    best = sorted(every, key=mean_logprob, reverse=True)
    told = complete(http, seed=40, best_of=6, n=2)
    assert [choice["text"] for choice in told["choices"]] == [choice["text"] for choice in best[:2]]
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in told["choices"])
    assert told["usage"]["completion_tokens"] == 6 * 8


def test_best_of_several_prompts_is_by_prompt(http: httpx.Client) -> None:
    alone = [complete(http, prompt=prompt, seed=3, best_of=3)["choices"][0]["text"] for prompt in ("one", "two")]
    together = complete(http, prompt=["one", "two"], seed=3, best_of=3)
    assert [choice["text"] for choice in together["choices"]] == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 2, "n": 3}, "best_of is 2 and n is 3"),
        ({"best_of": 3, "stream": True}, "leave stream out"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 21}, "best_of"),
    ],
)
def test_best_of_that_cannot_be_is_refused(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    response = http.post("/v1/completions", json={"prompt": PROMPT, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "best_of")
    assert message in error["message"]


def test_openais_client_reads_answers_to_a_text_whole_and_streamed(running: Running) -> None:
    texts, asked = running.client().completions, {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "seed": 3}
    alone = [running.llm.complete(PROMPT, max_tokens=8, seed=3 + n, temperature=0.7).read() for n in range(3)]
    assert [choice.text for choice in texts.create(n=3, **asked).choices] == alone
    for best_of in (None, 3):  # as many as are told: nothing is chosen, so it can be streamed
        found, usage = [""] * 3, None
        more = {"n": 3, "best_of": best_of, "stream": True, "stream_options": {"include_usage": True}}
        for chunk in texts.create(**asked, **more):
            for choice in chunk.choices:
                found[choice.index] += choice.text
            usage = chunk.usage or usage
        assert found == alone
        assert usage is not None
        assert usage.completion_tokens == 3 * 8
    best = texts.create(n=1, best_of=20, logprobs=0, **asked)
    assert (len(best.choices), best.usage.completion_tokens) == (1, 20 * 8)
    with pytest.raises(openai.BadRequestError, match="best_of is 2 and n is 3"):
        texts.create(n=3, best_of=2, **asked)


def chat(http: httpx.Client, several: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40, "temperature": 1.0, "seed": 11}
    return http.post("/v1/chat/completions", json={**body, "logit_bias": ENDS, "edgeinfer": several, **fields})


@pytest.mark.parametrize("pick", ["vote", "weighted", "shortest", "first", "likely"])
def test_one_of_several_answers_is_told_with_the_reason(http: httpx.Client, pick: str) -> None:
    record = chat(http, {"answers": 5, "pick": pick}).json()
    several = record["edgeinfer"]
    assert (several["pick"], len(several["answers"]), len(record["choices"])) == (pick, 5, 1)
    kept = several["answers"][several["kept"]]
    assert record["choices"][0]["message"]["content"] == kept["text"]
    assert [each["seed"] for each in several["answers"]] == list(range(11, 16))
    assert record["usage"]["completion_tokens"] == several["n_generated"]
    assert several["reason"]


def test_a_stream_has_the_answer_that_is_kept_and_what_is_said_of_all(running: Running, http: httpx.Client) -> None:
    whole = chat(http, {"answers": 4, "pick": "shortest"}).json()
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": PROMPT}],
                max_tokens=40,
                temperature=1.0,
                seed=11,
                logit_bias={"2": 8},
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"edgeinfer": {"answers": 4, "pick": "shortest"}, "logit_bias": ENDS},
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole["choices"][0]["message"]["content"]
    told = [
        chunk.model_extra["edgeinfer"] for chunk in chunks if chunk.model_extra and "edgeinfer" in chunk.model_extra
    ]
    assert [each["kept"] for each in told] == [whole["edgeinfer"]["kept"]]
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "stream_all": True}])
def test_what_ends_several_answers_is_told(
    running: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    def fails(*_: object) -> None:
        raise DeviceFailed("the device is gone")

    monkeypatch.setattr(Judge, "look", fails)
    streams, every = fields.get("stream", False), fields.get("stream_all", False)
    response = chat(http, {"answers": 3, "stream_all": every}, stream=streams)
    assert "the device is gone" in response.text
    assert response.status_code == (200 if streams else 500)
    until(lambda: not running.llm.telemetry.n_requests)


def test_a_budget_of_tokens_is_of_all_answers(http: httpx.Client) -> None:
    record = chat(http, {"answers": 3, "most_tokens": 20}, logit_bias=None, ignore_eos=True, max_tokens=200).json()
    assert 20 <= record["edgeinfer"]["n_generated"] < 60
    assert "the budget ended the others" in record["edgeinfer"]["reason"]
    assert all(each["ended_early"] for each in record["edgeinfer"]["answers"])


ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 40,
    "temperature": 1.0,
    "seed": 11,
}


def extra(pick: str) -> dict[str, Any]:
    return {"edgeinfer": {"answers": 4, "pick": pick, "stream_all": True}, "logit_bias": ENDS}


@pytest.mark.parametrize("pick", ["vote", "shortest", "likely", "first"])
def test_a_stream_of_all_has_each_answer_as_a_choice_and_then_which_is_kept(running: Running, pick: str) -> None:
    alone = [
        running.llm.chat(ASKED["messages"], temperature=1.0, seed=11 + n, max_tokens=40, logit_bias={2: 8.5})
        for n in range(4)
    ]
    expected = [stream.read() for stream in alone]
    stream = running.client().chat.completions.create(
        stream=True, stream_options={"include_usage": True}, extra_body=extra(pick), **ASKED
    )
    roles, texts, ends = [""] * 4, [""] * 4, [""] * 4
    several, usage, logprobs = dict[str, Any](), None, []
    for chunk in stream:
        for choice in chunk.choices:
            assert not several
            roles[choice.index] += choice.delta.role or ""
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason or ""
            logprobs += [] if choice.logprobs is None else [choice.logprobs]
        several = (chunk.model_extra or {}).get("edgeinfer", several)
        usage = chunk.usage or usage
    assert roles == ["assistant"] * 4
    assert set(ends) <= {"stop", "length"}
    assert [each["text"] for each in several["answers"]] == texts
    for text, whole, answer in zip(texts, expected, several["answers"], strict=True):
        assert whole.startswith(text) if answer["ended_early"] else whole == text
    assert several["reason"]
    assert usage is not None
    assert usage.completion_tokens == several["n_generated"]
    assert logprobs == []  # which the pick may need, and nobody asked for


@pytest.mark.parametrize("lead", ["uncertain:entropy=0.5,apart=2", "particles"])
def test_answers_that_are_forked_from_others_are_streamed_whole(running: Running, lead: str) -> None:
    several = {**extra("vote")["edgeinfer"], "lead": lead}
    texts, ends, told, usage = dict[int, str](), dict[int, str](), dict[str, Any](), None
    for chunk in running.client().chat.completions.create(
        stream=True, stream_options={"include_usage": True}, extra_body={"edgeinfer": several}, **ASKED
    ):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ""
        told, usage = (chunk.model_extra or {}).get("edgeinfer", told), chunk.usage or usage
    assert [texts[number] for number in sorted(texts)] == [each["text"] for each in told["answers"]]
    assert all(ends.values())
    assert any(each["forked_from"] for each in told["answers"])
    assert usage is not None
    assert usage.completion_tokens == told["n_generated"]


def test_openais_own_reader_of_streams_puts_all_answers_together(running: Running) -> None:
    with running.client().chat.completions.stream(extra_body=extra("vote"), **ASKED) as stream:
        several = [
            event.chunk.model_extra["edgeinfer"]
            for event in stream
            if event.type == "chunk" and event.chunk.model_extra and "edgeinfer" in event.chunk.model_extra
        ]
        whole = stream.current_completion_snapshot
    assert [choice.message.content for choice in whole.choices] == [each["text"] for each in several[0]["answers"]]


def test_a_stream_of_all_tells_probabilities_as_n_answers_do(http: httpx.Client) -> None:
    def choices(**fields: Any) -> dict[int, list[Any]]:
        text = chat(http, fields.pop("several"), stream=True, logprobs=True, logit_bias=None, **fields).text
        found: dict[int, list[Any]] = {}
        for line in text.splitlines():
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                found.setdefault(choice["index"], []).extend((choice["logprobs"] or {}).get("content") or ())
        return found

    several = {"answers": 3, "pick": "first", "enough": 3, "stream_all": True}
    assert choices(several=several) == choices(several=None, n=3)


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/completions", {"prompt": PROMPT}), ("/v1/responses", {"input": PROMPT})]
)
def test_other_routes_say_where_the_field_belongs(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    response = http.post(path, json={**fields, "edgeinfer": {"answers": 2}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "edgeinfer")
    assert "/v1/chat/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("several", "fields", "message"),
    [
        ({"answers": 3, "stream_all": True}, {}, "add stream"),
        ({"answers": 0}, {}, "answers"),
        ({"answers": 65}, {}, "answers"),
        ({"answers": 3, "pick": "check"}, {}, "pick"),
        ({"answers": 3, "vote_by": "words"}, {}, "form of an answer"),
        ({"answers": 3, "lead": "nobody"}, {}, "independent"),
        ({"answers": 3, "lead": "uncertain:heat=1"}, {}, "its options are"),
        ({"answers": 3}, {"n": 2}, "leave n out"),
        ({"answers": 3}, {"temperature": 0}, "temperature 0"),
        ({}, {}, "answers"),
    ],
)
def test_what_cannot_be_is_refused(
    http: httpx.Client, several: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    response = chat(http, several, **fields)
    assert response.status_code == 400
    assert message in json.dumps(response.json()["error"])
