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
    assert ("vision" in model.tasks) == bool(model.projector) == (model.projector_bytes > 0)
    assert 0 < model.rank <= 100
    assert model.good_at
    assert model.licence


def test_names_differ_however_they_are_written() -> None:
    bare = [re.sub(r"[^a-z0-9]", "", name) for name in MODELS]
    assert len(set(bare)) == len(bare)


@pytest.mark.parametrize("name", ["gemma-3-27b", "gemma-4-e4b", "gpt-oss-20b"])
def test_layers_with_windows_are_told(name: str) -> None:
    model = MODELS[name]
    assert model.window_numbers > model.kv_numbers > 0 or name == "gpt-oss-20b"
    assert 0 < model.window <= 1024


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
        ("qwen3:8b", "hf:qwen/qwen3-8b-gguf:q4_k_m"),
        ("Qwen3:8B:q8_0", "hf:qwen/qwen3-8b-gguf:q8_0"),
        ("llama3.2:1b", "hf:bartowski/llama-3.2-1b-instruct-gguf:q4_k_m"),
        ("phi4", "hf:bartowski/phi-4-gguf:q4_k_m"),
    ],
)
def test_a_name_is_a_source(text: str, key: str) -> None:
    assert parse_source(text).key == parse_source(key).key


def test_what_is_no_name_is_no_source() -> None:
    for text in ("qwen3", "smollm", "qwen3-88b", "qwen3-8b:9"):
        with pytest.raises(ModelNotFound, match="did you mean "):
            parse_source(text)
    with pytest.raises(ModelNotFound, match=r"'xyzzy'\. Try hf:"):
        parse_source("xyzzy")
    assert parse_source("qwen3-8b/x").key == "hf:qwen3-8b/x"
