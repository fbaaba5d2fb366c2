"""What the tests of scripts about long texts share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import write_tiny_llama

N_TOKENS = 1024


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and room for two texts."""
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "tiny.gguf", context=2 * N_TOKENS)


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with articles of some thousand characters, and a question of another kind."""
    draw = np.random.default_rng(0)
    words = ["river", "stone", "lamp", "Monday", "seven", "garden", "quick", "paper", "north", "bread"]
    lines = [{"category": "math", "turns": ["What is 7 times 8?"]}]
    for kind in ("summarization", "rag"):
        lines.append({"category": kind, "turns": [f"Summarize: {' '.join(draw.choice(words, 400))}"]})
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path
