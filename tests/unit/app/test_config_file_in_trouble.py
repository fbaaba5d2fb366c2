"""One setting written into the user's file, or taken out, and nothing else touched."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.config_file import write_setting
from edgeinfer.errors import BadSetting
from edgeinfer.settings import load_settings

MINE = "# mine\ntemp = 0.5  # warm\n\n# colours\ntheme = 'nord'\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with comments."""
    file = tmp_path / "config.toml"
    file.write_text(MINE)
    return file


def test_comments_stay(path: Path) -> None:
    assert write_setting("temp", "0.9", path) == 0.9
    assert write_setting("theme", None, path) is None
    assert write_setting("top-k", "3", path) == 3
    text = path.read_text()
    assert "# mine\ntemp = 0.9  # warm\n" in text
    assert tomllib.loads(text) == {"temp": 0.9, "top_k": 3}


def test_an_unset_value_is_taken_out(path: Path) -> None:
    write_setting("ctx", "4096", path)
    assert write_setting("ctx", "auto", path) is None
    assert tomllib.loads(path.read_text()) == {"temp": 0.5, "theme": "nord"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("verify_cost", "4:1.05,8:1.15", {4: 1.05, 8: 1.15}),
        ("keys", "copy=ctrl+y new=f4", ("copy=ctrl+y", "new=f4")),
        ("device", "cpu,cuda", "cpu,cuda"),
        ("cores", "0,2-3", (0, 2, 3)),
    ],
)
def test_every_kind_of_value_is_read_back(tmp_path: Path, name: str, text: str, value: object) -> None:
    file = tmp_path / "new folder" / "config.toml"
    write_setting(name, text, file)
    settings = load_settings(environ={}, cwd=tmp_path, config_path=file)
    assert settings.value(name) == value


@pytest.mark.parametrize(("name", "value"), [("tmep", "1"), ("temp", "hot"), ("theme", "nrod")])
def test_a_wrong_value_leaves_the_file(path: Path, name: str, value: str) -> None:
    with pytest.raises(BadSetting):
        write_setting(name, value, path)
    assert path.read_text() == MINE


def test_a_broken_file_is_left_alone(path: Path) -> None:
    path.write_text("temp = [")
    with pytest.raises(BadSetting, match="mend it by hand"):
        write_setting("temp", "1", path)
    assert path.read_text() == "temp = ["


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "linked.toml"
    link.symlink_to(path)
    write_setting("temp", "1", link)
    assert link.is_symlink()
    assert tomllib.loads(path.read_text())["temp"] == 1


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        write_setting("temp", "1", tmp_path)


def test_a_file_where_a_folder_should_be(path: Path) -> None:
    with pytest.raises(BadSetting, match=r"cannot be (read|written)"):
        write_setting("temp", "1", path / "config.toml")


def test_a_read_only_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(stat.S_IRUSR)
    monkeypatch.setattr(os, "access", lambda file, mode: mode != os.W_OK)
    with pytest.raises(BadSetting, match="read-only"):
        write_setting("temp", "1", path)
    assert path.read_text() == MINE


def test_a_full_disk_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadSetting, match="No space left on device"):
        write_setting("temp", "1", path)
    assert path.read_text() == MINE
    assert [file.name for file in path.parent.iterdir()] == ["config.toml"]
