"""Watches what is evaluated."""

from __future__ import annotations

import pytest

from edgeinfer.engine.run.pool import Pool
from edgeinfer.graph.step import Batch, Floats


def watched(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches that a pool's model evaluates from now on."""
    executor, batches = pool.executor, list[Batch]()
    evaluate = executor.evaluate

    def noted(batch: Batch) -> Floats:
        batches.append(batch)
        return evaluate(batch)

    monkeypatch.setattr(executor, "evaluate", noted)
    return batches
