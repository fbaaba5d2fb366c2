"""`edgeinfer run --lead`: where answers were forked is told, and what cannot be is refused with what can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def run(model: Path, *arguments: str) -> Result:
    options = ["run", "-m", str(model), "--device", "cpu", "--ctx", "256", "the rain in the inn"]
    return CliRunner().invoke(build_app(), [*options, "--seed", "3", "--max-tokens", "20", *arguments])


def test_where_an_answer_was_forked_is_told(tiny_model: Path) -> None:
    asked = "--answers", "3", "--pick", "likely", "--lead", "uncertain:entropy=0.5,least=0,apart=3"
    result = run(tiny_model, *asked, "--temp", "0", "--json", "--stats")
    assert result.exit_code == 0, result.output
    answers = json.loads(result.stdout)["several"]["answers"]
    forks = [answer["forked_from"] for answer in answers]
    assert forks[0] is None
    assert [fork["answer"] for fork in forks[1:]] == [0, 0]
    assert forks[2]["n_tokens"] >= forks[1]["n_tokens"] + 3
    for fork in forks[1:]:
        assert f"answer 1 at token {fork['n_tokens']}" in result.stderr
    assert "from" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--lead", "uncertain"], 2, "give --answers N, too"),
        (["--answers", "3", "--lead", "best"], 1, "cut, independent, particles, uncertain"),
        (["--answers", "3", "--lead", "uncertain:depth=2"], 1, "its options are: entropy, others, least, apart"),
        (["--answers", "3", "--lead", "cut"], 1, "independent, uncertain and particles work with all"),
    ],
)
def test_what_cannot_be_is_refused(tiny_model: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(tiny_model, *arguments)
    assert result.exit_code == code
    assert says in result.stderr
