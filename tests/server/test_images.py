"""Images in requests: clients' own forms, counts, refusals, what is stored, and a server that goes on meanwhile."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest

from edgeinfer.app.server import base64_fields, request_images
from edgeinfer.app.server.followed import FollowedStream
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.engine.media.media_reader import MediaReader
from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.models.download import public
from edgeinfer.models.images.image import Image
from tests.file_server import Served, serving
from tests.golden.goldens import DATA
from tests.server.conftest import UNENCRYPTED, Running, served
from tests.server.test_anthropic import client_of
from tests.waiting import until

pytest.importorskip("PIL")
ollama = pytest.importorskip("ollama")

SEEING = DATA / "vision" / "idefics3.gguf"
LOADING: dict[str, Any] = {"spec": "off", "n_context": 2048}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
N_TILES = 13
"""Parts of which an image of PHOTO's size is made."""


def file_of(pixels: Any, form: str = "PNG") -> bytes:
    """The file of an image."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def photo(seed: int) -> bytes:
    """An image that no other seed has."""
    return file_of(np.random.default_rng(seed).integers(0, 256, (40, 56, 3), np.uint8))


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{coded(data)}"


PHOTO, OTHER = photo(1), photo(2)
IMAGE = {"type": "image_url", "image_url": {"url": url_of(PHOTO), "detail": "low"}}
TEXT = {"type": "text", "text": "What is this?"}
ASKED = [{"role": "user", "content": [TEXT, IMAGE]}]
ENGINE_IMAGE = {"type": "image", "image": PHOTO}


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    """A server over a tiny model that sees."""
    with served(SEEING, drafting=LOADING) as running:
        yield running


def same_text(running: Running, *parts: object) -> str:
    """The answer by the Python API."""
    return running.llm.chat([{"role": "user", "content": list(parts)}], **GREEDY).read()


def n_tokens(running: Running, *parts: object) -> int:
    return running.llm.prompts.n_tokens([{"role": "user", "content": list(parts)}])


@pytest.mark.parametrize("address", [IMAGE["image_url"], url_of(PHOTO)], ids=["object", "text"])
def test_openais_client_shows_an_image(seeing: Running, address: object) -> None:
    messages: Any = [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": address}]}]
    found = seeing.client().chat.completions.create(model="x", messages=messages, **GREEDY)
    assert found.choices[0].message.content == same_text(seeing, TEXT, ENGINE_IMAGE)
    assert found.usage.prompt_tokens == n_tokens(seeing, TEXT, ENGINE_IMAGE) > 100
    stream = seeing.client().chat.completions.create(
        model="x", messages=messages, stream=True, extra_body={"return_progress": True}, **GREEDY
    )
    assert "".join(each.choices[0].delta.content or "" for each in stream) == found.choices[0].message.content


def test_images_stand_where_they_are_sent(seeing: Running) -> None:
    """Several of one turn, between texts, in a result of a tool, and in a system message."""
    other = {"type": "image_url", "image_url": url_of(OTHER)}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parts = [{"type": "text", "text": text} for text in ("Like this:", "and", "this?", "and\nthis?")]
    messages: Any = [
        {"role": "system", "content": [parts[0], other]},
        {"role": "user", "content": [TEXT, IMAGE, *parts[1:3], other]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [IMAGE]},
    ]
    told: Any = [
        {"role": "system", "content": [parts[0], {"type": "image", "image": OTHER}]},
        {"role": "user", "content": [TEXT, ENGINE_IMAGE, parts[3], {"type": "image", "image": OTHER}]},
        messages[2],
        {"role": "tool", "tool_call_id": "c", "content": [ENGINE_IMAGE]},
    ]
    prompt = seeing.http().post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == seeing.llm.prompts.render(told)
    assert prompt.count("[image]") == 4
    found = seeing.client().chat.completions.create(model="x", messages=messages, **GREEDY)
    assert found.choices[0].message.content == seeing.llm.chat(told, **GREEDY).read()
    counted = seeing.http().post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    assert counted["input_tokens"] == found.usage.prompt_tokens == seeing.llm.prompts.n_tokens(told)


def test_responses_keep_their_images(seeing: Running) -> None:
    client = seeing.client()
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url_of(PHOTO)}]
    asked: Any = {"model": "x", "input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 8}
    found = client.responses.create(**asked)
    assert found.output_text == same_text(seeing, TEXT, ENGINE_IMAGE)
    (item,) = client.responses.input_items.list(found.id).data
    assert [part.type for part in item.content] == ["input_text", "input_image"]
    assert item.content[1].image_url == url_of(PHOTO)
    n_encoded = reader(seeing).n_encoded
    later = client.responses.create(model="x", previous_response_id=found.id, input="And now?", max_output_tokens=4)
    assert later.usage.input_tokens > found.usage.input_tokens
    assert later.usage.input_tokens_details.cached_tokens >= found.usage.input_tokens - 1
    assert reader(seeing).n_encoded == n_encoded
    counted = client.post("/responses/input_tokens", body=asked, cast_to=httpx.Response).json()
    assert counted["input_tokens"] == found.usage.input_tokens
    of_a_file: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1", "detail": "auto"}]}]
    with pytest.raises(openai.BadRequestError, match="file_id, and this server keeps no files") as refused:
        client.responses.create(model="x", input=of_a_file)
    assert refused.value.param == "input[0].content[0]"


def test_results_of_calls_have_images(seeing: Running) -> None:
    """As Codex's view_image gives them."""
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = [{"type": "input_image", "image_url": url_of(PHOTO)}]
    asked: Any = ["Look.", call, {"type": "function_call_output", "call_id": "c", "output": output}]
    asked[0] = {"role": "user", "content": asked[0]}
    found = seeing.client().responses.create(model="x", input=asked, max_output_tokens=4, temperature=0)
    asked[2]["output"] = ""
    without = seeing.client().responses.create(model="x", input=asked, max_output_tokens=4, temperature=0)
    n_rows = n_tokens(seeing, TEXT, ENGINE_IMAGE) - n_tokens(seeing, TEXT)
    assert found.usage.input_tokens - without.usage.input_tokens == n_rows
    shown = seeing.client().responses.input_items.list(found.id, order="asc").data[2]
    assert shown.output[0].image_url == url_of(PHOTO)


