"""Images on the command line: run, batch and chat in line mode, with a tiny model that sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.chat.attachments import attach
from edgeinfer.app.chat.dialogue import Dialogue, GivenAnswer, turns_of
from edgeinfer.app.cli import build_app
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.models.images.image import Image
from edgeinfer.steps import READING_IMAGES
from tests.golden.goldens import DATA
from tests.pictures import picture, picture_file

MODEL = DATA / "vision" / "idefics3.gguf"
REFUSAL = "this model, as it was loaded, reads no images"
N_TOKENS = 8


@pytest.fixture(autouse=True)
def _own_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's models or settings."""
    monkeypatch.chdir(tmp_path)
    picture_file(tmp_path / "sea.jpg", form="PNG")
    picture_file(tmp_path / "tall", 30, 90, "JPEG")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load(MODEL, device="reference") as loaded:
        yield loaded


def call(command: str, *arguments: str, model: Path = MODEL, stdin: str | bytes = "") -> Result:
    options = [command, *arguments, "-m", str(model), "--device", "reference", "--temp", "0", "--max-tokens", "8"]
    return CliRunner().invoke(build_app(), options, input=stdin)


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "image": Image.of(data)}


def answer(llm: LLM, *content: dict[str, Any] | str) -> list[int]:
    """The tokens of an answer to images and texts."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    stream = llm.chat([{"role": "user", "content": parts}], temperature=0, max_tokens=N_TOKENS)
    stream.read()
    return list(stream.tokens)


def test_images_and_texts_stand_before_the_question(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a note\n")
    result = call("run", "-f", "sea.jpg", "-f", "notes.txt", "-f", "tall", "What is this?", "--json", "--stats")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    images = image(picture()), image(picture(30, 90, "JPEG"))
    assert record["tokens"] == answer(llm, *images, "a note\n\nWhat is this?")
    n_tokens = [llm.prompts.n_image_tokens(each["image"]) for each in images]
    assert record["images"] == [
        {"name": "sea.jpg", "width": 64, "height": 48, "n_tokens": n_tokens[0]},
        {"name": "tall", "width": 30, "height": 90, "n_tokens": n_tokens[1]},
    ]
    assert f"sea.jpg: 64 × 48, {n_tokens[0]} tokens" in result.stderr


def test_the_tokens_of_an_image_are_those_of_the_prompt(llm: LLM) -> None:
    with_image = [{"role": "user", "content": [image(picture()), {"type": "text", "text": "What?"}]}]
    without = [{"role": "user", "content": "What?"}]
    n_image = llm.prompts.n_image_tokens(with_image[0]["content"][0]["image"])
    assert llm.prompts.n_tokens(with_image) - llm.prompts.n_tokens(without) == pytest.approx(n_image, abs=2)
    assert n_image > 50


def test_reading_images_can_be_stopped_between_their_parts(llm: LLM) -> None:
    class Stopped(Exception):
        """Raised by whoever is told."""

    def stop(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))
        if what == READING_IMAGES and done == 1:
            raise Stopped

    seen: list[tuple[str, int, int]] = []
    unknown = image(picture(70, 50))
    messages = [{"role": "user", "content": [unknown, {"type": "text", "text": "What?"}]}]
    with pytest.raises(Stopped):
        llm.chat(messages, temperature=0, max_tokens=N_TOKENS, progress=stop).read()
    assert [each[1] for each in seen if each[0] == READING_IMAGES] == [0, 1]
    again = answer(llm, unknown, "What?")
    with load(MODEL, device="reference") as other:
        assert answer(other, unknown, "What?") == again


def test_an_image_is_piped_in(llm: LLM) -> None:
    result = call("run", "What is this?", "--json", stdin=picture())
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["tokens"] == answer(llm, image(picture()), "What is this?")
    assert record["images"][0]["name"] == "standard input"


def test_an_image_alone_is_a_question(llm: LLM) -> None:
    record = json.loads(call("run", "-f", "sea.jpg", "--json").stdout)
    assert record["tokens"] == answer(llm, image(picture()))


def test_a_model_that_sees_nothing_says_what_would_work(tiny_model: Path) -> None:
    result = call("run", "-f", "sea.jpg", "What is this?", model=tiny_model)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: {REFUSAL}" in result.stderr
    assert "choose a model that sees" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "data", "reason"),
    [
        (("-f", "damaged.png", "What?"), picture(640, 480)[:2000], "damaged.png cannot be decoded"),
        (("-f", "damaged.png", "What?"), picture()[:20], "damaged.png cannot be decoded"),
        (
            ("-f", "damaged.png", "What?"),
            b"\0\xff\xfe",
            "damaged.png is not UTF-8 text; --file takes text files, images (PNG, JPEG, ",
        ),
        (("-f", "sea.jpg", "--raw", "What?"), b"", "--raw uses no chat template, so that images have no place"),
    ],
)
def test_what_cannot_be_used_is_a_line(tmp_path: Path, arguments: tuple[str, ...], data: bytes, reason: str) -> None:
    (tmp_path / "damaged.png").write_bytes(data)
    result = call("run", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert line.startswith(f"error: {reason}")


def batch(tmp_path: Path, *lines: object, model: Path = MODEL) -> tuple[Result, list[dict[str, Any]]]:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = call("batch", str(tmp_path / "in" / "prompts.jsonl"), model=model)
    return result, sorted(map(json.loads, result.stdout.splitlines()), key=lambda line: line["index"])


def test_lines_of_a_batch_have_images(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    picture_file(tmp_path / "in" / "beside.png")
    url, text = kept_image(picture(), "").url, {"type": "text", "text": "What?"}
    parts = (
        {"type": "image", "path": "beside.png"},
        {"type": "image", "path": str(tmp_path / "in" / "beside.png")},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    )
    lines = [{"messages": [{"role": "user", "content": [part, text]}]} for part in parts]
    result, records = batch(tmp_path, *lines, {"prompt": "What?", "images": ["beside.png"]})
    assert result.exit_code == 0, result.stderr
    wanted = answer(llm, image(picture()), "What?")
    assert [record["tokens"] for record in records] == [wanted] * 5
    assert len({record["digest"] for record in records}) == 2  # by paths, and by data URLs


def test_an_image_that_cannot_be_read_is_a_line_of_its_own(llm: LLM, tmp_path: Path) -> None:
    result, records = batch(tmp_path, {"prompt": "What?", "images": ["gone.png"]}, {"prompt": "What?"})
    assert result.exit_code == 1
    assert "gone.png cannot be read" in records[0]["error"]
    assert "tokens" in records[1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"prompt": "What?", "images": "a.png"}, "images must be a list"),
        ({"text": "What?", "images": ["a.png"]}, "images stand before a prompt"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "an image needs a path"),
        ({"prompt": "What?", "images": ["https://a.org/b.png"]}, "is an address"),
        ({"prompt": "What?", "images": ["file:///home/a.png"]}, "is an address"),
        (
            {"prompt": "What?", "images": ["iVBORw0KGgo" * 1000]},
            "iVBORw0KGgoiVBORw0KG… is no path; before base64 stands",
        ),
        ({"prompt": "What?", "images": ["data:image/png;base64,?"]}, "not valid base64"),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path: Path, line: object, reason: str) -> None:
    result, _ = batch(tmp_path, line)
    assert result.exit_code == 1
    assert "error: line 1: " in result.stderr
    assert reason in result.stderr


def test_a_batch_is_resumed_from_another_folder(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture_file(tmp_path / "a.png")
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "What?", "images": ["a.png"]}))
    monkeypatch.chdir(tmp_path)
    assert call("batch", "prompts.jsonl", "--out", "answers.jsonl").exit_code == 0
    monkeypatch.chdir(tmp_path.parent)
    again = call("batch", f"{tmp_path.name}/prompts.jsonl", "--out", f"{tmp_path.name}/answers.jsonl")
    assert again.exit_code == 0
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1


def test_a_batch_for_a_model_that_sees_nothing(tmp_path: Path, tiny_model: Path) -> None:
    picture_file(tmp_path / "a.png")
    _, records = batch(tmp_path, {"prompt": "What?", "images": ["../a.png"]}, model=tiny_model)
    assert records[0]["error"].startswith(REFUSAL)


def messages(answered: str) -> list[dict[str, Any]]:
    parts = [image(picture()), {"type": "text", "text": "What is @sea.jpg"}]
    return [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": answered},
        {"role": "user", "content": "And its colour?"},
    ]


def test_line_mode_reads_mentioned_images(llm: LLM) -> None:
    first = llm.chat(messages("")[:1], temperature=0, max_tokens=N_TOKENS).read()
    second = llm.chat(messages(first), temperature=0, max_tokens=N_TOKENS).read()
    result = call("chat", stdin="What is @sea.jpg\nAnd its colour?\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes.decode() == f"{first}\n{second}\n"


def test_line_mode_tells_of_a_damaged_image(tmp_path: Path) -> None:
    (tmp_path / "sea.jpg").write_bytes(picture()[:60])
    result = call("chat", stdin="What is @sea.jpg\n")
    assert result.exit_code == 1
    assert "error: sea.jpg cannot be decoded" in result.stderr


def test_line_mode_goes_on_with_an_image_whose_file_is_gone(llm: LLM, tmp_path: Path) -> None:
    with SessionStore(default_path()) as store:
        chat = Chat(store)
        _, given = chat.ask("What is @sea.jpg", attach(Path("sea.jpg")).attachments, None)
        chat.finish(given.number, "The sea.", "whole", None)
    (tmp_path / "sea.jpg").unlink()
    result = call("chat", "--continue", stdin="And its colour?\n/regen\n")
    assert result.exit_code == 0, result.stderr
    wanted = llm.chat(messages("The sea."), temperature=0, max_tokens=N_TOKENS).read()
    assert result.stdout_bytes.decode() == f"{wanted}\n{wanted}\n"


def test_a_dialogue_keeps_images(llm: LLM, home: Path) -> None:
    with SessionStore(default_path()) as store, llm.session() as session:
        dialogue = Dialogue(session, {"temperature": 0.0, "max_tokens": 4}, None, Chat(store))
        sent = attach(Path("sea.jpg")).attachments
        stream = dialogue.ask("What?", sent)
        stream.read()
        dialogue.keep("What?", GivenAnswer(stream, "The sea."), sent)
        chat = Chat(store, store.sessions()[0])
        assert chat.branch[0].attachments[0].image == kept_image(picture(), "")
        assert turns_of(chat)[0].attachments == sent
