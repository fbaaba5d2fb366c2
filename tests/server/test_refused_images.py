"""Images that are refused: no images, too many, in the wrong place, and all for a model that sees nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import openai
import pytest

from edgeinfer.app.server import request_images
from edgeinfer.models.store import path_model
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served
from tests.server.test_images import (
    ASKED,
    ENGINE_IMAGE,
    GREEDY,
    IMAGE,
    LOADING,
    PHOTO,
    SEEING,
    TEXT,
    coded,
    file_of,
    same_text,
    url_of,
)
from tests.server.test_sidecar import OPEN, started

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    """A server over a tiny model that sees."""
    with served(SEEING, drafting=LOADING) as running:
        yield running


CUT_OFF = file_of(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8), "JPEG")[:9000]
BAD_IMAGES = [
    ("data:image/png;base64,@@@@", "invalid_base64_image", "characters that base64 has not"),
    ("data:image/png;base64,ÄÄÄÄ", "invalid_base64_image", "characters that base64 has not"),
    (url_of(PHOTO)[:-1], "invalid_base64_image", "is cut off"),
    ("data:image/png;base64,QUJD=QUJ", "invalid_base64_image", "= before its end"),
    ("data:image/png,abc", "invalid_base64_image", "must be base64"),
    ("data:image/png;base64", "invalid_base64_image", "must be base64"),
    ("data:image/png;base64,", "invalid_image", "is empty"),
    ("data:image/png;base64,QUJD", "invalid_image", "what can be read is PNG"),
    ("data:application/pdf;base64,JVBERi0xLjc=", "invalid_image", "is PDF"),
    (url_of(PHOTO[: len(PHOTO) // 2]), "invalid_image", "cannot be decoded"),
    (url_of(CUT_OFF), "invalid_image", "truncated"),
    (url_of(file_of(np.zeros((9000, 9000), np.uint8))), "invalid_image", "9000 x 9000 pixels"),
    ("https://example.org/a.png", "invalid_image_url", "this server fetches nothing that clients name"),
    ("file:///etc/passwd", "invalid_image_url", "must be a data URL"),
    (coded(PHOTO), "invalid_image_url", "must be a data URL"),
]


@pytest.mark.parametrize(("address", "code", "named"), BAD_IMAGES, ids=[named for *_, named in BAD_IMAGES])
def test_what_is_no_image_is_named_by_its_place(seeing: Running, address: str, code: str, named: str) -> None:
    messages: Any = [*ASKED, {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": address}}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        seeing.client().chat.completions.create(model="x", messages=messages)
    error: Any = refused.value.body
    place = "messages[1].content[1].image_url"
    assert (error["code"], error["param"], error["type"]) == (code, place, "invalid_request_error")
    assert error["message"].startswith(place)
    assert named in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300


def test_line_breaks_in_base64_change_nothing(seeing: Running) -> None:
    wrapped = "\r\n".join(coded(PHOTO)[start : start + 76] for start in range(0, len(coded(PHOTO)), 76))
    messages = [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": f"data:;base64,{wrapped}"}]}]
    found = seeing.http().post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()
    assert found["choices"][0]["message"]["content"] == same_text(seeing, TEXT, ENGINE_IMAGE)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "image_url"}, "messages[0].content[0].image_url is missing"),
        ({"type": "image_url", "image_url": {"detail": "low"}}, "messages[0].content[0].image_url must be"),
        ({"type": "image", "image": coded(PHOTO)}, "messages[0].content[0] is 'image'"),
    ],
)
def test_parts_without_an_image(seeing: Running, part: object, named: str) -> None:
    body = {"messages": [{"role": "user", "content": [part]}]}
    refused = seeing.http().post("/v1/chat/completions", json=body)
    assert (refused.status_code, named in refused.json()["error"]["message"]) == (400, True)


def test_answers_and_modules_go_without_images(seeing: Running) -> None:
    for message, named in (
        ({"role": "assistant", "content": [IMAGE]}, "answers have no images"),
        ({"role": "user", "content": [IMAGE, {"type": "module", "name": "m"}]}, "images or modules"),
    ):
        refused = seeing.http().post("/v1/chat/completions", json={"messages": [*ASKED, message]})
        assert (refused.status_code, named in refused.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("name", "code"), [("MOST_IMAGES", "too_many_images"), ("MOST_PIXELS", "image_too_large")])
def test_images_of_a_request_are_limited_together(
    seeing: Running, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setattr(request_images, name, {"MOST_IMAGES": 2, "MOST_PIXELS": 2 * 40 * 56}[name])
    http, both = seeing.http(), [{"role": "user", "content": [IMAGE, TEXT, IMAGE]}]
    assert http.post("/v1/chat/completions", json={"messages": both, **GREEDY}).status_code == 200
    error = http.post("/v1/chat/completions", json={"messages": [*both, *ASKED]}).json()["error"]
    assert (error["code"], error["param"]) == (code, "messages[1].content[1].image_url")


BLIND = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/chat/completions/input_tokens": {"messages": ASKED},
    "/apply-template": {"messages": ASKED},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url_of(PHOTO)}]}]},
    "/v1/messages": {
        "max_tokens": 4,
        "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b"}}]}],
    },
    "/api/chat": {"messages": [{"role": "user", "content": "hi", "images": [coded(PHOTO)]}]},
    "/api/generate": {"prompt": "hi", "images": ["no base64"]},
}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_model_that_sees_nothing_says_so_and_is_not_opened_for_it(
    tiny_model: Path, tmp_path: Path, is_open: bool
) -> None:
    """Each API says it in its own form; clients do not try again."""
    blind = write_tiny_llama(tmp_path / "blind.gguf", seed=2)
    with served(tiny_model, others=[path_model(blind)], most_models=2) as running:
        http = running.http()
        if is_open:
            assert http.post("/models/load", json={"model": "blind"}).status_code == 200
        n_open = len(running.opened)
        for path, body in BLIND.items():
            refused = http.post(path, json={"model": "blind", **body})
            told = refused.text
            assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false"), path
            assert "blind reads no images" in told
            assert "--mmproj" in told
            if path == "/v1/messages":
                assert refused.json()["error"]["details"] == {"error_code": "image_input_not_supported"}
            elif not path.startswith("/api/"):
                assert refused.json()["error"]["code"] == "image_input_not_supported"
        assert len(running.opened) == n_open
        retrying, messages = running.client().with_options(max_retries=5), cast("Any", ASKED)
        with pytest.raises(openai.BadRequestError) as failed:
            retrying.chat.completions.create(model="blind", messages=messages)
        assert failed.value.code == "image_input_not_supported"
        assert failed.value.param == "messages[0].content[1].image_url"


def test_a_projector_that_does_not_fit_is_known_after_loading(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "one.gguf")
    shutil.copy(SEEING.with_name("mmproj-idefics3.gguf"), tmp_path / "mmproj-F16.gguf")
    with served(model) as running:
        assert "belongs to another model" in running.llm.info.notices[0]
        error = running.http().post("/v1/chat/completions", json={"messages": ASKED}).json()["error"]
        assert error["code"] == "image_input_not_supported"


def test_a_projector_file_that_the_command_names_is_the_default_models(tmp_path: Path) -> None:
    folder, models = tmp_path, tmp_path / "home" / "models"
    models.mkdir(parents=True)
    write_tiny_llama(models / "blind.gguf")
    shutil.copy(SEEING.with_name("mmproj-idefics3.gguf"), folder / "eyes.gguf")
    seeing = shutil.copy(SEEING, folder / "seeing.gguf")
    command = [*OPEN, "-m", str(seeing), "--mmproj", str(folder / "eyes.gguf"), "--models-memory", "90%"]
    with started(command, EDGEINFER_HOME=str(folder / "home")) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with httpx.Client(base_url=str(ready["url"]), timeout=60) as http:
            found = {
                each["id"]: each["architecture"]["input_modalities"] for each in http.get("/models").json()["data"]
            }
            assert found == {"seeing": ["text", "image"], "blind": ["text"]}
            body = {"model": "blind", "prompt": "the", "max_tokens": 4}
            assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 4
