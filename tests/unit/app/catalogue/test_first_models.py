"""The models to choose from first: local ones that fit, the starter, and the best known ones of each size."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry
from edgeinfer.app.catalogue.first_models import by_size_steps, first_models, starter_row
from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.errors import ModelNotFound
from edgeinfer.models.store import STARTER_NAME, ModelStore
from edgeinfer.settings import load_settings


def entry(name: str, nbytes: int) -> ModelEntry:
    return ModelEntry(name, f"hf:{name}", None, nbytes)


def test_each_offer_is_at_most_half_as_large_as_the_one_before() -> None:
    offers = [entry("a", 800), entry("b", 700), entry("c", 400), entry("d", 300), entry("e", 100), entry("f", 90)]
    assert [each.name for each in by_size_steps(offers)] == ["a", "c", "e"]


def test_the_starter_comes_before_larger_ones_and_local_models_before_it(home: Path, tiny_model: Path) -> None:
    store = ModelStore(home / "models")
    store.root.mkdir(parents=True)
    shutil.copy(tiny_model, store.root / "mine.gguf")
    with Catalogue(store) as catalogue:
        found = first_models(catalogue)
    assert [row.name for row in found[:2]] == ["mine", STARTER_NAME]
    assert found[0].is_here
    assert all(row.good_at and row.size and row.fit in ("fits", "?") for row in found)
    assert all(row.name.startswith("hf:") and "~" in row.tok_s for row in found[2:])


def test_a_damaged_file_is_not_offered(home: Path) -> None:
    store = ModelStore(home / "models")
    store.root.mkdir(parents=True)
    (store.root / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with Catalogue(store) as catalogue:
        assert "broken" not in [row.name for row in first_models(catalogue)]


def test_the_starter_needs_no_look_at_the_machine() -> None:
    assert starter_row().size.endswith(" MB")


def test_the_model_that_is_chosen_first_is_opened(home: Path, tiny_model: Path) -> None:
    asked: list[str] = []

    def first() -> str:
        asked.append("first")
        return str(tiny_model)

    face = WatchedFace(_ignore, _ignore, _ignore, first=first)
    assert choose_model(load_settings({}), ModelStore(home / "models"), face=face).path == tiny_model
    assert asked == ["first"]


def test_whoever_chooses_none_fetches_nothing(home: Path) -> None:
    def none() -> str:
        raise ModelNotFound("none was chosen")

    store = ModelStore(home / "models")
    with pytest.raises(ModelNotFound, match="none was chosen"):
        choose_model(load_settings({}), store, face=WatchedFace(_ignore, _ignore, _ignore, first=none))
    assert store.models() == []


def _ignore(*anything: object) -> None:
    """A function of a face that nobody looks at."""
