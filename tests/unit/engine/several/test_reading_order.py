"""Parts that grow in any order are read in theirs, each character once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.several.reading_order import ReadingOrder

TEXTS = st.lists(st.text("ab \n", max_size=8), min_size=1, max_size=5)
MOVES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30)


@given(TEXTS, MOVES)
def test_whatever_the_order_of_pieces_the_text_is_the_same(texts: list[str], moves: list[tuple[int, int]]) -> None:
    grown, over = [""] * len(texts), [False] * len(texts)
    heads = [f"{number}:" for number in range(len(texts))]
    order = ReadingOrder(heads, "|", grown.__getitem__, over.__getitem__)
    found = order.read()
    assert found == heads[0]
    whole = "|".join(head + text.rstrip() for head, text in zip(heads, texts, strict=True))
    rest = [(number, len(text)) for number, text in enumerate(texts)]
    for which, n_more in [*moves, *rest, *((number, 0) for number, _ in rest)]:
        number = which % len(texts)
        over[number] = over[number] or (grown[number] == texts[number] and not n_more)
        grown[number] = texts[number][: len(grown[number]) + n_more]
        found += order.read()
        n_over = next((n for n, ended in enumerate(over) if not ended), len(texts))
        readable = zip(heads, grown[: n_over + 1], strict=False)  # the first that is not over as far as it goes
        assert found == "|".join(head + text.rstrip() for head, text in readable)
    assert all(over)
    assert found == whole
    assert order.read() == ""


def test_no_parts_are_no_text() -> None:
    assert ReadingOrder([], "|", str, bool).read() == ""
