"""Short names of known models: the list is sound, and a name pulls what stands behind it."""

from __future__ import annotations

import re

import pytest

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.known_models import TASKS, KnownModel, known_models
from edgeinfer.models.sources import parse_source
from edgeinfer.models.store import STARTER_SOURCE

MODELS = known_models()
REPOSITORY = re.compile(r"hf:[\w.\-]+/[\w.\-]+-(GGUF|gguf)")
MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]*")


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: str(model.name))
def test_an_entry_is_sound(model: KnownModel) -> None:
    assert MODEL_NAME.fullmatch(model.name)
    assert REPOSITORY.fullmatch(model.source) or model.source == STARTER_SOURCE
    assert model.tasks
    assert set(model.tasks) <= set(TASKS)
    assert 0 < model.n_active <= model.n_params
    assert list(model.quants.values()) == sorted(model.quants.values())
    for quant, nbytes in model.quants.items():
        assert quant_of(f"m-{quant}") == quant
        bits = 8 * nbytes / model.n_params
        assert 4 < bits < 18, f"{quant} has {bits:.1f} bits per weight"
    assert model.kv_numbers % 2 == 0
    assert 0 < model.rank <= 100
    assert model.good_at
    assert model.licence


def test_there_are_models_for_every_task_and_most_open() -> None:
    assert len(MODELS) >= 60
    assert len({model.source for model in MODELS.values()}) == len(MODELS)
    for task in TASKS:
        assert sum(task in model.tasks for model in MODELS.values()) >= 4
    assert MODELS["qwen3-4b"].opens
    assert MODELS["gpt-oss-20b"].opens  # its name is no module name
    assert MODELS["qwen3-vl-4b"].opens  # an alias
    assert sum(model.opens for model in MODELS.values()) >= len(MODELS) * 3 // 4


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("qwen3-8b", "hf:qwen/qwen3-8b-gguf:q4_k_m"),
        ("Qwen3-8B", "hf:qwen/qwen3-8b-gguf:q4_k_m"),
        ("qwen3-8b:Q8_0", "hf:qwen/qwen3-8b-gguf:q8_0"),
        ("smollm2-135m", STARTER_SOURCE),
    ],
)
def test_a_name_is_a_source(text: str, key: str) -> None:
    assert parse_source(text).key == parse_source(key).key


def test_what_is_no_name_is_no_source() -> None:
    for text in ("qwen3", "smollm", "qwen3-8b-"):
        with pytest.raises(ModelNotFound):
            parse_source(text)
    assert parse_source("qwen3-8b/x").key == "hf:qwen3-8b/x"
