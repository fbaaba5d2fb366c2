"""What a model needs that does not fit even with its weights read from disk: the error names what would fit."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload import weight_placement
from edgeinfer.engine.offload.least_memory import NoRoomToStream
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.errors import DoesNotFit
from edgeinfer.models.load import Model, open_model
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES
from edgeinfer.text_values import size_in_bytes
from tests.conftest import write_tiny_llama

CONTEXT = 1 << 17
SMALL = PROGRAM_BYTES + 20_000_000
"""Room for a part of that context's keys and values, which take 33 MB."""


def refusal(model: Model, memory: int, holding: WeightBudget | None = None) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as failed:
        planned_weights(
            model.spec,
            model.file,
            "tiny",
            limits_for(CONTEXT, spec=model.spec),
            holding or WeightBudget(),
            None,
            memory,
        )
    return failed.value


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return open_model(write_tiny_llama(tmp_path / "long.gguf", context=CONTEXT), CONTEXT)


def test_a_shorter_context_and_memory_that_would_do_are_named(model: Model) -> None:
    told = refusal(model, SMALL)
    found = re.fullmatch(
        r"tiny needs (.*) of memory for a context of 131072 tokens even with its weights read from disk, and "
        r"230\.0 MB are available; a context of (\d+) tokens would fit \(--ctx \2\)",
        str(told),
    )
    assert found is not None, told
    assert isinstance(told, NoRoomToStream)
    assert told.remedy.endswith(f"(--ctx {found[2]})")
    assert str(pickle.loads(pickle.dumps(told))) == str(told)  # errors come from other processes too
    shorter = limits_for(int(found[2]), spec=model.spec)
    planned_weights(model.spec, model.file, "tiny", shorter, WeightBudget(), None, SMALL)
    longer = limits_for(int(found[2]) * 3 // 2, spec=model.spec)
    with pytest.raises(DoesNotFit):
        planned_weights(model.spec, model.file, "tiny", longer, WeightBudget(), None, SMALL)
    enough = limits_for(CONTEXT, spec=model.spec)
    planned_weights(
        model.spec, model.file, "tiny", enough, WeightBudget(), None, size_in_bytes(found[1].replace(" ", ""), 0)
    )


def test_opening_names_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "long.gguf", context=CONTEXT)
    monkeypatch.setattr(weight_placement, "memory_for_model", lambda: SMALL)
    with pytest.raises(NoRoomToStream, match=r"even with its weights read from disk.*would fit \(--ctx \d+\)"):
        load(path, n_context=CONTEXT)


def test_where_no_context_fits_a_smaller_model_does(model: Model) -> None:
    told = refusal(model, PROGRAM_BYTES)
    assert str(told).endswith("and 210.0 MB are available; a smaller model or a smaller quant would fit")


def test_a_budget_that_is_too_small_is_told_as_such(model: Model) -> None:
    told = refusal(model, 10**9, WeightBudget(ram_bytes=1000))
    assert "of memory for the weights of tiny is too little" in str(told)
    assert not isinstance(told, NoRoomToStream)
