"""`--small-model` on the command line: what `run` prints of two models that write one answer, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from tests.conftest import write_tiny_llama


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("small") / "small.gguf", seed=7)


def run(model: Path, *arguments: str) -> Result:
    options = ["run", "-m", str(model), "--temp", "0", "--max-tokens", "40", "--threads", "1", *arguments, "the rain"]
    return CliRunner().invoke(build_app(), options)


def record(model: Path, *arguments: str) -> dict[str, object]:
    result = run(model, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    data: dict[str, object] = json.loads(result.stdout)
    return data


def test_who_wrote_what_is_printed(tiny_model: Path, small: Path) -> None:
    both = ("--small-model", str(small), "--hand-over", "entropy=2.5")
    data = record(tiny_model, *both)
    told = data["two_models"]
    assert isinstance(told, dict)
    assert set(told) == {"small", "hand_over", "n_small", "n_large", "n_handed_over", "n_dropped"}
    assert (told["small"], told["hand_over"]) == ("small.gguf", "entropy=2.5")
    assert told["n_small"] + told["n_large"] == data["n_generated"] == 40
    assert 0 < told["n_small"] < 40
    notices = data["notices"]
    assert isinstance(notices, list)
    assert sum("not this model's own" in notice for notice in notices) == 2
    result = run(tiny_model, "--stats", *both)
    assert f"{told['n_small']} by small.gguf and {told['n_large']} by the model, which took over" in result.stderr
    assert "(not exact)" in result.stderr


def test_one_model_is_told_as_before(tiny_model: Path) -> None:
    assert record(tiny_model)["two_models"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--small-model", "nobody"), 1, "give a GGUF file, or the name of a model on this machine"),
        (("--hand-over", "never"), 2, "needs bild, or bild=PROBABILITY,NATS"),
        (("--small-model", "{small}", "--draft-from", "{small}"), 1, "leave out --draft-from, or --small-model"),
        (("--small-model", "{small}", "--device", "onnx"), 1, "leave out --device, or --small-model"),
    ],
)
def test_what_cannot_be_is_refused(
    tiny_model: Path, small: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(tiny_model, *(each.format(small=small) for each in arguments))
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (code, True), result.stderr


def test_a_plan_says_what_it_takes(tiny_model: Path, small: Path) -> None:
    result = CliRunner().invoke(build_app(), ["plan", "-m", str(tiny_model), "--small-model", str(small)])
    assert "small.gguf writes (--hand-over bild=0.6,3); answers are not this model's own" in result.stdout
