"""Predicted beside measured: from the kept profile, corrected by earlier answers, only where something is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from typer.testing import CliRunner

from edgeinfer.app.catalogue.forecast import forecast_of
from edgeinfer.app.cli import build_app
from edgeinfer.app.opening.loading import record_speed
from edgeinfer.app.plans.expectation import (
    Expected,
    adjustment_of,
    expectation_lines,
    expected_of,
    note_for_calibration,
    worker_lines,
)
from edgeinfer.app.plans.expected_answers import (
    expected_answers_lines,
    expected_answers_s,
    note_answers_for_calibration,
)
from edgeinfer.app.plans.measured import SpeedLog
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure.profiles import Adjustment, ProfileStore, fingerprint_of
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.telemetry import Telemetry
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import CoreRates, Curve, Disk, Profile
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.scheduling.offload.reads import RecordReads
from edgeinfer.scheduling.offload.streaming import Streamed
from edgeinfer.scheduling.prediction import Predictor
from tests.unit.scheduling.profiles import machine

STATS = Stats(
    n_prompt=200,
    n_cached=0,
    n_generated=64,
    finish_reason="length",
    truncated=False,
    notices=(),
    ttft_s=0.1,
    prefill_tok_s=2000.0,
    decode_tok_s=50.0,
    steps=64,
    accepted_per_step=1.0,
    seed=0,
    policy="balanced: all cores",
)


@pytest.fixture
def llm(home: Path, tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference", mode="max") as found:
        found.info = replace(found.info, device="cpu")
        with patch.object(Telemetry, "device", "cpu"):
            yield found


@pytest.fixture
def profile(home: Path) -> Profile:
    found = replace(machine(), fingerprint=fingerprint_of(read_topology()), measured="now")
    ProfileStore().save(found)
    return found


def test_an_answer_is_predicted_from_the_profile(llm: LLM, profile: Profile) -> None:
    expected, predictor = expected_of(llm, STATS), Predictor(profile, llm.telemetry.work)
    assert expected is not None
    assert expected.prefill_tok_s == pytest.approx(200 / predictor.prompt_s(200))
    assert expected.plain_tok_s == pytest.approx(64 / predictor.decode_s(64, 200))
    (line,) = expectation_lines(expected, STATS)
    assert "(measured 2000.0)" in line
    assert "(measured 50.0)" in line


def test_answers_side_by_side_are_predicted_pass_by_pass(llm: LLM, profile: Profile) -> None:
    lengths, predictor = (64, 10, 64), Predictor(profile, llm.telemetry.work)
    found = expected_answers_s(llm, [replace(STATS, n_generated=length) for length in lengths])
    passes = [Pass(1, 200 + done, 1, sum(length > done for length in lengths)) for done in range(64)]
    written_s = sum(predictor.seconds(step).total for step in passes)
    assert found == pytest.approx(predictor.prompt_s(200) + written_s, rel=1e-3)
    (line,) = expected_answers_lines(found, 0.5, 3)
    assert "3 answers" in line
    assert "(took 0.50 s)" in line
    alone = expected_answers_s(llm, [STATS])
    assert alone == pytest.approx(predictor.prompt_s(200) + predictor.decode_s(64, 200), rel=1e-3)


def test_answers_side_by_side_correct_the_next_prediction_of_such(llm: LLM, profile: Profile) -> None:
    several = [replace(STATS, n_generated=length) for length in (64, 40)]
    before_s, alone_s = expected_answers_s(llm, several), expected_answers_s(llm, [STATS])
    assert before_s is not None
    assert STATS.ttft_s is not None
    for _ in range(3):
        note_answers_for_calibration(llm, several, STATS.ttft_s + 2 * before_s)
    again_s = expected_answers_s(llm, several)
    read_s = Predictor(profile, llm.telemetry.work).prompt_s(200)
    assert again_s == pytest.approx(read_s + 2 * before_s, rel=1e-2)
    assert expected_of(llm, STATS) == Expected(200 / read_s, 64 / (alone_s - read_s), False)  # type: ignore[operator]
    note_answers_for_calibration(llm, [STATS], 9.0)  # one alone says nothing of several
    note_answers_for_calibration(llm, [replace(STATS, n_generated=9)] * 2, 9.0)  # nor do short ones
    assert expected_answers_s(llm, several) == again_s


def test_without_a_profile_answers_side_by_side_are_not_predicted(llm: LLM) -> None:
    assert expected_answers_s(llm, [STATS]) is None
    assert expected_answers_lines(None, 0.5, 3) == []


def test_an_answer_is_predicted_for_the_cores_that_gave_it(llm: LLM, profile: Profile) -> None:
    several = replace(profile.cpu, cores=tuple(CoreRates(n, "performance", 0, 5e9, 1.0) for n in range(4)))
    ProfileStore().save(replace(profile, devices=(several,)))
    found = {}
    for affinity in (((0,), (1,), (2,), (3,)), ((2,),), ((0, 1, 2, 3),)):
        with patch.object(Telemetry, "affinity", affinity):
            found[affinity] = expected_of(llm, STATS)
    four, pinned, free = found.values()
    assert four is not None
    assert pinned is not None
    assert four.prefill_tok_s is not None
    assert pinned.prefill_tok_s is not None
    assert four.prefill_tok_s > 2 * pinned.prefill_tok_s
    assert free == pinned  # one worker, on whichever core


def test_earlier_answers_correct_the_next_prediction(llm: LLM, profile: Profile) -> None:
    first = expected_of(llm, STATS)
    for _ in range(3):
        note_for_calibration(llm, STATS)
    adjustment = adjustment_of(profile)
    again = expected_of(llm, STATS)
    assert first is not None
    assert again is not None
    assert first.plain_tok_s is not None
    assert again.plain_tok_s == pytest.approx(first.plain_tok_s / adjustment.token)
    assert adjustment.token == pytest.approx(min(8, max(1 / 8, first.plain_tok_s / 50)), rel=1e-3)
    assert adjustment.prompt != 1.0


def test_an_answer_of_two_devices_is_neither_predicted_nor_recorded(llm: LLM, profile: Profile) -> None:
    with patch.object(Telemetry, "device", "reference"):
        assert expected_of(llm, STATS) is None
        record_speed(llm, STATS)
        assert not SpeedLog().path.exists()
    record_speed(llm, STATS)
    assert SpeedLog().path.exists()


def test_short_answers_correct_nothing_and_short_prompts_no_factor(llm: LLM, profile: Profile) -> None:
    for _ in range(5):
        note_for_calibration(llm, replace(STATS, n_prompt=100, n_generated=10))
    assert replace(adjustment_of(profile, is_first=False), begin_s=None) == Adjustment()


def test_a_short_prompt_is_predicted_once_one_was_measured_and_for_its_own_length(llm: LLM, profile: Profile) -> None:
    first = replace(STATS, n_prompt=300, n_cached=263, prefill_tok_s=500.0, is_first=True, step_s=0.001)
    expected = expected_of(llm, first)
    assert expected is not None
    assert expected.prefill_tok_s is None  # passes alone would tell thousands
    (line,) = expectation_lines(expected, first)
    assert "prompt" not in line
    assert "by passes alone" in line
    note_for_calibration(llm, first)
    expected = expected_of(llm, first)
    assert expected is not None
    assert expected.prefill_tok_s == pytest.approx(500.0, rel=1e-3)
    (line,) = expectation_lines(expected, first)
    assert "prompt of 37 500.0 tok/s (measured 500.0)" in line
    assert "by passes alone" not in line
    longer = expected_of(llm, replace(first, n_cached=0))
    assert longer is not None
    assert longer.prefill_tok_s is not None
    assert longer.prefill_tok_s > 1000
    later = expected_of(llm, replace(first, is_first=False))
    assert later is not None
    assert later.prefill_tok_s is None


def test_one_model_on_one_machine_has_one_prediction_whoever_shows_it(llm: LLM, profile: Profile) -> None:
    for _ in range(3):
        note_for_calibration(llm, replace(STATS, step_s=0.001, is_first=True))
    note_for_calibration(llm, replace(STATS, n_prompt=30, is_first=True))
    adjustment = adjustment_of(profile)
    assert None not in (adjustment.begin_s, adjustment.step_s)
    path = llm.info.path
    run = CliRunner().invoke(build_app(), ["plan", "-m", str(path), "--json", "--device", "cpu"])
    plan = json.loads(run.stdout)["predicted"]
    with GGUFFile.open(path) as file:
        forecast = forecast_of(file, path.stat().st_size, None, profile=profile)
    n_prompt = plan["n_prompt"]
    asked = replace(STATS, n_prompt=n_prompt, n_generated=1, is_first=True)
    expected = expected_of(llm, asked)
    assert expected is not None
    assert forecast.prefill_tok_s == expected.prefill_tok_s == pytest.approx(plan["prefill_tok_s"])
    assert forecast.decode_tok_s == pytest.approx(plan["decode_tok_s"])
    assert expected.plain_tok_s == pytest.approx(plan["decode_tok_s"])


def test_without_a_profile_there_is_nothing_to_say(llm: LLM) -> None:
    assert expected_of(llm, STATS) is None
    (line,) = expectation_lines(None, STATS)
    assert "edgeinfer probe" in line
    note_for_calibration(llm, STATS)


def test_the_command_that_measures_a_device_is_named(home: Path) -> None:
    for device, words in (
        ("openvino", "edgeinfer probe --device openvino does that"),
        ("cpu+openvino:gpu", "edgeinfer probe --device cpu,openvino:gpu does that"),
        ("llamacpp", "predicted: nothing, as llamacpp cannot be measured"),
        ("cpu", "edgeinfer probe does that"),
    ):
        (line,) = expectation_lines(None, STATS, device, read_topology().workers())
        assert line.endswith(words)
    for cores, words in (((4, 5), "--threads 2 does"), ((5, 6), "--cores 5,6 does"), ((6, 5, 4), "--cores 6,5,4 does")):
        with patch("edgeinfer.scheduling.machine.topology.read_topology", return_value=Mock(workers=lambda: (4, 5, 6))):
            (line,) = expectation_lines(None, STATS, "openvino", cores)
        assert line.endswith(f"--device openvino {words} that")


def test_what_was_not_read_or_made_is_left_out() -> None:
    assert expectation_lines(Expected(None, None), STATS) == []
    (line,) = expectation_lines(Expected(None, 30.0), replace(STATS, decode_tok_s=None))
    assert line == "predicted: one token at a time 30.0 tok/s"


def test_workers_are_named_by_their_cores() -> None:
    assert worker_lines(()) == []
    assert worker_lines(((0,), (1,))) == ["workers on cores 0, 1"]


@pytest.fixture
def streaming(llm: LLM, profile: Profile) -> Iterator[Streamed]:
    """The model reads 10 MB in every pass from a disk that gives 1 GB/s."""
    ProfileStore().save(replace(profile, disk=Disk({2: Curve.level(1e9)})))
    with patch.object(Telemetry, "streamed", Streamed({10**6: 10}, 2)):
        yield llm.telemetry.streamed


def test_a_model_that_streams_takes_as_long_as_its_disk(llm: LLM, profile: Profile, streaming: Streamed) -> None:
    expected = expected_of(llm, replace(STATS, n_prompt=300))
    assert expected is not None
    assert expected.plain_tok_s == pytest.approx(1e9 / 1e7)
    assert expected.prefill_tok_s == pytest.approx(300 / 2 * 1e9 / 1e7)  # in two passes
    with patch.object(Telemetry, "streamed", Streamed({1: 1}, 2)):
        resident = expected_of(llm, STATS)
    assert resident is not None
    assert resident.plain_tok_s == pytest.approx(64 / Predictor(profile, llm.telemetry.work).decode_s(64, 200))


@dataclass(frozen=True, slots=True)
class SlowRecords:
    """Records whose reads take a tenth of a second a token."""

    holds_all: bool = False

    def reads(self, n_tokens: int = 1) -> RecordReads:
        return RecordReads(2.0 * n_tokens, 4096.0 * n_tokens, 0.1 * n_tokens)


def test_records_are_waited_for_after_everything_else(llm: LLM, profile: Profile, streaming: Streamed) -> None:
    computed_s = Predictor(profile, llm.telemetry.work).decode_s(64, 200)
    with patch.object(Telemetry, "streamed", replace(streaming, requests={1: 1}, records=SlowRecords())):
        expected = expected_of(llm, STATS)
    assert expected is not None
    assert expected.plain_tok_s == pytest.approx(64 / (computed_s + 64 * 0.1))


def test_what_streaming_took_corrects_no_model_in_memory(llm: LLM, profile: Profile, streaming: Streamed) -> None:
    for _ in range(3):
        record_speed(llm, STATS)
    assert adjustment_of(profile) == Adjustment()
    assert adjustment_of(profile, streams=True).token == pytest.approx(2.0)  # 50 instead of 100 a second
    assert not SpeedLog().path.exists()
    expected = expected_of(llm, STATS)
    assert expected is not None
    assert expected.plain_tok_s == pytest.approx(50)


def test_without_a_measured_disk_streaming_is_not_predicted(llm: LLM, profile: Profile) -> None:
    with patch.object(Telemetry, "streamed", Streamed({10**6: 10}, 2)):
        assert expected_of(llm, STATS) is None
    (line,) = expectation_lines(None, STATS)
    assert line == "predicted: nothing, as the disk that weights come from was not measured; edgeinfer probe does that"
