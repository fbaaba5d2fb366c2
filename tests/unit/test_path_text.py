"""~ in paths that people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.path_text import user_path


def test_a_tilde_is_the_home_folder() -> None:
    assert user_path("~/models/a.gguf") == Path.home() / "models" / "a.gguf"
    assert user_path(Path("~")) == Path.home()


@pytest.mark.parametrize("text", ["~no-such-user/a.gguf", "~a\0", "~\0/b", "a\0b", ""])
def test_what_names_no_home_folder_stays_as_written(text: str) -> None:
    assert user_path(text) == Path(text)
