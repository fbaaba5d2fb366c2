"""What is told of options that do not do what they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.doubts import doubtful
from edgeinfer.load_options import LoadOptions


def test_options_that_change_nothing_are_told() -> None:
    assert doubtful(LoadOptions(), "cpu", 4096, 4096) == ()
    (notice,) = doubtful(LoadOptions(), "cpu", 4097, 4096)
    assert "more than the 4096 this model was trained for" in notice
    (notice,) = doubtful(LoadOptions(schedule="rows"), "cpu", 1, 1)
    assert "changes nothing on cpu alone" in notice


@pytest.mark.parametrize("keeps", [True, False])
def test_a_device_in_a_process_of_its_own_keeps_no_prefixes_and_says_so(
    tiny_model: Path, home: Path, keeps: bool
) -> None:
    with load(tiny_model, device="cpu", isolate=True, prefix_cache=keeps, spec="off", n_context=256) as llm:
        assert not llm.info.keeps_prefixes
        assert any("no prefixes are kept on disk" in notice for notice in llm.info.notices) is keeps
    assert doubtful(LoadOptions(isolate=True, prefix_cache=True, prefix_space="0"), "cpu", 1, 1) == ()
