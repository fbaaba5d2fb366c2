"""Sizes as people write them."""

from __future__ import annotations

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.size_text import share_text, size_in_bytes


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
