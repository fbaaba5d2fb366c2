"""The log of measured speeds: medians, damage, and places that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeinfer.app.plans.measured import SpeedLog, measured_speeds
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from tests.conftest import write_tiny_llama


def test_the_median_of_the_last_seven_is_told(tmp_path: Path) -> None:
    log = SpeedLog(tmp_path / "new" / "speeds.json")
    for speed in (1000.0, 1, 2, 3, 40, 50, 60, 70):
        log.record("m", "cpu", None, measured=MeasuredSpeeds(decode_tok_s=speed))
    log.record("m", "cpu", 2, measured=MeasuredSpeeds(6.0, 5.0, n_prompt=30))
    assert log.find("m", "cpu", None) == MeasuredSpeeds(decode_tok_s=40.0)
    assert log.find("m", "cpu", 2) == MeasuredSpeeds(prefill_tok_s=6.0, decode_tok_s=5.0, n_prompt=30)
    assert log.find("m", "reference", 2) == log.find("x", "cpu", 2) == MeasuredSpeeds()
    assert [path.name for path in log.path.parent.iterdir()] == ["speeds.json"]


def test_prompts_like_those_that_plans_are_about_go_before_others(tmp_path: Path) -> None:
    log = SpeedLog(tmp_path / "speeds.json")
    for n_prompt, rate in ((30, 500.0), (40, 600.0), (300, 2000.0), (500, 2500.0), (50, 700.0)):
        log.record("m", "cpu", None, measured=MeasuredSpeeds(rate, n_prompt=n_prompt))
    assert log.find("m", "cpu", None) == MeasuredSpeeds(prefill_tok_s=2250.0, n_prompt=400)
    log.record("x", "cpu", None, measured=MeasuredSpeeds(600.0, plain_tok_s=7.0))  # nobody knows how long it was
    assert log.find("x", "cpu", None) == MeasuredSpeeds(plain_tok_s=7.0)


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[1]", '"x"', "\x00", json.dumps({"m cpu auto": [1], "x": {"decode_tok_s": "fast"}}), "[" * 100_000],
)
@pytest.mark.usefixtures("uncollected")
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, damage: str) -> None:
    log = SpeedLog(tmp_path / "speeds.json")
    log.path.write_text(damage)
    assert log.find("m", "cpu", None) == MeasuredSpeeds()
    log.record("m", "cpu", None, measured=MeasuredSpeeds(decode_tok_s=7.0))
    assert log.find("m", "cpu", None).decode_tok_s == 7.0


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    log = SpeedLog(tmp_path / "speeds.json")
    log.path.write_text('{"m cpu auto": {"decode_tok_s": [NaN, -1, true, null, "5", 4, 1e400]}}')
    assert log.find("m", "cpu", None) == MeasuredSpeeds(decode_tok_s=4.0)


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    SpeedLog(tmp_path / "file" / "speeds.json").record("m", "cpu", None, measured=MeasuredSpeeds(decode_tok_s=1.0))
    assert (tmp_path / "file").read_text() == ""


def test_a_model_is_known_by_what_it_is_and_not_by_its_name(home: Path, tmp_path: Path) -> None:
    same = [write_tiny_llama(tmp_path / name) for name in ("a.gguf", "b.gguf")]
    other = write_tiny_llama(tmp_path / "c.gguf", seed=1)
    longer = write_tiny_llama(tmp_path / "d.gguf", context=1024)
    prints = []
    for path in (*same, other, longer):
        with GGUFFile.open(path) as file:
            prints.append(fingerprint(file))
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    SpeedLog().record(prints[0], "cpu", None, measured=MeasuredSpeeds(decode_tok_s=3.0))
    with GGUFFile.open(same[1]) as file:
        assert measured_speeds(file, "auto", None) == MeasuredSpeeds(decode_tok_s=3.0)
