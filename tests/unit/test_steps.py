"""How far a step is and how long it takes: compiling moves before its first kernel is there."""

from __future__ import annotations

import itertools

from edgeinfer.steps import COMPILING, seconds_left, share_done


def test_the_share_of_compiling_grows_while_nothing_is_done() -> None:
    shares = [share_done(COMPILING, 0, 9, second) for second in range(30)]
    assert None not in shares
    assert all(later > earlier for earlier, later in itertools.pairwise(shares))  # type: ignore[operator]
    assert shares[-1] < share_done(COMPILING, 1, 9, 30.0) < 1  # type: ignore[operator]
    assert share_done(COMPILING, 9, 9, 30.0) == 1


def test_seconds_left_follow_what_was_measured() -> None:
    first = seconds_left(COMPILING, 0, 9, 0.0)
    assert first is not None
    assert first > 1
    slow, fast = seconds_left(COMPILING, 3, 9, 60.0), seconds_left(COMPILING, 3, 9, 6.0)
    assert slow is not None
    assert fast is not None
    assert slow > 5 * fast > 0


def test_a_step_of_unknown_size_or_speed_has_no_estimate() -> None:
    assert share_done("opening", 0, 0, 5.0) is None
    assert seconds_left("opening", 0, 0, 5.0) is None
    assert seconds_left("trying devices", 0, 3, 20.0) is None
    assert seconds_left("reading", 5, 10, 10.0) == 10
