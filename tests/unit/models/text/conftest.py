"""Fixtures of the text tests: vocabularies made by trainers we did not write, beside the trainers' own encoders."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.unit.models.text.small_vocabularies import SAMPLES, random_texts, trained_byte_level, trained_sentencepiece


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [*SAMPLES, "", " ", "a", "\x00", *random_texts(300, seed=7)]


@pytest.fixture(scope="session")
def byte_level() -> SimpleNamespace:
    """A byte-level BPE with SmolLM's rules, trained by `tokenizers`."""
    return trained_byte_level()


@pytest.fixture(scope="session")
def train_sentencepiece() -> Callable[..., SimpleNamespace]:
    """Trains a SentencePiece BPE: metadata and its processor. Skips without the `sentencepiece` package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sentencepiece")
    return trained_sentencepiece
