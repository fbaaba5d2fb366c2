"""What people try first: a text in place of messages, print, with, await, None and texts in place of values, copies."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import edgeinfer
from edgeinfer.engine.llm import LLM
from edgeinfer.errors import BadSetting, EngineClosed, ModelNotFound, UnknownKey
from edgeinfer.load_options import LoadOptions

USER = [{"role": "user", "content": "the hen"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


class Hen(BaseModel):
    name: str


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with edgeinfer.load(tiny_model, device="reference", n_sessions=3) as loaded:
        yield loaded


def test_a_text_is_the_users_message(llm: LLM) -> None:
    assert llm.chat("the hen", **GREEDY).read() == llm.chat(USER, **GREEDY).read()
    assert llm.chat("the hen", **GREEDY).prompt == llm.chat(USER, **GREEDY).prompt
    with pytest.raises(BadSetting, match="a chat needs a list of at least one message"):
        llm.chat("")


def test_a_system_message_comes_first(llm: LLM) -> None:
    system = [{"role": "system", "content": "the rain"}]
    assert llm.chat("the hen", system="the rain").prompt == llm.chat([*system, *USER]).prompt
    with pytest.raises(BadSetting, match="has a system message already"):
        llm.chat([*system, *USER], system="another")
    with pytest.raises(BadSetting, match="system cannot be 3"):
        llm.chat(USER, system=3)  # type: ignore[arg-type]


def test_a_stream_prints_as_its_whole_text(llm: LLM) -> None:
    stream = llm.chat("the hen", **GREEDY)
    assert repr(stream) == "<TextStream: nothing generated yet; iterate over it, or read() it>"
    first = next(iter(stream))
    assert repr(stream) == f"<TextStream: {stream.n_generated} tokens so far: {first!r}>"
    assert str(stream) == f"{stream}" == stream._repr_markdown_() == stream.read() == stream.text
    assert repr(stream) == f"<TextStream: 8 tokens done (length): {stream.text!r}>"
    long = llm.chat("the hen", temperature=0, max_tokens=200)
    assert len(long.read()) > 100
    assert len(repr(long)) < 150


def test_a_stream_is_read_in_an_event_loop(llm: LLM) -> None:
    async def read() -> str:
        return await llm.chat("the hen", **GREEDY).aread()

    assert asyncio.run(read()) == llm.chat("the hen", **GREEDY).read()


def test_the_end_of_with_stops_a_stream(llm: LLM) -> None:
    with llm.chat("the hen", temperature=0) as stream:
        next(iter(stream))
    assert stream.is_stopped
    assert stream.text
    assert llm.telemetry.n_requests == 0


def test_models_sessions_and_streams_say_what_they_are(tiny_model: Path) -> None:
    model = edgeinfer.load(tiny_model, device="reference")
    session = model.session()
    assert repr(model) == "<LLM tiny: llama on reference, 512 tokens of context>"
    assert repr(session) == "<Session: 0 messages, 0 tokens cached>"
    stream = session.chat("the hen", **GREEDY)
    stream.read()
    assert repr(session) == f"<Session: 2 messages, {len(session.tokens)} tokens cached>"
    for each in (model, session, stream):
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                take(each)
    model.close()
    assert repr(model) == "<LLM tiny: closed>"
    assert repr(session) == "<Session: closed, 2 messages>"
    with pytest.raises(EngineClosed):
        model.chat("Hi")


def test_none_is_no_option(llm: LLM) -> None:
    none = dict.fromkeys(edgeinfer.SamplingSettings.__dataclass_fields__) | {"stop": None, "tools": None}
    assert llm.chat("the hen", **{**none, **GREEDY}).read() == llm.chat("the hen", **GREEDY).read()
    seeded = llm.chat("the hen", max_tokens=8, seed=4, temperature=None).read()
    assert seeded == llm.chat("the hen", max_tokens=8, seed=4).read()


@pytest.mark.parametrize("name", ["max_tokens", "logprobs", "scored_from", "max_thought_tokens"])
def test_a_text_in_place_of_a_number_is_refused(llm: LLM, name: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} cannot be '8': it must be a whole number"):
        llm.chat("the hen", **{name: "8"})


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user"}, "a user message needs content"),
        ({"role": "user", "text": "Hi"}, "a user message needs content"),
        ({"role": "user", "content": "?", "images": ["x.png"]}, 'the field "images" is not read'),
    ],
    ids=["no content", "another name", "images"],
)
def test_nothing_of_a_message_is_left_out_silently(llm: LLM, message: dict[str, object], told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        llm.chat([message])


def test_a_pydantic_model_is_a_schema(llm: LLM) -> None:
    stream = llm.chat("the hen", schema=Hen, temperature=0, max_tokens=60)
    assert Hen.model_validate_json(stream.read()).name == json.loads(stream.content)["name"]
    with pytest.raises(BadSetting, match=r"the class Path is no schema; .* pydantic.TypeAdapter\(Path\)"):
        llm.chat("the hen", schema=Path)


def test_only_texts_are_tokenized(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="tokenize takes a text, a str, not bytes"):
        llm.tokenize(b"the hen")  # type: ignore[arg-type]


def test_options_of_loading_may_be_texts() -> None:
    options: Any = {"n_context": "512", "threads": "2", "cores": "0-1", "spec": "4", "history": "off", "kv": "int8"}
    found = LoadOptions(**options)
    assert (found.n_context, found.threads, found.cores, found.spec, found.history) == (512, 2, (0, 1), 4, False)
    assert found.kv == "q8"
    assert LoadOptions(ram_bytes="60%", device="cpu").ram_bytes == "60%"
    with pytest.raises(BadSetting, match="progress cannot be True: it must be a function"):
        LoadOptions(progress=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [str, Path])
def test_one_file_needs_no_list(tiny_model: Path, tmp_path: Path, kind: type) -> None:
    missing = tmp_path / "adapter.gguf"
    with pytest.raises(ModelNotFound, match=r"adapter\.gguf does not exist"):
        edgeinfer.load(tiny_model, device="reference", lora=kind(missing))
    assert tuple(map(str, LoadOptions(draft_from=kind(missing)).draft_from)) == (str(missing),)


@pytest.mark.parametrize("name", ["gpu", "metal"])
def test_a_gpu_is_called_by_its_device(tiny_model: Path, name: str) -> None:
    with pytest.raises(UnknownKey, match=rf"'{name}'; edgeinfer has: cpu, .*; a GPU is cuda \(NVIDIA's\) or"):
        edgeinfer.load(tiny_model, device=name)
