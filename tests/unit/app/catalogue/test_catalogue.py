"""The catalogue: what it lists, what it asks the network for, and what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.pulling import PullStatus
from edgeinfer.app.catalogue.words import detail_lines, fit_word, pull_line, rate_word, size_word, state_word
from edgeinfer.app.plans.measured import SpeedLog
from edgeinfer.errors import DownloadFailed, ModelNotFound
from edgeinfer.models.delivery import ListedModel
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE, ModelStore
from edgeinfer.scheduling.machine.topology import usable_cores
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model


@pytest.fixture
def catalogue(store: ModelStore) -> Catalogue:
    return Catalogue(store)


def test_an_empty_store_offers_the_starter_model(catalogue: Catalogue) -> None:
    assert catalogue.entries() == (ModelEntry(STARTER_NAME, STARTER_SOURCE, None, None),)
    assert catalogue.forecast(catalogue.entries()[0]) is None


def test_models_here_are_listed_with_their_format(catalogue: Catalogue, store: ModelStore, tiny_model: Path) -> None:
    store.pull(str(tiny_model))
    store.remember("tiny")
    here, starter = catalogue.entries()
    assert (here.name, here.architecture, here.quant, here.is_last_used) == ("tiny", "llama", "F32", True)
    assert starter.name == STARTER_NAME
    assert catalogue.is_referenced(here)
    found = catalogue.forecast(here, 256)
    assert found is not None
    assert (found.fits, found.n_context, found.n_context_trained) == (True, 256, 512)


def test_speeds_that_were_measured_are_shown_as_such(catalogue: Catalogue, store: ModelStore, tiny_model: Path) -> None:
    store.pull(str(tiny_model))
    with GGUFFile.open(tiny_model) as file:
        SpeedLog().record(fingerprint(file), "cpu", len(usable_cores()), measured=MeasuredSpeeds(decode_tok_s=123.0))
    found = catalogue.forecast(catalogue.entries()[0], 256)
    assert found is not None
    assert found.measured.decode_tok_s == 123.0
    assert rate_word(found) == "123"


def test_an_address_is_looked_at_without_its_body(
    catalogue: Catalogue, server: FileServer, store: ModelStore, tmp_path: Path
) -> None:
    data = write_model(tmp_path / "source.gguf", kib=8192)
    server.files["/big-Q8_0.gguf"] = Served(data)
    (offer,) = catalogue.offers(server.url("/big-Q8_0.gguf"))
    assert (offer.name, offer.quant, offer.nbytes, offer.path) == ("big-Q8_0", "Q8_0", len(data), None)
    assert server.body_bytes() < len(data) // 4
    asked = len(server.log)
    assert catalogue.look(offer).nbytes == len(data)
    assert catalogue.forecast(offer, 2048) is not None
    assert len(server.log) == asked
    assert not store.root.exists() or list(store.root.iterdir()) == []


def test_a_server_that_gives_no_parts_is_not_asked_for_the_body(
    catalogue: Catalogue, server: FileServer, tmp_path: Path
) -> None:
    data = write_model(tmp_path / "source.gguf", kib=8192)
    server.files["/big.gguf"] = Served(data, ranges=False)
    with pytest.raises(DownloadFailed, match="before it is here"):
        catalogue.offers(server.url("/big.gguf"))
    assert len(server.log) == 1


def test_what_is_no_source_is_told_the_forms(catalogue: Catalogue) -> None:
    with pytest.raises(ModelNotFound, match="hf:USER/REPO"):
        catalogue.offers("nonsense")


def test_quants_are_reckoned_from_the_one_that_was_looked_at(
    store: ModelStore, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = {quant: tmp_path / f"tiny-{quant}.gguf" for quant in ("Q4_K_M", "Q8_0")}
    for path in copies.values():
        shutil.copy(tiny_model, path)
    offers = tuple(ListedModel(f"hf:u/r:{quant}", f"tiny-{quant}", quant, 1_000_000, 1) for quant in copies)
    looked = []

    def look(source: str) -> object:
        looked.append(source)
        return ModelStore.look(store, str(copies[source.rpartition(":")[2]]))

    catalogue = Catalogue(store)
    monkeypatch.setattr(store, "listed", lambda source: offers)
    monkeypatch.setattr(store, "look", look)
    exact, reckoned = catalogue.offers("hf:u/r")
    assert looked == ["hf:u/r:Q4_K_M"]
    first, second = (catalogue.forecast(entry, 256) for entry in (exact, reckoned))
    assert first is not None
    assert second is not None
    assert (first.is_estimate, second.is_estimate) == (False, True)
    catalogue.look(reckoned)
    third = catalogue.forecast(reckoned, 256)
    assert third is not None
    assert not third.is_estimate


def test_memory_of_the_model_in_use_counts_as_free(store: ModelStore, tiny_model: Path) -> None:
    store.pull(str(tiny_model))
    entry = Catalogue(store).entries()[0]
    plain, after = (Catalogue(store, held_bytes=lambda held=held: held).forecast(entry, 256) for held in (0, 1 << 50))
    assert plain is not None
    assert after is not None
    assert after.available_bytes - plain.available_bytes > 1 << 49


def test_deleting_leaves_the_files_of_others(catalogue: Catalogue, store: ModelStore, tiny_model: Path) -> None:
    store.pull(str(tiny_model))
    assert str(tiny_model) in catalogue.remove(catalogue.entries()[0]).text
    assert tiny_model.exists()
    owned = store.root / "own.gguf"
    shutil.copy(tiny_model, owned)
    nbytes = owned.stat().st_size
    assert catalogue.remove(catalogue.entries()[0]).freed_bytes == nbytes
    assert not owned.exists()


def test_words() -> None:
    offer, here = ModelEntry("a", "hf:a/b", None, None), ModelEntry("a", "file", "Q4_0", 1500, path=Path("/a"))
    assert (size_word(offer), size_word(here)) == ("?", "1.5 kB")
    assert state_word(offer, None, None) == "offer"
    assert state_word(offer, PullStatus("hf:a/b", "running", 43, 100), None) == "43 %"
    assert [state_word(here, None, current) for current in (None, "a")] == ["here", "in use"]
    fits = Forecast(4096, True, 1, 2)
    assert [fit_word(each) for each in (None, fits, Forecast(4096, False, 3, 2))] == ["?", "yes", "no"]
    assert rate_word(Forecast(1, True, 1, 2, decode_tok_s=7.25)) == "~7.2"
    assert rate_word(Forecast(1, True, 1, 2, decode_tok_s=7.25, measured=MeasuredSpeeds(decode_tok_s=90.0))) == "90"
    line = pull_line(PullStatus("hf:a/b", "running", 2_000_000, 10_000_000, 1e6))
    assert line == "hf:a/b ██░░░░░░░░░░ 2.0 MB of 10.0 MB, 1.0 MB/s, about 8 s left"
    line = pull_line(PullStatus("hf:somebody/a-model-GGUF", "running", 2_000_000, 10_000_000, 1e6), 57)
    assert line == "hf:somebody…: 2.0 MB of 10.0 MB, 1.0 MB/s, about 8 s left"
    assert pull_line(PullStatus("hf:a/b", "running")) == "hf:a/b, asking"
    assert pull_line(PullStatus("hf:a/b", "paused", 5_000_000, 10_000_000)) == (
        "hf:a/b ██████░░░░░░ paused, 5.0 MB of 10.0 MB"
    )


def test_headers_cannot_steer_the_terminal() -> None:
    found = Forecast(1, True, 1, 2, title="a\x1b[2Jb\nc", licence="\x9b31m")
    text = "\n".join(detail_lines(ModelEntry("n\x1b]0;x\x07", "s\r", None, 1), found))
    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)
    assert "\x9b" not in text
