"""A model's files on a node: in place, in the store, or fetched once in checked pieces."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgeinfer.app.cluster import weights
from edgeinfer.app.cluster.weights import Piece, SentFile, SentModel, bring
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import ModelStore, path_model


@dataclass
class Sender:
    """Sends pieces of files, and counts them; `damages` the piece of that number."""

    paths: list[Path]
    damages: int | None = None
    sent: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, file: int, number: int) -> Piece:
        self.sent.append((file, number))
        data = self.paths[file].read_bytes()[number * weights.PIECE_BYTES :][: weights.PIECE_BYTES]
        digest = weights._hash(data)
        return (data[:-1] + b"!", digest) if number == self.damages else (data, digest)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 50_000)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def elsewhere(sent: SentModel) -> SentModel:
    """The model of a computer whose paths are not there."""
    files = tuple(replace(file, path=f"/no/such/{Path(file.path).name}") for file in sent.files)
    return replace(sent, files=files, source="no such model")


def test_a_file_in_place_is_used(tiny_model: Path, store: ModelStore, tmp_path: Path) -> None:
    sender = Sender([tiny_model])
    assert bring(SentModel.of(path_model(tiny_model)), sender, store, tmp_path / "fetched") == [tiny_model]
    assert not sender.sent


def test_another_file_in_its_place_is_not_used_and_the_sent_one_is_whole(
    tiny_model: Path, store: ModelStore, tmp_path: Path
) -> None:
    sent, sender = SentModel.of(path_model(tiny_model)), Sender([tiny_model])
    other = tmp_path / tiny_model.name
    data = bytearray(tiny_model.read_bytes())
    data[40] ^= 1
    other.write_bytes(data)
    there = replace(sent, files=(replace(sent.files[0], path=str(other)),), source="no such model")
    (found,) = bring(there, sender, store, tmp_path / "fetched")
    assert found.name == tiny_model.name
    assert found.read_bytes() == tiny_model.read_bytes()
    assert sender.sent == [(0, number) for number in range(sent.files[0].n_pieces)]
    assert len(sender.sent) > 2


def test_a_model_of_the_store_with_that_name_is_used(tiny_model: Path, tmp_path: Path) -> None:
    store, sender = ModelStore(tmp_path / "models"), Sender([tiny_model])
    store.root.mkdir()
    (store.root / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    sent = replace(elsewhere(SentModel.of(path_model(tiny_model))), source="tiny")
    assert bring(sent, sender, store, tmp_path / "fetched") == [store.root / "tiny.gguf"]
    assert not sender.sent


def test_a_source_of_the_hub_is_pulled_and_a_pull_that_fails_is_not_the_end(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sender, asked = ModelStore(tmp_path / "models"), Sender([tiny_model]), []

    def pull(source: str) -> object:
        asked.append(source)
        if len(asked) == 1:
            return path_model(tiny_model)
        raise EdgeInferError("no network")

    monkeypatch.setattr(store, "pull", pull)
    sent = replace(elsewhere(SentModel.of(path_model(tiny_model))), source="hf:somebody/tiny")
    assert bring(sent, sender, store, tmp_path / "fetched") == [tiny_model]
    (found,) = bring(sent, sender, store, tmp_path / "fetched")
    assert asked == ["hf:somebody/tiny"] * 2
    assert found.parent.parent == tmp_path / "fetched"


def test_a_node_fetches_once_however_many_want_it(tiny_model: Path, store: ModelStore, tmp_path: Path) -> None:
    sent, sender = elsewhere(SentModel.of(path_model(tiny_model))), Sender([tiny_model])
    found: list[list[Path]] = []
    threads = [
        threading.Thread(target=lambda: found.append(bring(sent, sender, store, tmp_path / "fetched")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({str(paths[0]) for paths in found}) == 1
    assert len(sender.sent) == sent.files[0].n_pieces


def test_nothing_half_fetched_or_damaged_is_left(tiny_model: Path, store: ModelStore, tmp_path: Path) -> None:
    sent = elsewhere(SentModel.of(path_model(tiny_model)))
    with pytest.raises(EdgeInferError, match=r"piece 1 of .*gguf was damaged on its way"):
        bring(sent, Sender([tiny_model], damages=1), store, tmp_path / "fetched")
    assert [path for path in (tmp_path / "fetched").rglob("*") if path.is_file()] == []


def test_a_disk_without_room_is_told_before_anything_is_sent(
    tiny_model: Path, store: ModelStore, tmp_path: Path
) -> None:
    sent, sender = elsewhere(SentModel.of(path_model(tiny_model))), Sender([tiny_model])
    large = replace(sent, files=(replace(sent.files[0], nbytes=1 << 60),))
    with pytest.raises(EdgeInferError, match=r"GB left, and tiny\.gguf has 1152921504\.6 GB; make room"):
        bring(large, sender, store, tmp_path / "fetched")
    assert not sender.sent


def test_files_beside_the_model_lie_together_under_their_own_names(
    tiny_model: Path, store: ModelStore, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"GGUF and more")
    sent = elsewhere(SentModel.of(path_model(tiny_model), [adapter]))
    model, other = bring(sent, Sender([tiny_model, adapter]), store, tmp_path / "fetched")
    assert (model.parent, other.name, other.read_bytes()) == (other.parent, "adapter.gguf", adapter.read_bytes())


def test_samples_see_a_change_at_either_end_and_another_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytearray(bytes(range(256)) * 40_000)
    path.write_bytes(data)
    file = SentFile.of(path)
    assert file.is_at(path)
    for place in (0, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert not file.is_at(path)
    path.write_bytes(data[:-1])
    assert not file.is_at(path)
    assert not file.is_at(tmp_path / "none")
