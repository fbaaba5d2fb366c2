"""One setting in the configuration file is changed, and everything else in it stays as it was written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.config_file import plain, write_setting
from edgeinfer.errors import BadSetting
from edgeinfer.settings import user_config_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "config.toml"


def test_the_file_is_made_with_the_first_setting(path: Path) -> None:
    assert write_setting("temp", "0.5", path) == 0.5
    assert tomllib.loads(path.read_text()) == {"temp": 0.5}


def test_without_a_path_it_is_the_users(home: Path) -> None:
    write_setting("temp", "0.5")
    assert user_config_path().is_relative_to(home)
    assert tomllib.loads(user_config_path().read_text()) == {"temp": 0.5}


def test_comments_and_other_settings_stay(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("# mine\ntemp = 0.1 # cool\n\nkv = 'q8'\n")
    write_setting("temp", "0.9", path)
    write_setting("seed", "7", path)
    text = path.read_text()
    assert "# mine" in text
    assert "# cool" in text
    assert "kv = 'q8'" in text
    assert tomllib.loads(text) == {"temp": 0.9, "kv": "q8", "seed": 7}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("device", "cpu,cuda", ["cpu", "cuda"]),
        ("keys", "copy=ctrl+k stop=f9", ["copy=ctrl+k", "stop=f9"]),
        ("pack", "false", False),
        ("seed", "12", 12),
        ("theme", "textual-light", "textual-light"),
    ],
)
def test_values_are_written_as_toml_has_them(path: Path, name: str, text: str, value: object) -> None:
    assert write_setting(name, text, path) == value
    assert tomllib.loads(path.read_text()) == {name: value}


def test_a_setting_is_taken_out_and_the_rest_stays(path: Path) -> None:
    write_setting("temp", "0.5", path)
    write_setting("seed", "7", path)
    assert write_setting("temp", None, path) is None
    assert tomllib.loads(path.read_text()) == {"seed": 7}
    assert write_setting("temp", None, path) is None


@pytest.mark.parametrize(("name", "text", "reason"), [("temp", "hot", "temp"), ("tmep", "1", "did you mean")])
def test_what_is_wrong_is_said_and_nothing_is_written(path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        write_setting(name, text, path)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"temp = = 1", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(BadSetting, match="mend it by hand"):
        write_setting("temp", "0.5", path)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot be"):
        write_setting("temp", "0.5", tmp_path / "file" / "config.toml")


def test_tuples_are_lists_in_toml() -> None:
    assert plain(("a", 1)) == ["a", 1]
    assert plain("a") == "a"
