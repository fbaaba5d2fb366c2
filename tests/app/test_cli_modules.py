"""`edgeinfer run --module NAME=FILE`: files that stand before the question, read by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from edgeinfer.app.cli import build_app
from edgeinfer.engine.loading import load
from tests.conftest import write_tiny_llama

RULES = "the rain in the tin, the hen in the inn and there it ran. " * 8
MANUAL = "one two three four five six seven. " * 6
QUESTION = "who is in the inn?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "roomy.gguf", context=2048)


@pytest.fixture(autouse=True)
def _files(home: Path) -> None:
    """Two files in the working folder; no test sees the user's models or settings."""
    Path("rules.txt").write_text(RULES)
    Path("manual.txt").write_text(MANUAL)


def run(model: Path, *arguments: str) -> Result:
    own = ["run", "-m", str(model), "--device", "cpu", "--threads", "1", "--temp", "0", "--max-tokens", "8"]
    return CliRunner().invoke(build_app(), [*own, "--ctx", "2048", *arguments, QUESTION])


def test_files_stand_before_the_question_in_the_order_given(model: Path) -> None:
    for first, second in (("rules", "manual"), ("manual", "rules")):
        given = [part for name in (first, second) for part in ("--module", f"{name}={name}.txt")]
        found = run(model, *given, "--json")
        assert found.exit_code == 0, found.output
        record = json.loads(found.stdout)
        with load(model, device="cpu", n_context=2048, prefix_cache=False) as llm:
            llm.modules.add("rules", RULES)
            llm.modules.add("manual", MANUAL)
            messages = [{"role": "user", "content": QUESTION}]
            stream = llm.chat(messages, modules=[first, second], temperature=0.0, max_tokens=8)
            assert record["text"] == stream.read()
            assert record["n_from_modules"] == sum(len(module.tokens) for module in llm.modules)
        assert any("approximate" in notice for notice in record["notices"])


def test_the_answer_is_labelled_and_raw_prompts_have_modules_too(model: Path) -> None:
    found = run(model, "--raw", "--stats", "--module", "rules=rules.txt")
    assert found.exit_code == 0, found.output
    assert "approximate" in found.stderr
    assert "of modules" in found.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--module", "rules.txt"], "give a name and a file"),
        (["--module", "rules="], "give a name and a file"),
        (["--module", "a=rules.txt", "--module", "a=manual.txt"], "names a twice"),
        (["--module", "a=nothing.txt"], "nothing.txt cannot be read"),
        (["--module", "a b=rules.txt"], "the name of a module cannot be"),
    ],
)
def test_what_cannot_be_used_is_refused(model: Path, given: list[str], message: str) -> None:
    found = run(model, *given)
    assert found.exit_code == 1
    assert message in str(found.exception) + found.output
