"""What of a batch is sent to other computers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.batch_files import digest, read_entries
from edgeinfer.app.cluster.sendable import first_within, has_media, main_form, settings_for_nodes, with_media
from edgeinfer.errors import BadSetting
from edgeinfer.models.store import path_model
from edgeinfer.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def settings(**given: object) -> Settings:
    return load_settings(given)


def test_images_are_sent_and_those_that_cannot_be_read_stay_paths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"one image")
    lines = ["plain", '{"prompt": "what", "images": ["a.png", "none.png"]}', '{"text": "on"}']
    entries = read_entries(lines, None, tmp_path)
    sent = [with_media(entry) for entry in entries]
    assert sent[0] is entries[0]
    assert sent[2] is entries[2]
    (message,) = sent[1].prompt.content
    assert isinstance(message, dict)
    assert [part.get("image") for part in message["content"]] == [b"one image", str(tmp_path / "none.png"), None]
    assert [has_media(entry) for entry in entries] == [False, True, False]
    assert digest(entries[1]) != digest(sent[1])  # so answers are told by the entry as it was given


def test_a_round_has_so_many_bytes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(bytes(600))
    entries = read_entries(['{"prompt": "what", "images": ["a.png"]}'] * 3 + ["plain"], None, tmp_path)
    assert [entry.index for entry in first_within(entries, 1300)] == [0, 1]
    assert [entry.index for entry in first_within(entries, 100)] == [0]
    assert len(first_within(entries)) == 4


def test_settings_lose_what_belongs_to_this_computer(tiny_model: Path) -> None:
    found, files = settings_for_nodes(settings(history=True), path_model(tiny_model), [])
    assert (found.load.device, found.load.history, found.load.prefix_cache, files) == ("cpu", False, False, [])
    assert settings_for_nodes(settings(device="reference"), path_model(tiny_model), [])[0].load.device == "reference"


def test_files_that_settings_name_are_sent(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    given = settings(lora=["some.gguf:0.5"], chat_template_file="own.jinja")
    found, files = settings_for_nodes(given, path_model(tiny_model), [])
    assert files == [tmp_path / "some.gguf", tmp_path / "own.jinja"]
    assert found.load.lora == (f"{tmp_path / 'some.gguf'}:0.5",)
    assert found.load.chat_template_file == str(tmp_path / "own.jinja")


@pytest.mark.parametrize("given", [{"small_model": "x.gguf"}, {"isolate": True}, {"device": "cpu,openvino"}])
def test_what_one_computer_alone_can_do_is_refused(tiny_model: Path, given: dict[str, object]) -> None:
    with pytest.raises(BadSetting, match="--ray"):
        settings_for_nodes(settings(**given), path_model(tiny_model), [])


def test_a_folder_is_refused(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.models.decoder_folder.is_decoder_folder", lambda path: True)
    with pytest.raises(BadSetting, match="nodes get GGUF files"):
        settings_for_nodes(settings(), replace(path_model(tiny_model), name="folder"), [])


def test_the_form_of_most_weights(tiny_model: Path) -> None:
    assert main_form(tiny_model) == "F32"
