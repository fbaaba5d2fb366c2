"""How sure a model is: numbers of rows of logits, judged in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeinfer.engine.two_models.certainty import certainty, surprises


def test_numbers_are_those_of_the_softmax() -> None:
    chance = np.random.default_rng(3)
    for scale in (0.0, 1.0, 20.0, 300.0):
        logits = (chance.normal(0, 1, (6, 5000)) * scale).astype(np.float32)
        shares = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        tokens = [0, 17, 4999, *logits[3:5].argmax(axis=1).tolist()]
        for row, share in zip(logits, shares, strict=True):
            positive = share[share > 0]
            assert certainty(row) == pytest.approx((share.max(), -(positive * np.log(positive)).sum()), abs=1e-4)
        told = surprises(logits, tokens)
        assert len(told) == len(tokens)
        for surprise, share, token in zip(told, shares, tokens, strict=False):
            assert surprise == pytest.approx(-math.log(share[token]) if share[token] else math.inf, abs=1e-4) or (
                surprise > 700
            )


def test_forbidden_tokens_take_no_part() -> None:
    row = np.full(100, -np.inf, np.float32)
    row[[4, 9]] = 2.0
    assert certainty(row) == pytest.approx((0.5, math.log(2)))
    assert surprises(row[None], [4]) == pytest.approx([math.log(2)])
    assert surprises(row[None], [5]) == [math.inf]
