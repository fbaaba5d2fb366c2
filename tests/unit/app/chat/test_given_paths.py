"""Paths as terminals paste them: in quotes, escaped, as addresses, several at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.chat.given_paths import given_media, given_paths
from tests.pictures import picture_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "my photo.jpg", "it's.png"):
        picture_file(tmp_path / name)
    (tmp_path / "notes.txt").write_text("words")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.png", ["a.png"]),
        ("my photo.jpg\n", ["my photo.jpg"]),
        ("{folder}/my photo.jpg", ["my photo.jpg"]),
        ("'{folder}/my photo.jpg'", ["my photo.jpg"]),
        ('"my photo.jpg"', ["my photo.jpg"]),
        ("{folder}/my\\ photo.jpg ", ["my photo.jpg"]),
        ("'it'\\''s.png'", ["it's.png"]),
        ("file://{folder}/my%20photo.jpg", ["my photo.jpg"]),
        ("file://localhost{folder}/a.png\nfile://{folder}/my%20photo.jpg\n", ["a.png", "my photo.jpg"]),
        ("a.png my\\ photo.jpg a.png", ["a.png", "my photo.jpg"]),
        ("'a.png' 'my photo.jpg'", ["a.png", "my photo.jpg"]),
    ],
)
def test_images_are_found(folder: Path, text: str, names: list[str]) -> None:
    assert given_media(text.replace("{folder}", str(folder)), folder) == [folder / name for name in names]


@pytest.mark.parametrize(
    "text", ["", "what is a.png", "gone.png", "a.png gone.png", "notes.txt", "'a.png", "file://elsewhere/a.png", "\0"]
)
def test_anything_else_is_text(folder: Path, text: str) -> None:
    assert given_media(text, folder) == []


def test_other_files_are_paths_and_no_images(folder: Path) -> None:
    assert given_paths("notes.txt a.png", folder) == [folder / "notes.txt", folder / "a.png"]
    assert given_media("notes.txt a.png", folder) == []
