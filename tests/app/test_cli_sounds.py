"""Sounds on the command line: run and batch, with a tiny model that hears."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.sound_files import sound_url
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.models.sounds.sound import Sound
from tests.golden.goldens import DATA
from tests.pictures import picture_file
from tests.sounds import SOUNDS, tone, wav

pytest.importorskip("miniaudio")
pytest.importorskip("soxr")

MODEL, PROJECTOR = DATA / "sounds" / "qwen2a.gguf", DATA / "sounds" / "mmproj-qwen2a.gguf"
REFUSAL = "this model, as it was loaded, reads no sound"
TALK = wav(tone(0.7, 44_100, 2), 44_100)


@pytest.fixture(autouse=True)
def _own_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's models or settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(TALK)
    (tmp_path / "song").write_bytes((SOUNDS / "chirp.mp3").read_bytes())


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load(MODEL, device="reference", mmproj=str(PROJECTOR)) as loaded:
        yield loaded


def call(command: str, *arguments: str, model: Path = MODEL, stdin: str | bytes = "") -> Result:
    own = ["--mmproj", str(PROJECTOR)] if model == MODEL else []
    options = [*own, "-m", str(model), "--device", "reference", "--temp", "0", "--max-tokens", "8"]
    return CliRunner().invoke(build_app(), [command, *arguments, *options], input=stdin)


def sound(data: bytes) -> dict[str, Any]:
    return {"type": "audio", "audio": Sound.of(data)}


def answer(llm: LLM, *content: dict[str, Any] | str) -> list[int]:
    """The tokens of an answer to sounds and texts."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    stream = llm.chat([{"role": "user", "content": parts}], temperature=0, max_tokens=8)
    stream.read()
    return list(stream.tokens)


def test_sounds_and_texts_stand_before_the_question(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a note\n")
    result = call("run", "-f", "talk.wav", "-f", "notes.txt", "-f", "song", "What is said?", "--json", "--stats")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    sounds = sound(TALK), sound((SOUNDS / "chirp.mp3").read_bytes())
    assert record["tokens"] == answer(llm, *sounds, "a note\n\nWhat is said?")
    n_tokens = [llm.prompts.n_sound_tokens(each["audio"]) for each in sounds]
    assert record["sounds"] == [
        {"name": "talk.wav", "seconds": 0.7, "n_tokens": n_tokens[0]},
        {"name": "song", "seconds": 0.5, "n_tokens": n_tokens[1]},
    ]
    assert record["images"] == []
    assert f"talk.wav: 0.7 s, {n_tokens[0]} tokens" in result.stderr


def test_a_sound_is_piped_in_and_is_a_question_by_itself(llm: LLM) -> None:
    record = json.loads(call("run", "--json", stdin=TALK).stdout)
    assert record["tokens"] == answer(llm, sound(TALK))
    assert record["sounds"][0]["name"] == "standard input"


def test_a_model_that_hears_nothing_says_what_would_work(tiny_model: Path) -> None:
    result = call("run", "-f", "talk.wav", "What is said?", model=tiny_model)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: {REFUSAL}" in result.stderr


def test_a_model_that_hears_is_not_shown_images(tmp_path: Path) -> None:
    picture_file(tmp_path / "sea.png")
    result = call("run", "-f", "talk.wav", "-f", "sea.png", "What is this?")
    assert result.exit_code == 1
    assert "reads no images" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "data", "reason"),
    [
        (("-f", "bad.wav", "What?"), TALK[:40], "bad.wav cannot be decoded: it is damaged"),
        (("-f", "bad.wav", "What?"), b"OggS" + bytes(50), "bad.wav is Ogg (Vorbis or Opus); what can be read is WAV"),
        (("-f", "bad.wav", "What?"), b"\0\xff\xfe", "bad.wav is not UTF-8 text; --file takes text files, images ("),
        (("-f", "talk.wav", "--raw", "What?"), b"", "--raw uses no chat template, so that sounds have no place"),
    ],
)
def test_what_cannot_be_used_is_a_line(tmp_path: Path, arguments: tuple[str, ...], data: bytes, reason: str) -> None:
    (tmp_path / "bad.wav").write_bytes(data)
    result = call("run", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert line.startswith(f"error: {reason}")


def batch(tmp_path: Path, *lines: object, model: Path = MODEL) -> tuple[Result, list[dict[str, Any]]]:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = call("batch", str(tmp_path / "in" / "prompts.jsonl"), model=model)
    return result, sorted(map(json.loads, result.stdout.splitlines()), key=lambda line: line["index"])


def test_lines_of_a_batch_have_sounds(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "beside.wav").write_bytes(TALK)
    text, coded = {"type": "text", "text": "What?"}, base64.b64encode(TALK).decode()
    parts = (
        {"type": "audio", "path": "beside.wav"},
        {"type": "audio", "audio": str(tmp_path / "in" / "beside.wav")},
        {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": sound_url(TALK, "WAV")}},
    )
    lines = [{"messages": [{"role": "user", "content": [part, text]}]} for part in parts]
    result, records = batch(tmp_path, *lines, {"prompt": "What?", "sounds": ["beside.wav"]})
    assert result.exit_code == 0, result.stderr
    wanted = answer(llm, sound(TALK), "What?")
    assert [record["tokens"] for record in records] == [wanted] * 5
    assert len({record["digest"] for record in records}) == 2  # by paths, and by bytes


def test_a_sound_that_cannot_be_read_is_a_line_of_its_own(tmp_path: Path) -> None:
    result, records = batch(tmp_path, {"prompt": "What?", "sounds": ["gone.wav"]}, {"prompt": "What?"})
    assert result.exit_code == 1
    assert "gone.wav cannot be read" in records[0]["error"]
    assert "tokens" in records[1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"prompt": "What?", "sounds": "a.wav"}, "sounds must be a list"),
        ({"text": "What?", "sounds": ["a.wav"]}, "sounds stand before a prompt"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "a sound needs a path"),
        ({"prompt": "What?", "sounds": ["https://a.org/b.wav"]}, "is an address"),
        ({"prompt": "What?", "sounds": ["data:audio/wav;base64,?"]}, "not valid base64"),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path: Path, line: object, reason: str) -> None:
    result, _ = batch(tmp_path, line)
    assert result.exit_code == 1
    assert "error: line 1: " in result.stderr
    assert reason in result.stderr


def test_a_batch_for_a_model_that_hears_nothing(tmp_path: Path, tiny_model: Path) -> None:
    _, records = batch(tmp_path, {"prompt": "What?", "sounds": ["../talk.wav"]}, model=tiny_model)
    assert records[0]["error"].startswith(REFUSAL)


def test_line_mode_reads_mentioned_sounds(llm: LLM) -> None:
    asked = [{"role": "user", "content": [sound(TALK), {"type": "text", "text": "What is @talk.wav"}]}]
    wanted = llm.chat(asked, temperature=0, max_tokens=8).read()
    result = call("chat", stdin="What is @talk.wav\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes.decode().strip() == wanted.strip()
