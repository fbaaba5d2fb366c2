"""lm-evaluation-harness itself against a running server, judged item by item by the Python API."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from edgeinfer.engine.llm import LLM
from scripts.compare_lm_eval import Item, Judged, items, judged_choices, judged_words
from tests.server.conftest import Running

Judge = Callable[[LLM, str, str, str, list[Item]], Judged]


def test_items_have_one_right_answer_each() -> None:
    found = items()
    assert len(found) == 30
    assert {len(set(each.choices)) for each in found} == {4}
    assert len({each.question for each in found}) == 30
    assert len({each.answer for each in found}) == 4


@pytest.mark.parametrize("judged", [judged_choices, judged_words])
def test_lm_evaluation_harness_finds_what_the_python_api_finds(server: Running, judged: Judge) -> None:
    program = shutil.which("lm_eval")
    if program is None:
        pytest.skip("lm_eval is not installed")
    found = judged(server.llm, server.url, "tiny", program, items())
    assert found.n_same == found.n_values
    assert found.theirs == found.ours
