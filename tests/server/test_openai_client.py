"""OpenAI's own client against a running server."""

from __future__ import annotations

import asyncio
import codecs
import json
from pathlib import Path
from typing import Literal

import openai
import pydantic
import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.server.conftest import Running, served
from tests.waiting import until

MESSAGES = [{"role": "user", "content": "the rain in the tin"}]
GREEDY = {"temperature": 0, "max_tokens": 24}
MODEL = "tiny"


def same_text(running: Running, **options: object) -> str:
    """The answer by the Python API."""
    return running.llm.chat(MESSAGES, temperature=0, max_tokens=24, **options).read()


def test_models_are_listed(server: Running) -> None:
    found = server.client().models.list().data
    assert [model.id for model in found] == [server.pool.default.name]
    assert server.client().models.retrieve(found[0].id).owned_by == "edgeinfer"


def test_a_chat_is_answered_as_the_python_api_would(server: Running) -> None:
    found = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, **GREEDY)
    assert found.object == "chat.completion"
    assert found.choices[0].message.content == same_text(server)
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].finish_reason == "length"
    usage = found.usage
    assert (usage.completion_tokens, usage.total_tokens) == (24, usage.prompt_tokens + 24)
    again = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, **GREEDY)
    assert again.usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    assert again.model_extra["timings"]["predicted_n"] == 24


def test_a_stream_has_the_order_that_clients_rely_on(server: Running) -> None:
    stream = server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in middle)
    assert all(chunk.choices[0].finish_reason is None and chunk.usage is None for chunk in (first, *middle))
    assert "".join(chunk.choices[0].delta.content for chunk in middle) == same_text(server)
    assert (last.choices[0].delta.content, last.choices[0].finish_reason) == (None, "length")
    assert usage.choices == []
    assert usage.usage.completion_tokens == 24


def test_the_raw_stream_ends_as_openais_does(server: Running) -> None:
    body = {"messages": MESSAGES, "stream": True, **GREEDY}
    with server.http().stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    assert all("usage" not in each for each in events)


def test_several_answers_to_one_question(server: Running) -> None:
    options = {"temperature": 1.0, "seed": 5, "max_tokens": 12}
    found = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, n=3, **options)
    expected = [server.llm.chat(MESSAGES, **{**options, "seed": 5 + number}).read() for number in range(3)]
    assert [choice.message.content for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert found.usage.completion_tokens == 36
    texts = ["", "", ""]
    for chunk in server.client().chat.completions.create(model=MODEL, messages=MESSAGES, n=3, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == expected


def test_probabilities_of_tokens(server: Running) -> None:
    options = {"logprobs": True, "top_logprobs": 3, **GREEDY}
    whole = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, **options)
    content = whole.choices[0].logprobs.content
    assert len(content) == 24
    assert all(len(each.top_logprobs) == 3 and each.logprob <= 0 for each in content)
    told = b"".join(bytes(each.bytes) for each in content)
    assert codecs.getincrementaldecoder("utf-8")("replace").decode(told) == same_text(server)  # no half a character
    parts = []
    for chunk in server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **options):
        if chunk.choices[0].logprobs is not None:
            parts += chunk.choices[0].logprobs.content
    assert parts == content
    with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs"):
        server.client().chat.completions.create(model=MODEL, messages=MESSAGES, top_logprobs=3)


def test_probabilities_of_tokens_whose_text_a_stop_string_takes_are_streamed_too(server: Running) -> None:
    options = {"model": MODEL, "temperature": 0, "max_tokens": 24, "stop": [same_text(server)[5:8]]}
    chats, texts = server.client().chat.completions, server.client().completions
    whole = chats.create(messages=MESSAGES, logprobs=True, **options).choices[0].logprobs.content
    parts = []
    for chunk in chats.create(messages=MESSAGES, logprobs=True, stream=True, **options):
        parts += [] if chunk.choices[0].logprobs is None else chunk.choices[0].logprobs.content
    assert parts == whole
    options["stop"] = [texts.create(prompt="the ", **options | {"stop": None}).choices[0].text[5:8]]
    told = texts.create(prompt="the ", logprobs=1, **options).choices[0].logprobs
    tokens, offsets = [], []
    for chunk in texts.create(prompt="the ", logprobs=1, stream=True, **options):
        if chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.tokens
            offsets += chunk.choices[0].logprobs.text_offset
    assert (tokens, offsets) == (told.tokens, told.text_offset)


