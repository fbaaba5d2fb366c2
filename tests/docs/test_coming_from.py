"""What docs/COMING_FROM.md says of names is so; that its code runs is tested with that of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.engine.requests.sampling import SamplingSettings

PAGE = Path(__file__).parents[2] / "docs" / "COMING_FROM.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_each_library_has_its_code_and_ours() -> None:
    parts = re.split(r"(?m)^## ", TEXT)[1:]
    assert [part.partition("\n")[0] for part in parts] == [
        "llama-cpp-python",
        "ollama",
        "transformers",
        "OpenAI's client",
    ]
    for part in parts:
        assert "```py\n" in part
        assert "```python\n" in part
        assert "Not here" in part or "refused by name" in part


def test_the_defaults_are_those_of_the_page() -> None:
    usual = SamplingSettings()
    told = f"temperature of {usual.temperature} with top_k {usual.top_k}, top_p {usual.top_p} and min_p {usual.min_p}"
    assert told in TEXT


def test_the_error_is_the_one_of_the_page() -> None:
    with pytest.raises(edgeinfer.BadSetting) as raised:
        edgeinfer.load("SmolLM2-135M-Instruct", n_ctx=4096)  # type: ignore[call-arg]
    assert f"# {raised.value}\n" in TEXT
