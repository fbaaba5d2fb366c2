"""Stop strings: cut anywhere into pieces, the stream shows exactly what comes before the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.request import request_of
from edgeinfer.engine.scheduler.output import Output, StopStrings
from edgeinfer.errors import BadSetting
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer

texts = st.text("ab\n", max_size=12)


@given(st.lists(texts, max_size=6), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_is_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown, fed = "", ""
    for piece in pieces:
        fed += piece
        shown += watch.push(piece)
        first = min((at for stop in stops if (at := fed.find(stop)) >= 0), default=None)
        assert (watch.matched is not None) == (first is not None)
        if first is not None:
            assert shown == fed[:first]
            return
        held = fed[len(shown) :]
        assert fed.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)
    assert shown + watch.finish() == fed


def test_after_a_match_nothing_is_shown() -> None:
    watch = StopStrings(["END"])
    assert [watch.push(piece) for piece in ("a E", "N", "Dx", "more")] == ["a ", "", "", ""]
    assert (watch.matched, watch.finish()) == ("END", "")


def test_what_is_no_stop_string_is_refused() -> None:
    with pytest.raises(BadSetting, match="stop cannot be 3"):
        request_of((1,), {"stop": 3})  # type: ignore[typeddict-item]
    with pytest.raises(BadSetting, match="cannot be 3: it must be text"):
        StopStrings([3])  # type: ignore[list-item]
    with pytest.raises(BadSetting, match="empty"):
        StopStrings(["x", ""])


@pytest.mark.parametrize("at_once", [False, True])
def test_tokens_that_only_a_stop_string_holds_are_not_shown(tiny_model: Path, *, at_once: bool) -> None:
    """Of "x", "a", "a", "b", "c" with the stop string "abc" the first two are, taken late or as they come."""
    with GGUFFile.open(tiny_model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    output, shown = Output(tokenizer, request_of((1,), {"stop": "abc"})), []
    for number, character in enumerate("xaabc"):
        (token,) = tokenizer.encode(character)
        output.add(token, number + 1)
        if not at_once:
            output.take_all()
            shown.append(output.n_shown_taken)
    output.take_all()
    assert (output.n_taken, output.n_shown_taken, output.n_shown) == (3, 2, 2)
    assert at_once or shown == [1, 1, 2, 2, 2]