def reader(running: Running) -> MediaReader:
    images = running.llm._media
    assert images is not None
    return images


def test_anthropics_client_shows_images(seeing: Running) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": coded(PHOTO)}
    image: Any = {"type": "image", "source": source}
    asked: Any = {"model": "x", "messages": [{"role": "user", "content": [TEXT, image]}]}
    with client_of(seeing) as client:
        found = client.messages.create(**asked, max_tokens=8, extra_body={"temperature": 0})
        assert found.content[0].text == same_text(seeing, TEXT, ENGINE_IMAGE)
        assert client.messages.count_tokens(**asked).input_tokens == n_tokens(seeing, TEXT, ENGINE_IMAGE)
        use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
        content = [{"type": "text", "text": "here"}, image]
        result = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": True}
        turns: Any = [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        counted = client.messages.count_tokens(model="x", messages=turns).input_tokens
        without: Any = [*turns[:2], {"role": "user", "content": [{**result, "content": content[:1]}]}]
        assert counted - client.messages.count_tokens(model="x", messages=without).input_tokens > 70
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\] is an image"):
            client.messages.create(model="x", max_tokens=1, messages=[{"role": "assistant", "content": [image]}])


def test_ollamas_client_shows_images(seeing: Running, tmp_path: Path) -> None:
    client = seeing.clients.enter_context(ollama.Client(host=seeing.url, verify=UNENCRYPTED))
    path, options = tmp_path / "photo.png", {"temperature": 0, "num_predict": 8}
    path.write_bytes(PHOTO)
    expected = same_text(seeing, ENGINE_IMAGE, TEXT)  # images come first there
    messages = [{"role": "user", "content": "What is this?", "images": [path]}]
    assert client.chat(model="x", messages=messages, options=options).message.content == expected
    found = client.generate(model="x", prompt="What is this?", images=[PHOTO], options=options)
    assert (found.response, found.context) == (expected, None)
    assert found.prompt_eval_count == n_tokens(seeing, ENGINE_IMAGE, TEXT)
    assert client.show("idefics3").capabilities == ["completion", "tools", "vision"]
    with pytest.raises(ollama.ResponseError, match="leave raw, suffix and context out"):
        client.generate(model="x", prompt="hi", images=[PHOTO], raw=True)


