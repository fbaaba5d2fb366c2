"""Where entries of a transcript begin: the same whether lines were guessed first or counted at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.tui.widgets.transcript_lines import Heights

LINES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=30)


@given(LINES)
def test_each_line_belongs_to_the_entry_that_has_it(entries: list[tuple[int, int, bool]]) -> None:
    heights = Heights()
    heights.guess_all(guess for guess, _, _ in entries[:-1])
    heights.guess(entries[-1][0])
    for place, (_, exact, is_measured) in enumerate(entries):
        if is_measured:
            heights.measure(place, exact)
    heights.settle()
    expected = [
        (place, line)
        for place, (guess, exact, is_measured) in enumerate(entries)
        for line in range(exact if is_measured else guess)
    ]
    assert [heights.at(line) for line in range(heights.total)] == expected
    assert [heights.is_measured(place) for place in range(len(entries))] == [entry[2] for entry in entries]
    assert [heights.top(place) + heights.of(place) for place in range(len(entries))] == [
        heights.end(place) for place in range(len(entries))
    ]
    assert heights.at(heights.total + 5)[0] == len(entries) - 1


def test_nothing_has_no_lines() -> None:
    assert Heights().total == 0
