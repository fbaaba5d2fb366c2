"""Profiles are stored whole, by the machine's fingerprint, and calibrations of predictions survive damaged files."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.measure.profiles import (
    MOST_ANSWERS,
    MOST_FACTOR,
    READ_MIN,
    Adjustment,
    PredictionCalibration,
    ProfileStore,
    fingerprint_of,
    machine_name,
)
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, ProductRates, Profile
from edgeinfer.scheduling.machine.topology import read_topology

CPU = DeviceRates(
    "cpu",
    "cpu",
    16 << 30,
    Curve.level(30e9),
    {"*": ProductRates(0.5625, Curve.level(200e9))},
    (AttentionRates(64, Curve.level(50e9)),),
    Curve.level(2e9),
)
PROFILE = Profile("a machine", (CPU,), fingerprint="0123456789abcdef", measured="2026-11-22 12:00 UTC", idle_share=1.0)


def test_a_profile_that_was_kept_is_found_again(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles")
    assert store.find(PROFILE.fingerprint) is None
    assert store.save(PROFILE) == store.path(PROFILE.fingerprint)
    assert store.find(PROFILE.fingerprint) == PROFILE
    assert store.find("another") is None
    assert [path.name for path in store.folder.iterdir()] == ["0123456789abcdef.toml"]


def test_a_damaged_or_renamed_profile_counts_as_none(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.save(PROFILE)
    text = store.path(PROFILE.fingerprint).read_text()
    store.path("other").write_text(text)
    assert store.find("other") is None
    store.path(PROFILE.fingerprint).write_text(text[: len(text) // 2])
    assert store.find(PROFILE.fingerprint) is None
    store.save(replace(PROFILE, name="again"))
    found = store.find(PROFILE.fingerprint)
    assert found is not None
    assert found.name == "again"


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert ProfileStore(blocked / "profiles").save(PROFILE) is None
    assert blocked.read_text() == "in the way"


SHORT, LONG = 37, 512


def test_three_answers_give_a_factor_and_an_outlier_changes_nothing(tmp_path: Path) -> None:
    calibration = PredictionCalibration(tmp_path / "e.json")
    for _ in range(2):
        calibration.note_tokens(1.0, 1.2, None)
    assert calibration.adjustment() == Adjustment()
    calibration.note_tokens(1.0, 1.2, None)
    assert calibration.adjustment().token == pytest.approx(1.2)
    calibration.note_tokens(1.0, 50.0, None)
    assert calibration.adjustment().token == pytest.approx(1.2)
    assert calibration.adjustment().prompt == 1.0


def test_what_a_step_takes_besides_its_pass_is_added_and_no_part_of_the_factor(tmp_path: Path) -> None:
    calibration = PredictionCalibration(tmp_path / "e.json")
    for _ in range(3):
        calibration.note_tokens(0.002, 0.0027, 0.0007)
    found = calibration.adjustment()
    assert found.token == pytest.approx(1.0)
    assert found.step_s == pytest.approx(0.0007)
    assert found.tokens_s(0.002) == pytest.approx(0.0027)
    assert found.tokens_s(10 * 0.1, 10) == pytest.approx(1.007)  # of a larger model it is a smaller part


def test_a_short_prompt_tells_what_surrounds_passes_and_a_long_one_how_long_they_are(tmp_path: Path) -> None:
    calibration = PredictionCalibration(tmp_path / "e.json")
    assert not calibration.adjustment().knows_prompt(SHORT)
    assert calibration.adjustment().knows_prompt(READ_MIN)
    calibration.note_prompt(SHORT, 0.008, 0.074, is_first=True)
    found = calibration.adjustment()
    assert found.prompt_s(0.008) == pytest.approx(0.074)
    assert found.knows_prompt(SHORT)
    assert not calibration.adjustment(is_first=False).knows_prompt(SHORT)
    for _ in range(3):
        calibration.note_prompt(LONG, 0.1, 0.2 + 0.058, is_first=True)
    found = calibration.adjustment()
    assert found.prompt == pytest.approx(2.0, rel=1e-2)
    assert found.prompt_s(0.1) == pytest.approx(0.258, rel=1e-2)
    assert found.prompt_s(0.008) == pytest.approx(0.074, rel=1e-2)


def test_later_answers_of_a_model_begin_sooner_and_read_as_fast(tmp_path: Path) -> None:
    calibration = PredictionCalibration(tmp_path / "e.json")
    for is_first, begin_s in ((True, 0.06), (False, 0.01)):
        calibration.note_prompt(SHORT, 0.01, 0.01 + begin_s, is_first=is_first)
        for _ in range(2):
            calibration.note_prompt(LONG, 0.1, 0.1 + begin_s, is_first=is_first)
    first, later = calibration.adjustment(), calibration.adjustment(is_first=False)
    assert (first.begin_s, later.begin_s) == (pytest.approx(0.06), pytest.approx(0.01))
    assert first.prompt == later.prompt == pytest.approx(1.0)


def test_models_that_stream_have_an_adjustment_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    for streams, factor in ((False, 1.5), (True, 3.0)):
        calibration = PredictionCalibration(path, streams=streams)
        for _ in range(3):
            calibration.note_tokens(1.0, factor, None)
        calibration.save()
    assert PredictionCalibration(path).adjustment().token == pytest.approx(1.5)
    assert PredictionCalibration(path, streams=True).adjustment().token == pytest.approx(3.0)


def test_what_was_noted_is_there_the_next_time_and_old_answers_go(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "e.json"
    calibration = PredictionCalibration(path)
    for ratio in [3.0] * 20 + [0.9] * MOST_ANSWERS:
        calibration.note_prompt(LONG, 1.0, ratio, is_first=False)
    calibration.save()
    assert PredictionCalibration(path).adjustment().prompt == pytest.approx(0.9)


@given(
    st.lists(st.tuples(st.floats(), st.floats(), st.none() | st.floats(), st.integers(), st.booleans()), max_size=20)
)
def test_an_adjustment_stays_within_bounds_whatever_is_noted(
    noted: list[tuple[float, float, float | None, int, bool]],
) -> None:
    calibration = PredictionCalibration(Path("nowhere"))
    for predicted_s, measured_s, step_s, n_tokens, is_first in noted:
        calibration.note_tokens(predicted_s, measured_s, step_s)
        calibration.note_prompt(n_tokens, predicted_s, measured_s, is_first=is_first)
    found = calibration.adjustment()
    assert 1 / MOST_FACTOR <= found.token <= MOST_FACTOR
    assert 1 / MOST_FACTOR <= found.prompt <= MOST_FACTOR
    assert found.prompt_s(1.0) > 0
    assert found.tokens_s(1.0) > 0


DAMAGED = (
    '{"resident": {"token": [[1, 2, 3], null, 4, [1, "a"], [1, 1e99], [-1, 1], [true, 1], [1, 1' + "0" * 400 + "]]}}"
)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"resident": 3}', '{"decode": [1.0]}', DAMAGED, "9" * 5000, "[" * 100_000]
)
@pytest.mark.usefixtures("uncollected")
def test_a_damaged_file_counts_as_empty(content: str, tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text(content)
    assert PredictionCalibration(path).adjustment() == Adjustment()


def test_a_file_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    calibration = PredictionCalibration(tmp_path / "file" / "e.json")
    calibration.note_tokens(1.0, 1.0, 0.1)
    calibration.save()
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some   CPU @ 3 GHz\nflags : a\n")
    assert machine_name(info) == "Some CPU @ 3 GHz"
    assert machine_name(tmp_path / "missing")


def test_the_fingerprint_follows_cores_and_quota_but_not_what_others_use() -> None:
    topology = read_topology()
    known = fingerprint_of(topology)
    assert known == fingerprint_of(replace(topology, available_bytes=topology.available_bytes // 2))
    assert known != fingerprint_of(replace(topology, quota=0.5))
    assert known != fingerprint_of(replace(topology, cores=topology.cores[:1] * 2))
