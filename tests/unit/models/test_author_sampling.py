"""Sampling that a file's author asks for: read with care, applied below what the user says, and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.request import Options, request_of
from edgeinfer.models.author_sampling import STARTER, author_sampling
from tests.golden.goldens import DATA
from tests.unit.models.test_other_names import rewritten

PENALTY = "general.sampling.penalty_repeat"
HUGE = 10**400
"""A whole number that no float can hold."""
NOT_NUMBERS = ("1", True, None, [1.0], float("nan"), float("inf"))


def test_values_are_read_by_the_names_of_options() -> None:
    asked: dict[str, object] = {
        "temp": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "penalty_repeat": 1.05,
        "penalty_last_n": 64,
        "xtc_probability": 0.5,
        "sequence": "temperature",
    }
    assert author_sampling({f"general.sampling.{key}": value for key, value in asked.items()}) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repeat_penalty": 1.05,
        "penalty_window": 64,
    }


def test_the_starter_model_alone_has_a_penalty_that_its_author_did_not_ask_for() -> None:
    assert author_sampling({"general.name": STARTER}) == {"repeat_penalty": 1.1}
    assert author_sampling({"general.name": STARTER, PENALTY: 1.0}) == {"repeat_penalty": 1.0}
    assert author_sampling({"general.name": "another"}) == {}


@pytest.mark.parametrize("key", ["temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n"])
@pytest.mark.parametrize("value", [*NOT_NUMBERS, pytest.param(HUGE, id="huge"), -1e9, 1e9, 1 << 40, -1, 0, 0.5, 2])
def test_whatever_a_file_says_a_request_can_be_made(key: str, value: object) -> None:
    found = author_sampling({f"general.sampling.{key}": value})
    request_of((1,), {}, author=found)
    if value in (*NOT_NUMBERS, HUGE):
        assert not found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.3, 7, 1.2)),
        ({"temperature": 0.9}, (0.9, 7, 1.2)),
        ({"top_k": 0, "repeat_penalty": 1.0}, (0.3, 0, 1.0)),
        ({"temperature": 0.0}, (0.0, 7, 1.0)),
        ({"temperature": 0.0, "repeat_penalty": 1.5}, (0.0, 7, 1.5)),
    ],
)
def test_the_user_goes_before_the_author(options: Options, expected: tuple[float, int, float]) -> None:
    found = request_of((1,), options, author={"temperature": 0.3, "top_k": 7, "repeat_penalty": 1.2}).sampling
    assert (found.temperature, found.top_k, found.repeat_penalty) == expected


def test_a_loaded_model_follows_its_author_and_show_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgeinfer.app.cli import main

    path = rewritten(
        DATA / "llama-q8_0.gguf",
        tmp_path / "m.gguf",
        "llama",
        lambda writer: writer.add_float32("general.sampling.temp", 0.0),
    )
    with load(path, device="reference", n_context=64, spec="off") as llm:
        assert llm.prompts.sampling == {"temperature": 0.0}
        assert llm.complete([5, 6, 7], max_tokens=5).read() == llm.complete([5, 6, 7], max_tokens=5).read()
    with pytest.raises(SystemExit):
        main(["show", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["sampling"] == {"temperature": 0.0}