class Weather(pydantic.BaseModel):
    """What an answer must be."""

    place: Literal["here", "there"]
    degrees: list[Literal[1, 2, 3]] = pydantic.Field(max_length=3)


def test_answers_that_follow_a_schema(server: Running) -> None:
    found = server.client().chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Weather, temperature=1.5, seed=1, max_tokens=300
    )
    assert isinstance(found.choices[0].message.parsed, Weather)
    assert found.choices[0].finish_reason == "stop"
    schema = {"name": "list", "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}}
    text = (
        server.client()
        .chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format={"type": "json_schema", "json_schema": schema}
        )
        .choices[0]
        .message.content
    )
    assert len(json.loads(text)) == 2
    impossible = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": 2, "maximum": 1}},
    }
    with pytest.raises(openai.BadRequestError, match="Unsatisfiable"):
        server.client().chat.completions.create(model=MODEL, messages=MESSAGES, response_format=impossible)


def test_grammars_of_llama_cpp(server: Running) -> None:
    found = server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"grammar": 'root ::= "yes" | "no"'}
    )
    assert found.choices[0].message.content in ("yes", "no")


def test_stop_strings_seeds_and_biases(server: Running) -> None:
    text = same_text(server)
    stop = text[5:8]
    found = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stop=[stop], **GREEDY)
    assert found.choices[0].message.content == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    token = server.llm.tokenize("z", add_special=False)[0]
    biased = server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, logit_bias={str(token): 100}, temperature=0, max_tokens=4
    )
    assert biased.choices[0].message.content == "zzzz"


def test_texts_are_continued(server: Running) -> None:
    client = server.client()
    expected = {text: server.llm.complete(text, temperature=0, max_tokens=8).read() for text in ("the ", "an inn")}
    found = client.completions.create(model=MODEL, prompt=list(expected), temperature=0, max_tokens=8, echo=True)
    assert [choice.text for choice in found.choices] == [text + answer for text, answer in expected.items()]
    assert found.usage.completion_tokens == 16
    tokens = server.llm.tokenize("the ")
    by_tokens = client.completions.create(model=MODEL, prompt=tokens, temperature=0, max_tokens=8, logprobs=2)
    assert by_tokens.choices[0].text == expected["the "]
    assert len(by_tokens.choices[0].logprobs.tokens) == 8
    streamed = client.completions.create(model=MODEL, prompt="the ", temperature=0, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == expected["the "]
    assert len(client.completions.create(model=MODEL, prompt="the ", temperature=0).choices[0].text) > 0
    with pytest.raises(openai.BadRequestError, match="no token 9999999"):
        client.completions.create(model=MODEL, prompt=[9999999])


def test_many_ask_at_the_same_time(server: Running) -> None:
    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def ask(number: int) -> str:
                messages = [{"role": "user", "content": f"hello {number}"}]
                if number % 2:
                    found = await client.chat.completions.create(model=MODEL, messages=messages, **GREEDY)
                    return found.choices[0].message.content
                stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True, **GREEDY)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(ask(number) for number in range(16)))

    expected = [
        server.llm.chat([{"role": "user", "content": f"hello {n}"}], temperature=0, max_tokens=24).read()
        for n in range(16)
    ]
    assert asyncio.run(together()) == expected


def test_one_model_answers_to_any_name_unless_names_are_strict(tiny_model: Path) -> None:
    with served(tiny_model, aliases=["davinci"]) as running:
        for name in ("other", "davinci", "/etc/passwd"):
            answer = running.client().chat.completions.create(model=name, messages=MESSAGES, max_tokens=1)
            assert answer.model == "tiny"
        with pytest.raises(openai.NotFoundError):
            running.client().models.retrieve("other")
    with served(tiny_model, aliases=["davinci"], strict_names=True) as running:
        client = running.client()
        assert client.chat.completions.create(model="davinci", messages=MESSAGES, max_tokens=1).model == "tiny"
        with pytest.raises(openai.NotFoundError, match="no model 'other'; there are: tiny"):
            client.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="/etc/passwd", messages=MESSAGES)


