"""`edgeinfer run --answers`: one answer is kept and the reason told; what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.command_line.several_answers import wanted_answers
from edgeinfer.errors import BadSetting


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def run(model: Path, *arguments: str) -> Result:
    options = ["run", "-m", str(model), "--device", "cpu", "--ctx", "256", "the rain in the inn"]
    return CliRunner().invoke(build_app(), [*options, "--seed", "3", "--temp", "1.2", "--max-tokens", "12", *arguments])


@pytest.mark.parametrize("pick", ["vote", "weighted", "shortest", "first", "likely"])
def test_the_answer_that_is_kept_is_printed_and_all_are_told(tiny_model: Path, pick: str) -> None:
    result = run(tiny_model, "--answers", "3", "--pick", pick, "--json", "--stats")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    several = record["several"]
    assert several["pick"] == pick
    assert record["text"] == several["answers"][several["kept"]]["text"]
    assert [answer["seed"] for answer in several["answers"]] == [3, 4, 5]
    assert several["n_generated"] == sum(answer["n_generated"] for answer in several["answers"])
    assert f"answer {several['kept'] + 1} of 3 is kept: {several['reason']}" in result.stderr
    assert "tok/s together" in result.stderr


@pytest.mark.parametrize(("command", "says"), [("true", "passed the check"), ("false", "none of 2 answers passed")])
def test_a_check_is_a_command(tiny_model: Path, command: str, says: str) -> None:
    result = run(tiny_model, "--answers", "2", "--pick", f"check:{command}", "--stop", "e", "--stop", "a", "--json")
    assert result.exit_code == 0, result.output
    assert says in json.loads(result.stdout)["several"]["reason"]


@pytest.mark.parametrize(
    ("enough", "found"), [(None, {}), ("3", {"enough": 3}), ("95%", {"confidence": 0.95}), ("100%", {"confidence": 1})]
)
def test_when_it_is_enough(enough: str | None, found: dict[str, object]) -> None:
    wanted = wanted_answers(8, None, None, enough, None, None)
    assert wanted is not None
    assert {key: wanted.arguments[key] for key in ("enough", "confidence") if key in wanted.arguments} == found


@pytest.mark.parametrize(("budget", "found"), [("2000", {"most_tokens": 2000}), ("30s", {"most_s": 30.0})])
def test_a_budget_is_tokens_or_seconds(budget: str, found: dict[str, object]) -> None:
    wanted = wanted_answers(8, None, None, None, budget, None)
    assert wanted is not None
    assert found.items() <= wanted.arguments.items()


@pytest.mark.parametrize("enough", ["0", "-1", "3.5", "0%", "101%", "many", "%", ""])
def test_what_is_never_enough(enough: str) -> None:
    with pytest.raises(BadSetting, match="such as 3 or 95%"):
        wanted_answers(8, None, None, enough, None, None)


@pytest.mark.parametrize("budget", ["0", "-5s", "infs", "1.5", "soon", "s"])
def test_what_is_no_budget(budget: str) -> None:
    with pytest.raises(BadSetting, match="such as 2000 or 30s"):
        wanted_answers(8, None, None, None, budget, None)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--pick", "vote"], 2, "give --answers N, too"),
        (["--answers", "2", "--pick", "best"], 1, "first, likely, medoid, shortest, vote, weighted, check:COMMAND"),
        (["--answers", "2", "--pick", "check:no-such-command"], 1, "there is no command 'no-such-command'"),
        (["--answers", "2", "--vote-by", "regex:("], 1, "is no regular expression"),
        (["--answers", "2", "--temp", "0"], 1, "set it above 0"),
    ],
)
def test_what_cannot_be_is_refused(tiny_model: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(tiny_model, *arguments)
    assert result.exit_code == code
    assert says in result.stderr
