"""Sounds in requests: OpenAI's forms, counts, what is stored, what is told of models, and refusals."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest

from edgeinfer.app.server import base64_fields, request_sounds
from edgeinfer.models.store import path_model
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA
from tests.server.conftest import Running, served
from tests.sounds import SOUNDS, tone, wav

pytest.importorskip("miniaudio")
pytest.importorskip("soxr")

HEARING = DATA / "sounds" / "qwen2a.gguf"
PROJECTOR = DATA / "sounds" / "mmproj-qwen2a.gguf"
LOADING: dict[str, Any] = {"spec": "off", "n_context": 256, "mmproj": str(PROJECTOR)}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
TALK, SONG = wav(tone()), (SOUNDS / "chirp.mp3").read_bytes()
TEXT = {"type": "text", "text": "What is said?"}
ENGINE_SOUND = {"type": "audio", "audio": TALK}


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def audio(data: bytes, form: str = "wav") -> dict[str, Any]:
    """A sound as OpenAI's clients send it."""
    return {"type": "input_audio", "input_audio": {"data": coded(data), "format": form}}


ASKED = [{"role": "user", "content": [TEXT, audio(TALK)]}]


@pytest.fixture(scope="module")
def hearing() -> Iterator[Running]:
    """A server over a tiny model that hears."""
    with served(HEARING, drafting=LOADING) as running:
        yield running


def same_text(running: Running, *parts: object) -> str:
    """The answer by the Python API."""
    return running.llm.chat([{"role": "user", "content": list(parts)}], **GREEDY).read()


def n_tokens(running: Running, *parts: object) -> int:
    return running.llm.prompts.n_tokens([{"role": "user", "content": list(parts)}])


@pytest.mark.parametrize(("data", "form"), [(TALK, "wav"), (SONG, "mp3")], ids=["wav", "mp3"])
def test_openais_client_sends_a_sound(hearing: Running, data: bytes, form: str) -> None:
    messages: Any = [{"role": "user", "content": [TEXT, audio(data, form)]}]
    own = {"type": "audio", "audio": data}
    found = hearing.client().chat.completions.create(model="x", modalities=["text"], messages=messages, **GREEDY)
    assert found.choices[0].message.content == same_text(hearing, TEXT, own)
    assert found.usage.prompt_tokens == n_tokens(hearing, TEXT, own) > n_tokens(hearing, TEXT) + 10
    stream = hearing.client().chat.completions.create(
        model="x", messages=messages, stream=True, extra_body={"return_progress": True}, **GREEDY
    )
    assert "".join(each.choices[0].delta.content or "" for each in stream) == found.choices[0].message.content


def test_sounds_stand_where_they_are_sent(hearing: Running) -> None:
    parts = [{"type": "text", "text": text} for text in ("Like this:", "or this?")]
    messages: Any = [
        {"role": "system", "content": [parts[0], audio(SONG, "mp3")]},
        {"role": "user", "content": [audio(TALK), TEXT, audio(SONG, "mp3"), parts[1]]},
    ]
    song = {"type": "audio", "audio": SONG}
    told: Any = [
        {"role": "system", "content": [parts[0], song]},
        {"role": "user", "content": [ENGINE_SOUND, TEXT, song, parts[1]]},
    ]
    prompt = hearing.http().post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == hearing.llm.prompts.render(told)
    assert prompt.count("[audio]") == 3
    found = hearing.client().chat.completions.create(model="x", messages=messages, **GREEDY)
    assert found.choices[0].message.content == hearing.llm.chat(told, **GREEDY).read()
    counted = hearing.http().post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    assert counted["input_tokens"] == found.usage.prompt_tokens == hearing.llm.prompts.n_tokens(told)


