"""`edgeinfer map`: a line in, a line out, in order; what cannot be answered is told and takes nothing else with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from tests.app.test_cli_tokenize import give_stdin, run

INSTRUCTION = "say what the hen says"
LINES = ["the rain", "", "a hen in the tin", "  ", "then\r", "the inn"]
OPTIONS = ("--temp", "0", "--max-tokens", "9")
KEYS = {
    *("index", "item", "text", "reasoning", "tokens", "n_prompt", "n_cached", "n_generated", "finish_reason"),
    *("truncated", "notices", "seed"),
}


@pytest.fixture
def model(home: Path, tiny_model: Path) -> tuple[str, ...]:
    return ("-m", str(tiny_model), "--device", "cpu")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(LINES).encode() + b"\n")
    return path


def alone(model: Path, items: list[str]) -> list[str]:
    """The answer to each item alone; "" for those without text."""
    with load(model, device="cpu") as llm:
        asked = [[{"role": "user", "content": f"{INSTRUCTION}\n\n{item}"}] if item.strip() else None for item in items]
        return ["" if each is None else llm.chat(each, temperature=0, max_tokens=9).read() for each in asked]


def in_a_line(text: str) -> str:
    return text.replace("\n", " ").strip().replace("\r", " ")


def test_each_line_has_its_answer_in_its_place(
    model: tuple[str, ...], tiny_model: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = alone(tiny_model, [line.rstrip("\r") for line in LINES])
    code, out, err = run(capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS)
    assert (code, err) == (0, "")
    assert out == "".join(in_a_line(text) + "\n" for text in expected)
    for parallel in ("1", "2"):
        assert run(capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS, "--parallel", parallel)[1] == out


def test_lines_come_from_standard_input(
    model: tuple[str, ...], lines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run(capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS)
    for more in ((), ("-",)):
        give_stdin(monkeypatch, lines.read_bytes())
        assert run(capsys, "map", INSTRUCTION, *more, *model, *OPTIONS)[:2] == (0, out)


def test_json_lines_have_texts_as_they_are(
    model: tuple[str, ...], tiny_model: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS, "--json", "--stats", "--seed", "3")
    found = [json.loads(line) for line in out.splitlines()]
    items = [line.rstrip("\r") for line in LINES]
    assert code == 0
    assert [each["index"] for each in found] == list(range(len(LINES)))
    assert [each["item"] for each in found] == items
    assert [each["text"] for each in found] == alone(tiny_model, items)
    assert all(set(each) == (KEYS if each["item"].strip() else {"index", "item", "text"}) for each in found)
    assert {each["seed"] for each in found if "seed" in each} == {3}


def test_stats_say_how_much_was_shared(model: tuple[str, ...], lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS, "--stats", "--parallel", "3")
    assert err.startswith("4 lines, 3 at a time | 36 tokens in ")
    assert "the others are shared | cpu" in err


def test_the_system_prompt_and_stops_hold_for_all(
    model: tuple[str, ...], tiny_model: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("map", INSTRUCTION, str(lines), *model, *OPTIONS, "--system", "in", "--json")
    _, whole, _ = run(capsys, *words)
    texts = [json.loads(line)["text"] for line in whole.splitlines()]
    with load(tiny_model, device="cpu") as llm:
        messages = [{"role": "system", "content": "in"}, {"role": "user", "content": f"{INSTRUCTION}\n\nthe rain"}]
        assert texts[0] == llm.chat(messages, temperature=0, max_tokens=9).read()
    stop = texts[0][2:4]
    _, cut, _ = run(
        capsys, "map", INSTRUCTION, str(lines), *model, *OPTIONS, "--system", "in", "--json", "--stop", stop
    )
    assert [json.loads(line)["text"] for line in cut.splitlines()] == [text.partition(stop)[0] for text in texts]


def test_a_line_that_is_too_long_does_not_lose_the_others(
    model: tuple[str, ...], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the rain\n" + "the hen " * 600 + "\nthen\n", encoding="utf-8")
    first, last = alone(tiny_model, ["the rain", "then"])
    code, out, err = run(capsys, "map", INSTRUCTION, str(path), *model, *OPTIONS)
    assert (code, out) == (1, f"{in_a_line(first)}\n\n{in_a_line(last)}\n")
    assert "line 2 has no answer: the last message with the system prompt has" in err
    assert "error: 1 of 3 lines could not be answered" in err
    _, out, _ = run(capsys, "map", INSTRUCTION, str(path), *model, *OPTIONS, "--json")
    assert "the context holds 512" in json.loads(out.splitlines()[1])["error"]


def test_where_rounding_depends_on_others_that_is_told(
    home: Path, tiny_model: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("map", INSTRUCTION, str(lines), "-m", str(tiny_model), "--device", "reference", *OPTIONS)
    assert "note: reference rounds otherwise" in run(capsys, *words)[2]
    assert run(capsys, *words, "--parallel", "1")[2] == ""


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 2, "there is no instruction"),
        ((" ", "LINES"), 2, "there is no instruction"),
        (("do", "NONE"), 1, "NONE cannot be read: No such file"),
        (("do", "EMPTY"), 1, "EMPTY has no lines to work on"),
        (("do", "BLANK"), 1, "BLANK has no lines to work on"),
        (("do", "BINARY"), 1, "BINARY is not UTF-8 text at byte 2"),
        (("do", "ZERO"), 1, "ZERO is no text: it has a zero byte at 2"),
        (("do", "FOLDER"), 1, "FOLDER cannot be read: Is a directory"),
        (("the hen " * 600, "LINES"), 1, "the context holds"),
        (("do", "LINES", "--parallel", "0"), 2, "--parallel"),
        (("do", "LINES", "--temp", "hot"), 2, "--temp"),
    ],
)
def test_what_cannot_be_done_is_told(
    model: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    for name, data in {"LINES": b"a\n", "EMPTY": b"", "BLANK": b"\n \n", "BINARY": b"ab\xff", "ZERO": b"ab\0c"}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "FOLDER").mkdir()
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    found, out, err = run(capsys, "map", *given, *model)
    assert (found, out, reason in err) == (code, "", True), err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows are others")
def test_an_interrupt_keeps_what_is_done(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(f"the rain {number}" for number in range(500)), encoding="utf-8")
    words = ["map", INSTRUCTION, str(path), "-m", str(tiny_model), "--device", "cpu", "--max-tokens", "60", "--json"]
    command = [sys.executable, "-m", "edgeinfer", *words, "--parallel", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}  # what is not read stays in the pipe
    with subprocess.Popen(command, env=dict(os.environ), **pipes) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=120)
    found = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert running.returncode == 130, err
    assert [each["index"] for each in found] == list(range(len(found)))
    assert len(found) < 500
    assert b"interrupted" in err
