"""What answers took beside predictions: medians once there are some, kept in a file that may be damaged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.measure.calibration import LAST, MOST, READ_MIN, Adjustment, PredictionCalibration

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
    for ratio in [3.0] * 20 + [0.9] * LAST:
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
    assert 1 / MOST <= found.token <= MOST
    assert 1 / MOST <= found.prompt <= MOST
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