def test_what_is_wrong_is_said_with_the_numbers(server: Running) -> None:
    client = server.client()
    with pytest.raises(openai.BadRequestError, match=r"has \d+ tokens and the context holds 512") as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "the hen " * 400}])
    assert refused.value.code == "context_length_exceeded"
    turns = [{"role": role, "content": "the hen in the inn " * 8} for role in ("user", "assistant") * 6]
    with pytest.raises(openai.BadRequestError, match="the conversation has"):  # never a silent cut
        client.chat.completions.create(model=MODEL, messages=[*turns, *MESSAGES])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model=MODEL, messages=[])
    parts = [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]
    with pytest.raises(openai.APIStatusError, match=r"reads texts \('text'\), images") as unsupported:
        client.chat.completions.create(model=MODEL, messages=parts)
    assert unsupported.value.status_code == 400


def test_embeddings(server: Running) -> None:
    texts = ["the rain", "in the tin"]
    expected = server.llm.embed(texts)
    found = server.client().embeddings.create(model=MODEL, input=texts)  # the client asks for base64
    assert [each.index for each in found.data] == [0, 1]
    for each, own in zip(found.data, expected, strict=True):
        assert each.embedding == pytest.approx(own.tolist(), abs=1e-6)
    plain = server.client().embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert plain.usage.prompt_tokens == len(server.llm.tokenize(texts[0]))
    by_tokens = server.client().embeddings.create(model=MODEL, input=server.llm.tokenize(texts[0]))
    assert by_tokens.data[0].embedding == pytest.approx(expected[0].tolist(), abs=1e-6)
    for wrong, reason in (([], "0 texts"), ([""], "empty text"), ("the hen " * 400, "context holds 512")):
        with pytest.raises(openai.BadRequestError, match=reason):
            server.client().embeddings.create(model=MODEL, input=wrong)
    with pytest.raises(openai.BadRequestError, match="have 64 dimensions"):
        server.client().embeddings.create(model=MODEL, input="a", dimensions=65)
    short = server.client().embeddings.create(model=MODEL, input=texts[0], dimensions=8).data[0].embedding
    scale = short[0] / plain.data[0].embedding[0]
    assert short == pytest.approx([scale * value for value in plain.data[0].embedding[:8]], abs=1e-6)


def test_text_parts_are_joined(server: Running) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "the rain "}, {"type": "text", "text": "in the tin"}]}
    ]
    found = server.client().chat.completions.create(model=MODEL, messages=parts, **GREEDY)
    assert found.choices[0].message.content == same_text(server)


def test_keys(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, key="a secret")) as running:
        assert running.client().models.list().data
        for wrong in ("none", "a secret2", "A SECRET"):
            stranger = running.client().with_options(api_key=wrong)
            with pytest.raises(openai.AuthenticationError, match="the key is wrong"):
                stranger.models.list()


@pytest.mark.parametrize("streams", [True, False])
def test_who_goes_away_ends_the_answer(long_model: Path, streams: bool) -> None:
    with served(long_model) as running:
        http = running.http()
        body = {"messages": MESSAGES, "temperature": 0, "stream": streams}
        if streams:
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                next(response.iter_lines())
        else:
            http.timeout = 1.0
            with pytest.raises(Exception, match="timed out"):
                http.post("/v1/chat/completions", json=body)
        until(lambda: not running.llm.telemetry.queue.n_active)
        until(lambda: not running.pool.n_users)


def test_a_full_queue_is_said_at_once(long_model: Path) -> None:
    options = ServerOptions(port=0, parallel=1, queue=1)
    with served(long_model, options) as running:
        client = running.client()
        streams = [
            client.chat.completions.create(model="endless", messages=MESSAGES, temperature=0, stream=True)
            for _ in range(2)
        ]
        next(iter(streams[0]))
        until(lambda: running.llm.telemetry.n_requests == 2)
        with pytest.raises(openai.InternalServerError, match="the most are 2") as refused:
            client.chat.completions.create(model="endless", messages=MESSAGES)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        slots = running.http().get("/slots").json()
        assert [slot["is_processing"] for slot in slots] == [False, True] or len(slots) == 2
        for stream in streams:
            stream.close()
