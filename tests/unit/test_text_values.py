"""Values as text: ~ in paths that people write, and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.text_values import share_text, size_in_bytes, user_path


def test_a_tilde_is_the_home_folder() -> None:
    assert user_path("~/models/a.gguf") == Path.home() / "models" / "a.gguf"
    assert user_path(Path("~")) == Path.home()


@pytest.mark.parametrize("text", ["~no-such-user/a.gguf", "~a\0", "~\0/b", "a\0b", ""])
def test_what_names_no_home_folder_stays_as_written(text: str) -> None:
    assert user_path(text) == Path(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GB", 6_000_000_000),
        ("512MiB", 512 << 20),
        ("60%", 600),
        ("1000", 1000),
        ("1.5k", 1500),
        ("2g", 2_000_000_000),
    ],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size_in_bytes(text, 1000) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 parsecs", "0", "nan%%"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="such as"):
        size_in_bytes(text, 1000)


def test_a_share_says_of_what_and_how_much_it_is() -> None:
    assert share_text(" 60%", 9_850_000_000) == "60% of available memory = 9.85 GB"
    assert share_text("3GB", 3_000_000_000) is None
