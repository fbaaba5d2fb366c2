"""Ratios of measured and predicted: medians once there are some, kept in a file that may be damaged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.experience import LAST, MOST, Experience


def test_three_answers_correct_what_follows_and_an_outlier_does_not(tmp_path: Path) -> None:
    experience = Experience(tmp_path / "e.json")
    for _ in range(2):
        experience.note("decode", 1.0, 1.2)
    assert experience.factor("decode") == 1.0
    experience.note("decode", 1.0, 1.2)
    assert experience.factor("decode") == pytest.approx(1.2)
    experience.note("decode", 1.0, 50.0)
    assert experience.factor("decode") == pytest.approx(1.2)
    assert experience.factor("prefill") == 1.0


def test_what_was_noted_is_there_the_next_time_and_old_answers_go(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "e.json"
    experience = Experience(path)
    for ratio in [3.0] * 20 + [0.9] * LAST:
        experience.note("prefill", 1.0, ratio)
    experience.save()
    assert Experience(path).factor("prefill") == pytest.approx(0.9)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=20))
def test_factors_stay_within_bounds_whatever_is_noted(pairs: list[tuple[float, float]]) -> None:
    experience = Experience(Path("nowhere"))
    for predicted_s, measured_s in pairs:
        experience.note("decode", predicted_s, measured_s)
    assert 1 / MOST - 1e-3 <= experience.factor("decode") <= MOST


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"decode": 3}', '{"decode": [null, "a", 1e99, -1, true]}', "9" * 5000]
)
def test_a_damaged_file_counts_as_empty(content: str, tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text(content)
    assert Experience(path).factor("decode") == 1.0


def test_a_file_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    experience = Experience(tmp_path / "file" / "e.json")
    experience.note("decode", 1.0, 1.0)
    experience.save()
    assert (tmp_path / "file").read_text() == "in the way"
