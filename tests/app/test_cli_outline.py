"""`edgeinfer run --outline`: which way was taken is told, and either way there is an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.several import parts_asking
from tests.app.test_cli_run import KEYS
from tests.app.test_cli_tokenize import run
from tests.conftest import write_tiny_llama

QUESTION = "What are the main reasons for rain?"
OPTIONS = ("--temp", "0", "--max-tokens", "9")


@pytest.fixture(autouse=True)
def _no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("outline") / "tiny.gguf", context=2048)


@pytest.fixture
def model(home: Path, large_model: Path) -> tuple[str, ...]:
    return ("-m", str(large_model), "--device", "cpu")


@pytest.fixture
def outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model writes the one outline that a regular expression allows."""
    outline_stream = parts_asking.PartsAsker._outline_stream

    def constrained(self: object, *arguments: object, **_: object) -> object:
        return outline_stream(self, *arguments, constrained=True)  # type: ignore[arg-type]

    monkeypatch.setattr(parts_asking.PartsAsker, "_outline_stream", constrained)
    monkeypatch.setattr(parts_asking, "outline_regex", lambda: r" Heat\n2\. The sea\n3\. The tin")


@pytest.mark.usefixtures("outlines")
def test_points_are_printed_in_order_and_the_way_is_told(
    model: tuple[str, ...], large_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", "--outline", QUESTION, *model, *OPTIONS, "--stats")
    with load(large_model, device="cpu") as llm:
        expected = llm.by_outline(QUESTION, constrained=True, temperature=0, max_tokens=9).read()
    assert (code, out) == (0, f"{expected}\n")
    assert [head in out for head in ("1. Heat:", "2. The sea:", "3. The tin:")] == [True] * 3
    told, *table, total = err.splitlines()
    assert told == (
        "note: an answer by its outline (it asks for a list): its parts were written side by side and do not see one "
        "another"
    )
    assert [row.split()[0] for row in table] == ["tokens", "outline", "1", "2", "3"]
    assert "tok/s together, first text after" in total


@pytest.mark.usefixtures("outlines")
def test_json_has_the_keys_of_an_answer_and_the_parts(
    model: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", "--outline", QUESTION, *model, *OPTIONS, "--json", "--seed", "4")
    found = json.loads(out)
    assert code == 0
    assert "do not see one another" in err
    assert set(found) >= KEYS
    outline = found["outline"]
    assert (outline["taken"], outline["reason"], outline["parts_see_one_another"]) == (
        True,
        "it asks for a list",
        False,
    )
    assert outline["points"] == ["Heat", "The sea", "The tin"]
    assert [part["point"] for part in outline["parts"]] == outline["points"]
    heads = [f"{number}. {point}:" for number, point in enumerate(outline["points"], 1)]
    texts = [part["text"] for part in outline["parts"]]
    assert found["text"] == "\n".join(head + text.rstrip() for head, text in zip(heads, texts, strict=True))
    assert len(found["tokens"]) == sum(part["n_generated"] for part in outline["parts"]) < found["n_generated"]
    assert {part["seed"] for part in outline["parts"]} == {4}
    assert (found["decode_tok_s"], found["finish_reason"]) == (None, "length")
    assert found["ttft_s"] > 0


@pytest.mark.parametrize(
    ("question", "reason"),
    [("What is 2+2?", "it has numbers to reckon with"), (QUESTION, "outline")],
)
def test_without_an_outline_there_is_an_ordinary_answer(
    model: tuple[str, ...], capsys: pytest.CaptureFixture[str], question: str, reason: str
) -> None:
    _, expected, _ = run(capsys, "run", question, *model, *OPTIONS)
    code, out, err = run(capsys, "run", "--outline", question, *model, *OPTIONS, "--stats")
    assert (code, out) == (0, expected)
    assert "note: one ordinary answer, not by an outline: " in err
    assert reason in err
    assert "9 tokens, " in err
    found = json.loads(run(capsys, "run", "--outline", question, *model, *OPTIONS, "--json")[1])
    assert found["outline"]["taken"] is False
    assert reason in found["outline"]["reason"]
    assert (found["outline"]["points"], found["outline"]["parts"]) == ([], [])
    assert f"{found['text']}\n" == expected
    assert found["n_generated"] == len(found["tokens"]) == 9


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--raw",), "--outline and --raw"),
        (("--answers", "3"), "--outline and --answers"),
        (("--mcp", "all"), "--outline and --mcp"),
    ],
)
def test_what_does_not_go_together_is_told(
    model: tuple[str, ...], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    code, out, err = run(capsys, "run", "--outline", QUESTION, *words, *model)
    assert (code, out, reason in err) == (1, "", True), err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows are others")
@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_an_interrupt_keeps_what_is_written(home: Path, large_model: Path, extra: tuple[str, ...]) -> None:
    words = ["run", "--outline", "Hello", "-m", str(large_model), "--device", "cpu", "--stats", "--ctx", "2000", *extra]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "bufsize": 0}
    command = [sys.executable, "-c", INTERRUPTED, *words]
    with subprocess.Popen(command, env=dict(os.environ), **pipes) as running:
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert b"interrupted" in err
    assert out
    if extra:
        assert json.loads(out)["finish_reason"] == "cancelled"


INTERRUPTED = """
import os, signal
from edgeinfer.engine.several.outlined import Outlined
noted, seen = Outlined._noted, []
def interrupting(self, text):
    seen.append(text)
    if len(seen) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return noted(self, text)
Outlined._noted = interrupting
from edgeinfer.__main__ import main
main()
"""