def test_lists_and_properties_tell_who_sees(seeing: Running, server: Running) -> None:
    for running, kinds in ((seeing, ["text", "image"]), (server, ["text"])):
        http, sees = running.http(), len(kinds) > 1
        assert http.get("/v1/models").json()["data"][0]["architecture"]["input_modalities"] == kinds
        assert http.get("/props").json()["modalities"] == {"vision": sees, "video": False, "audio": False}


def test_metrics_and_slots_count_the_rows_of_images(tmp_path: Path) -> None:
    with served(SEEING, ServerOptions(port=0, slot_folder=tmp_path), drafting=LOADING) as running:
        http, body = running.http(), {"messages": ASKED, "id_slot": 0, **GREEDY}
        first = http.post("/v1/chat/completions", json=body).json()["usage"]
        n_prompt = first["prompt_tokens"]
        assert f'edgeinfer_prompt_tokens_total{{model="idefics3"}} {n_prompt}.0' in http.get("/metrics").text
        slots = http.get("/slots").json()
        assert slots[0]["n_prompt_tokens_cache"] == n_prompt + first["completion_tokens"]
        saved = http.post("/slots/0?action=save", json={"filename": "seen"}).json()
        assert http.post("/slots/0?action=erase", json={}).json()["n_erased"] == saved["n_saved"] >= n_prompt
        assert http.post("/slots/0?action=restore", json={"filename": "seen"}).json()["n_restored"] == saved["n_saved"]
        again = http.post("/v1/chat/completions", json=body).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
        told = http.post("/v1/chat/completions", json={**body, "verbose": True}).json()["__verbose"]["prompt"]
        assert told.count("[image]") == N_TILES


class Gate:
    """Holds up a method until it is opened; the encoder's at each part of an image."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type = OpenEncoder, name: str = "encoded") -> None:
        self.opened, self.n_begun = threading.Event(), 0
        method = getattr(owner, name)

        def held(*args: Any) -> Any:
            self.n_begun += 1
            assert self.opened.wait(60)
            return method(*args)

        monkeypatch.setattr(owner, name, held)


def test_the_server_answers_while_an_image_is_encoded(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, codes = Gate(monkeypatch), list[int]()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": url_of(photo(3))}]}
    body = {"messages": [message], **GREEDY}
    asking = threading.Thread(target=lambda: codes.append(post(seeing, body).status_code))
    asking.start()
    try:
        until(lambda: gate.n_begun)
        assert seeing.http().get("/health").json() == {"status": "ok"}
        assert seeing.http().post("/tokenize", json={"content": "hi"}).status_code == 200
        assert seeing.http().post("/v1/chat/completions", json={"messages": []}).status_code == 400
        assert seeing.http().get("/metrics").status_code == 200
        assert codes == []
    finally:
        gate.opened.set()
        asking.join(60)
    assert (codes, gate.n_begun) == ([200], N_TILES)


def test_many_images_leave_threads_to_others(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, codes = Gate(monkeypatch, MediaReader, "_inputs"), list[int]()

    def ask(seed: int) -> None:
        part = {"type": "image_url", "image_url": url_of(photo(seed))}
        codes.append(post(seeing, {"messages": [{"role": "user", "content": [part]}], **GREEDY}).status_code)

    asking = [threading.Thread(target=ask, args=(seed,)) for seed in range(100, 140)]
    for each in asking:
        each.start()
    try:
        until(lambda: seeing.pool.n_users == len(asking))
        until(lambda: gate.n_begun)
        for _ in range(3):
            assert post(seeing, {"messages": [{"role": "user", "content": "hi"}], **GREEDY}).status_code == 200
        assert codes == []
    finally:
        gate.opened.set()
        for each in asking:
            each.join(120)
    assert codes == [200] * len(asking)


def post(running: Running, body: object, **options: Any) -> httpx.Response:
    with httpx.Client(base_url=running.url, verify=UNENCRYPTED, timeout=60) as http:
        return http.post("/v1/chat/completions", json=body, **options)


def test_a_client_that_leaves_ends_the_encoding(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, streams, create = Gate(monkeypatch), list[FollowedStream](), FollowedStream.__init__

    def noted(stream: FollowedStream, *given: Any) -> None:
        streams.append(stream)
        create(stream, *given)

    monkeypatch.setattr(FollowedStream, "__init__", noted)
    asked = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url_of(photo(4))}]}]}
    body, place = json.dumps(asked).encode(), httpx.URL(seeing.url)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.host}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((place.host, place.port or 80)) as client:
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        until(lambda: gate.n_begun)
    try:
        until(lambda: streams[0].stream.is_stopped)
    finally:
        gate.opened.set()
    until(lambda: not seeing.pool.n_users)
    assert gate.n_begun < N_TILES


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this computer count as public."""
    monkeypatch.setattr(public, "is_public", lambda text: True)
    monkeypatch.setattr("psutil.net_if_addrs", dict)


