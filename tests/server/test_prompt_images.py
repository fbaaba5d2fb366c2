"""Images in raw prompts and in texts to embed: llama-server's `multimodal_data`, and parts of embedded texts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from edgeinfer.app.server.prompt_images import MARK
from edgeinfer.engine.requests.prompt_rows import PromptRows
from edgeinfer.models.images.image import Image
from edgeinfer.steps import no_progress
from tests.server.conftest import UNENCRYPTED, Running, served
from tests.server.test_images import (
    ENGINE_IMAGE,
    LOADING,
    N_TILES,
    OTHER,
    PHOTO,
    SEEING,
    TEXT,
    Gate,
    coded,
    n_tokens,
    photo,
    reader,
    same_text,
    url_of,
)
from tests.waiting import until

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    """A server over a tiny model that sees."""
    with served(SEEING, drafting=LOADING) as running:
        yield running


def prompt_of(text: str, *files: bytes) -> dict[str, Any]:
    return {"prompt_string": text, "multimodal_data": [coded(each) for each in files]}


def complete(running: Running, prompt: object, **fields: object) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, **fields}
    answer = running.http().post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told_as_chat(running: Running, *parts: object) -> str:
    """The prompt of a conversation as a client writes it itself."""
    bos = running.llm.prompts.tokenizer.decode(running.llm.tokenize("")[:1])
    told = running.llm.prompts.render([{"role": "user", "content": list(parts)}])
    return told.removeprefix(bos).replace("[image]", MARK)


def test_a_prompt_with_images_is_that_of_a_conversation(seeing: Running) -> None:
    asked = [TEXT, ENGINE_IMAGE, {"type": "text", "text": "And this?"}, {"type": "image", "image": OTHER}]
    prompt = prompt_of(told_as_chat(seeing, *asked), PHOTO, OTHER)
    assert prompt["prompt_string"].count(MARK) == 2
    found = complete(seeing, prompt)
    assert (found["content"], found["tokens_evaluated"]) == (same_text(seeing, *asked), n_tokens(seeing, *asked))
    assert found["prompt"].count("[image]") == 2 * N_TILES
    n_encoded = reader(seeing).n_encoded
    again = complete(seeing, prompt)
    assert again["timings"]["cache_n"] >= found["tokens_evaluated"] - 1
    assert (again["content"], reader(seeing).n_encoded) == (found["content"], n_encoded)
    swapped = complete(seeing, {**prompt, "multimodal_data": prompt["multimodal_data"][::-1]})
    assert swapped["timings"]["cache_n"] < found["tokens_evaluated"] / 4  # what comes before the first image


def test_several_prompts_and_streams_have_images(seeing: Running) -> None:
    prompt = prompt_of(f"the {MARK} hen", PHOTO)
    one = complete(seeing, prompt)
    both = complete(seeing, [prompt, "the hen", {**prompt, "multimodal_data": [url_of(PHOTO)]}])
    assert isinstance(both, list)
    assert [each["content"] for each in both] == [
        one["content"],
        complete(seeing, "the hen")["content"],
        one["content"],
    ]
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "stream": True, "return_progress": True}
    text = seeing.http().post("/completion", json=body).text
    parts = [json.loads(line) for line in re.findall("^data: (.*)$", text, re.MULTILINE)]
    assert "".join(each["content"] for each in parts) == one["content"]


def test_where_clients_look_for_the_mark_and_who_sees(seeing: Running, server: Running) -> None:
    for running, sees in ((seeing, True), (server, False)):
        assert running.http().get("/props").json()["media_marker"] == MARK
        for path in ("/models", "/v1/models"):
            (told,) = running.http().get(path).json()["models"]
            assert ("multimodal" in told["capabilities"]) is sees
            assert "completion" in told["capabilities"]


BAD = [
    (
        prompt_of("no mark", PHOTO),
        "has <__media__> 0 times, and there are 1 images: its text must have <__media__> once",
    ),
    (prompt_of(MARK * 2, PHOTO), "has <__media__> 2 times"),
    (prompt_of(MARK), "has <__media__> 1 times, and there are 0 images"),
    (prompt_of(MARK, b"GIF89a"), "prompt.multimodal_data[0]"),
    (prompt_of(MARK, PHOTO[: len(PHOTO) // 2]), "prompt.multimodal_data[0] cannot be decoded"),
    ({"prompt_string": MARK, "multimodal_data": ["malformed"]}, "prompt.multimodal_data[0] is cut off"),
    ({"prompt_string": MARK, "multimodal_data": coded(PHOTO)}, "must be a list of images"),
    ({"prompt_string": MARK, "multimodal_data": [1]}, "must be a list of images"),
    ({"prompt_string": [1, 2], "multimodal_data": [coded(PHOTO)]}, "prompt_string must be a text"),
    ({"multimodal_data": [coded(PHOTO)]}, "prompt_string must be a text"),
]


@pytest.mark.parametrize(("prompt", "named"), BAD, ids=[named[:40] for _, named in BAD])
def test_what_is_wrong_with_a_prompt_is_said(seeing: Running, prompt: object, named: str) -> None:
    refused = seeing.http().post("/completion", json={"prompt": prompt, "n_predict": 1})
    error = refused.json()["error"]
    assert refused.status_code == 400, refused.text
    assert named in error["message"]
    assert error["param"].startswith("prompt")
    second = seeing.http().post("/completion", json={"prompt": ["x", prompt], "n_predict": 1})
    assert (second.status_code, second.json()["error"]["param"][:9]) == (400, "prompt[1]")


def test_a_mark_without_images_is_a_text(seeing: Running) -> None:
    assert complete(seeing, {"prompt_string": f"the {MARK}"})["tokens_evaluated"] == len(
        seeing.llm.tokenize(f"the {MARK}")
    )
    assert complete(seeing, {"prompt_string": "the hen", "multimodal_data": []})["content"]


@pytest.mark.parametrize("path", ["/completion", "/embeddings", "/v1/embeddings"])
def test_a_model_that_sees_nothing_refuses_for_good(server: Running, path: str) -> None:
    prompt = prompt_of(MARK, PHOTO)
    refused = server.http().post(path, json={"prompt": prompt, "input": prompt})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "image_input_not_supported")
    assert refused.headers["x-should-retry"] == "false"
    assert complete(server, {"prompt_string": "the hen", "multimodal_data": []})["content"]


def test_a_client_that_leaves_ends_the_encoding_of_a_prompt(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with httpx.Client(base_url=seeing.url, verify=UNENCRYPTED) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/completion", json={"prompt": prompt_of(MARK, photo(5))}, timeout=httpx.Timeout(30, read=1.0))
    assert gate.n_begun == 1
    threading.Timer(1.0, gate.opened.set).start()  # by then the server has seen that nobody waits
    until(lambda: not seeing.pool.n_users)
    assert gate.n_begun < N_TILES


def embedded(running: Running, path: str, given: object) -> list[list[float]]:
    answer = running.http().post(path, json={"input": given})
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_texts_with_images_are_embedded(seeing: Running, path: str) -> None:
    """As a text with the rows of the image among its tokens, which the encoder gives by itself."""
    llm, prompt = seeing.llm, prompt_of(f"the {MARK} hen", PHOTO)
    parts = [{"type": "text", "text": "the "}, {"type": "image_url", "image_url": {"url": url_of(PHOTO)}}]
    content = {"content": [*parts, {"type": "text", "text": " hen"}]}
    found = embedded(seeing, path, [prompt, content, "the  hen", prompt_of(f"the {MARK} hen", OTHER), prompt])
    assert found[0] == found[1] == found[4]
    assert found[0] not in (found[2], found[3])
    text, pieces = "the ", list[Any]()
    for each in (*reader(seeing).named(Image.of(PHOTO)).pieces(), " hen", None):
        if isinstance(each, str):
            text += each
            continue
        pieces += llm.prompts.tokenizer.encode(text, add_special=not pieces, goes_on=bool(pieces))
        text = ""
        if each is not None:
            (late,) = reader(seeing).rows([each], no_progress)
            pieces.append(PromptRows(late.values))
    (expected,) = llm.embed([pieces])
    assert np.array_equal(np.array(found[0], np.float32), expected)


def test_embedded_parts_are_checked(seeing: Running) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for part in (picture, {"type": "image_url"}, {"type": "input_audio", "input_audio": {}}):
        refused = seeing.http().post("/v1/embeddings", json={"input": ["x", {"content": [part]}]})
        assert (refused.status_code, refused.json()["error"]["param"][:8]) == (400, "input[1]")
