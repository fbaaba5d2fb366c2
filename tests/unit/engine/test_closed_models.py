"""What is left of closed models is freed, also if it was frozen meanwhile, without waiting for a full collection."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from edgeinfer.engine import closed_models
from edgeinfer.engine.closed_models import free_closed_models, free_closed_models_soon
from edgeinfer.engine.loading import load
from tests.golden.goldens import Golden
from tests.waiting import until

GOLDEN = Golden.read("llama-q8_0")


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Python collects nothing by itself."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("is_frozen", [False, True], ids=["plain", "frozen"])
def test_a_closed_model_is_freed_soon(is_frozen: bool, home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_models, "AFTER_S", 0.05)
    llm = load(GOLDEN.model, device="cpu", n_context=128)
    llm.complete("one two", max_tokens=2).read()
    freed = weakref.ref(llm)
    if is_frozen:
        gc.freeze()
    llm.close()
    free_closed_models_soon()
    del llm
    until(lambda: freed() is None)


def test_what_was_frozen_stays_frozen() -> None:
    for thread in threading.enumerate():  # of models that earlier tests closed
        if isinstance(thread, threading.Timer) and thread.function is free_closed_models:
            thread.join()
    gc.unfreeze()
    free_closed_models()
    assert gc.get_freeze_count() == 0
    gc.freeze()
    free_closed_models()
    assert gc.get_freeze_count() > 0
