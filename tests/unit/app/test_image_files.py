"""Which files are images, by their content; data URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeinfer.app.image_files import PROBE_BYTES, data_of_url, data_url, is_image, is_image_file
from edgeinfer.errors import BadImage
from edgeinfer.models.images.decoding import FORMATS
from tests.pictures import picture


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_that_can_be_decoded_is_known_by_its_content(form: str) -> None:
    data = picture(form=form)
    assert is_image(data[:PROBE_BYTES])
    assert data_of_url(data_url(data, form)) == data
    assert data_url(data, form).startswith(f"data:image/{form.lower()};base64,")


@pytest.mark.parametrize(
    "text", [b"", b"BMW builds cars in Munich", b"GIF is a format", b"\x89PNG", b"RIFF and raff", b"\0\0\0\x18ftypmp42"]
)
def test_texts_and_other_files_are_no_images(text: bytes) -> None:
    assert not is_image(text)


def test_a_file_is_an_image_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(picture())
    (tmp_path / "photo.png").write_text("not at all")
    os.mkfifo(tmp_path / "pipe.png")
    assert is_image_file(tmp_path / "notes.txt")
    for name in ("photo.png", "pipe.png", "gone.png", "", "a\0b"):
        assert not is_image_file(tmp_path / name)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://a.org/b.png", "must be a data URL"),
        ("data:image/png,abc", "must be a data URL"),
        ("data:image/png;base64", "must be a data URL"),
        ("data:image/png;base64,a$b=", "not valid base64"),
    ],
)
def test_what_is_no_data_url_says_so(url: str, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        data_of_url(url)


def test_lines_may_be_broken_in_a_data_url() -> None:
    assert data_of_url("data:image/png;base64,aGVs\n bG8=") == b"hello"
