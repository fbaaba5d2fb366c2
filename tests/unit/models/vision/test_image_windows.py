"""Windows of Qwen2.5-VL's encoder: squares of patches, smaller at the edges."""

from __future__ import annotations

import numpy as np

from edgeinfer.models.projectors.qwen2_5vl_merger import windows


def test_places_of_a_window_follow_one_another() -> None:
    order, spans = windows((3, 5), 2)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert np.unique(spans, axis=0).tolist() == [[0, 3], [4, 7], [8, 9], [10, 11], [12, 13], [14, 14]]
    assert all(first <= place <= last for place, (first, last) in enumerate(spans))


def test_a_small_image_is_one_window() -> None:
    order, spans = windows((2, 3), 4)
    assert order.tolist() == list(range(6))
    assert spans.tolist() == [[0, 5]] * 6
