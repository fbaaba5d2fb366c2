"""From an answer's numbers to what is kept: half a character at its end is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.app.sessions.figures import text_of
from tests.app.tui.scripted import Script, ScriptedStream


@pytest.mark.parametrize(("reason", "kept"), [("length", "caf"), ("stop", "caf\ufffd"), ("cancelled", "caf\ufffd")])
def test_a_limit_inside_a_character_leaves_nothing_of_it(reason: str, kept: str) -> None:
    stream = ScriptedStream(Script("caf"), 1, 0)
    list(stream)
    assert stream.stats is not None
    assert text_of("caf\ufffd", replace(stream.stats, finish_reason=reason)) == kept  # type: ignore[arg-type]
