"""`edgeinfer score`: options as arguments and from files, texts, and what cannot be scored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from tests.app.test_cli_tokenize import give_stdin, run

PROMPT = "the rain in the"


@pytest.fixture
def model(home: Path, tiny_model: Path) -> tuple[str, ...]:
    return ("-m", str(tiny_model), "--device", "reference")


def test_options_are_scored_after_a_space(
    model: tuple[str, ...], tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "score", PROMPT, "tin", "an inn", *model, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    with load(tiny_model, device="reference") as llm:
        expected = llm.score(PROMPT, [" tin", " an inn"])
        chat = llm.score([{"role": "user", "content": PROMPT}], ["tin", "an inn"])
        bare = llm.score(PROMPT, ["tin", "an inn"])
    assert [each["option"] for each in found["scores"]] == ["tin", "an inn"]
    assert [each["logprob"] for each in found["scores"]] == [each.logprob for each in expected]
    assert sum(each["share"] for each in found["scores"]) == pytest.approx(1)
    assert found["best"] == max((0, 1), key=lambda number: expected[number].logprob)
    _, out, _ = run(capsys, "score", PROMPT, "tin", "an inn", *model, "--json", "--chat", "--by", "byte")
    found = json.loads(out)
    assert [each["logprob"] for each in found["scores"]] == [each.logprob for each in chat]
    assert found["best"] == max((0, 1), key=lambda number: chat[number].per_byte)
    _, out, _ = run(capsys, "score", PROMPT, "tin", "an inn", *model, "--json", "--between", "")
    assert [each["logprob"] for each in json.loads(out)["scores"]] == [each.logprob for each in bare]


def test_a_table_marks_the_best(model: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "score", PROMPT, "tin", "an inn", *model)
    head, *rows = out.splitlines()
    assert code == 0
    assert head.split() == ["logprob", "per", "token", "per", "byte", "share", "option"]
    assert [row.endswith(option) for row, option in zip(rows, ("tin", "an inn"), strict=True)] == [True, True]
    assert sum(row.startswith("*") for row in rows) == 1


def test_files_hold_options_or_tasks(
    model: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, tasks = tmp_path / "options.txt", tmp_path / "tasks.jsonl"
    options.write_text("tin\n\nan inn\n", encoding="utf-8")
    lines = [{"prompt": PROMPT, "options": ["tin", "an inn"]}, {"prompt": "an", "options": ["inn"]}]
    tasks.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _, alone, _ = run(capsys, "score", PROMPT, "tin", "an inn", *model, "--json")
    assert run(capsys, "score", PROMPT, "-f", str(options), *model, "--json")[:2] == (0, alone)
    code, out, _ = run(capsys, "score", "--file", str(tasks), *model, "--json")
    assert code == 0
    assert out.splitlines()[0] == alone.strip()
    assert json.loads(out.splitlines()[1])["prompt"] == "an"
    give_stdin(monkeypatch, tasks.read_bytes())
    assert run(capsys, "score", "-f", "-", *model, "--json")[1] == out


def test_the_perplexity_of_a_text(
    model: tuple[str, ...], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "the hen in the inn, the rain in the tin. " * 4
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    code, out, _ = run(capsys, "score", "--text", str(path), *model, "--json")
    with load(tiny_model, device="reference") as llm:
        expected = llm.logprobs(text)
    found = json.loads(out)
    assert (code, found["token_logprobs"]) == (0, [each.logprob for each in expected.logprobs])
    assert found["perplexity"] == math.exp(-found["per_token"])
    assert f"perplexity {found['perplexity']:.4f} over" in run(capsys, "score", "--text", str(path), *model)[1]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 2, "there is nothing to score"),
        (("the",), 2, "there is nothing to score"),
        (("the", "hen", "--text", "FILE"), 2, "leave the prompt"),
        (("the", "hen", "--by", "luck"), 2, "luck"),
        (("the", "hen", "--system", "x"), 1, "add --chat"),
        (("the", ""), 0, ""),
        (("the", "", "--between", ""), 1, "an option is empty"),
        (("the", "hen " * 600), 1, "the context holds"),
        (("-f", "FILE"), 1, "line 1 is no task"),
        (("--text", "EMPTY"), 1, "no text to score"),
        (("--text", "NONE"), 1, "cannot be read"),
    ],
)
def test_what_cannot_be_scored_is_told(
    model: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    (tmp_path / "FILE").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "EMPTY").write_text("\n", encoding="utf-8")
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    found, _, err = run(capsys, "score", *given, *model)
    assert (found, reason in err) == (code, True)