@pytest.fixture(scope="module")
def fetching() -> Iterator[Running]:
    with served(SEEING, ServerOptions(port=0, fetches_images=True), drafting=LOADING) as running:
        yield running


def asked_for(address: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": address}]}], **GREEDY}


@pytest.mark.usefixtures("near")
def test_images_are_fetched_where_that_is_allowed(fetching: Running) -> None:
    with serving() as files:
        files.files["/photo.png"] = Served(PHOTO, content_type="image/png", ranges=False)
        files.files["/page"] = Served(b"<html>", content_type="text/html", ranges=False)
        found = post(fetching, asked_for(files.url("/photo.png")))
        assert found.json()["choices"][0]["message"]["content"] == same_text(fetching, TEXT, ENGINE_IMAGE)
        source = {"type": "url", "url": files.url("/photo.png")}
        with client_of(fetching) as client:
            turn: Any = {"role": "user", "content": [TEXT, {"type": "image", "source": source}]}
            assert client.messages.create(model="x", max_tokens=8, messages=[turn], extra_body={"temperature": 0})
        for path, named in (("/page", "'text/html', no image"), ("/gone", "the server answered 404")):
            error = post(fetching, asked_for(files.url(path))).json()["error"]
            assert (error["code"], error["param"]) == ("invalid_image_url", "messages[0].content[1].image_url")
            assert named in error["message"]


@pytest.mark.usefixtures("near")
def test_a_stored_response_has_what_was_fetched(fetching: Running) -> None:
    with serving() as files:
        files.files["/photo.png"] = Served(PHOTO, content_type="image/png", ranges=False)
        content = [{"type": "input_image", "image_url": files.url("/photo.png"), "detail": "auto"}]
        client, asked = fetching.client(), {"model": "x", "max_output_tokens": 4}
        first = client.responses.create(input=[{"role": "user", "content": content}], **asked)  # type: ignore[call-overload]
        del files.files["/photo.png"]
        later = client.responses.create(previous_response_id=first.id, input="And?", **asked)  # type: ignore[call-overload]
        assert later.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
        assert len(files.log) == 1
        (item,) = client.responses.input_items.list(first.id).data
        assert item.content[0].image_url == url_of(PHOTO)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "0x7f000001", "0"])
def test_nothing_here_or_in_the_network_is_fetched(fetching: Running, host: str) -> None:
    error = post(fetching, asked_for(f"http://{host}:{fetching.url.rpartition(':')[2]}/health")).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_image_url", "messages[0].content[1].image_url")
    assert "no public address" in error["message"]


def test_data_urls_are_read_as_they_were_written() -> None:
    data = np.random.default_rng(0).bytes(3 * base64_fields.CHUNK // 2 + 1)
    assert request_images.decoded_data(url_of(data), "x") == data
    assert request_images.data_url(Image.of(PHOTO)) == url_of(PHOTO)