def test_responses_keep_their_sounds(hearing: Running) -> None:
    client = hearing.client()
    parts = [{"type": "input_text", "text": "What is said?"}, audio(TALK)]
    asked: Any = {"model": "x", "input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 8}
    found = client.responses.create(**asked)
    assert found.output_text == same_text(hearing, TEXT, ENGINE_SOUND)
    (item,) = client.get(f"/responses/{found.id}/input_items", cast_to=httpx.Response).json()["data"]
    assert item["content"][1] == audio(TALK)
    later = client.responses.create(model="x", previous_response_id=found.id, input="And now?", max_output_tokens=4)
    assert later.usage.input_tokens > found.usage.input_tokens
    assert later.usage.input_tokens_details.cached_tokens >= found.usage.input_tokens - 1
    counted = client.post("/responses/input_tokens", body=asked, cast_to=httpx.Response).json()
    assert counted["input_tokens"] == found.usage.input_tokens


def test_what_a_model_reads_is_told(hearing: Running) -> None:
    http = hearing.http()
    assert http.get("/props").json()["modalities"] == {"vision": False, "video": False, "audio": True}
    record = http.get("/v1/models").json()["data"][0]
    assert record["architecture"]["input_modalities"] == ["text", "audio"]


def test_what_a_model_reads_is_known_before_it_is_loaded(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "hearing.gguf"
    shutil.copy(HEARING, model)
    shutil.copy(PROJECTOR, tmp_path / "mmproj-F16.gguf")
    with served(tiny_model, others=[path_model(model)]) as running:
        records = {each["id"]: each for each in running.http().get("/v1/models").json()["data"]}
        assert records["hearing"]["architecture"]["input_modalities"] == ["text", "audio"]
        assert records["hearing"]["status"]["value"] == "unloaded"


BAD_SOUNDS = [
    ("@@@@", "invalid_base64_audio", "characters that base64 has not"),
    (coded(TALK)[:-1], "invalid_base64_audio", "is cut off"),
    ("", "invalid_audio", "is empty"),
    ("QUJD", "invalid_audio", "no known sound; what can be read is WAV, MP3 or FLAC"),
    (coded((SOUNDS / "chirp.ogg").read_bytes()), "invalid_audio", "is Ogg"),
    (coded(TALK[:40]), "invalid_audio", "cannot be decoded"),
    (coded((SOUNDS / "chirp.flac").read_bytes()[:6000]), "invalid_audio", "it is damaged"),
    (coded(wav(tone(0.001))), "invalid_audio", "ms"),
]


@pytest.mark.parametrize(("data", "code", "named"), BAD_SOUNDS, ids=[named for *_, named in BAD_SOUNDS])
def test_what_is_no_sound_is_named_by_its_place(hearing: Running, data: str, code: str, named: str) -> None:
    bad = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    messages: Any = [*ASKED, {"role": "user", "content": [TEXT, bad]}]
    with pytest.raises(openai.BadRequestError) as refused:
        hearing.client().chat.completions.create(model="x", messages=messages)
    error: Any = refused.value.body
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert named in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300
    if named != "ms":  # what an encoder refuses does not know the request
        assert error["param"] == "messages[1].content[1].input_audio"
        assert error["message"].startswith(error["param"])


def test_a_data_url_is_read_too(hearing: Running) -> None:
    part = {"type": "input_audio", "input_audio": {"data": f"data:audio/wav;base64,{coded(TALK)}"}}
    found = hearing.http().post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})
    assert found.json()["usage"]["prompt_tokens"] == n_tokens(hearing, ENGINE_SOUND)


def test_answers_and_modules_go_without_sounds(hearing: Running) -> None:
    for message, named in (
        ({"role": "assistant", "content": [audio(TALK)]}, "answers have no sounds"),
        ({"role": "user", "content": [audio(TALK), {"type": "module", "name": "m"}]}, "sounds or modules"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content[0].input_audio is missing"),
        ({"role": "user", "content": [{"type": "audio", "audio": coded(TALK)}]}, "sounds ('input_audio')"),
    ):
        refused = hearing.http().post("/v1/chat/completions", json={"messages": [message]})
        assert (refused.status_code, named in refused.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("name", "code"), [("MOST_SOUNDS", "too_many_sounds"), ("MOST_SECONDS", "audio_too_large")])
def test_sounds_of_a_request_are_limited_together(
    hearing: Running, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setattr(request_sounds, name, {"MOST_SOUNDS": 2, "MOST_SECONDS": 1.2}[name])
    http, both = hearing.http(), [{"role": "user", "content": [audio(TALK), audio(TALK)]}]
    assert http.post("/v1/chat/completions", json={"messages": both, **GREEDY}).status_code == 200
    error = http.post("/v1/chat/completions", json={"messages": [*both, *ASKED]}).json()["error"]
    assert (error["code"], error["param"]) == (code, "messages[1].content[1].input_audio")


def test_a_sound_is_limited_before_it_is_decoded(hearing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("Any", base64_fields.MOST_BYTES), "audio", 3000)
    error = hearing.http().post("/v1/chat/completions", json={"messages": ASKED}).json()["error"]
    assert (error["code"], "sounds may have up to" in error["message"]) == ("audio_too_large", True)


DEAF = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/chat/completions/input_tokens": {"messages": ASKED},
    "/apply-template": {"messages": ASKED},
    "/v1/responses": {"input": [{"role": "user", "content": [audio(TALK)]}]},
}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_model_that_hears_nothing_says_so_and_is_not_opened_for_it(
    tiny_model: Path, tmp_path: Path, is_open: bool
) -> None:
    deaf = write_tiny_llama(tmp_path / "deaf.gguf", seed=2)
    with served(tiny_model, others=[path_model(deaf)], most_models=2) as running:
        http = running.http()
        if is_open:
            assert http.post("/models/load", json={"model": "deaf"}).status_code == 200
        n_open = len(running.opened)
        for path, body in DEAF.items():
            refused = http.post(path, json={"model": "deaf", **body})
            error = refused.json()["error"]
            assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false"), path
            assert error["code"] == "audio_input_not_supported"
            assert "deaf reads no sound" in error["message"]
            assert "--mmproj" in error["message"]
        assert len(running.opened) == n_open


def test_a_model_that_hears_sees_nothing(hearing: Running) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    error = hearing.http().post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [image]}]})
    assert error.json()["error"]["code"] == "image_input_not_supported"
