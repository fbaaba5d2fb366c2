"""Files that bundles are read from: what happens when one is closed that the system has lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeinfer.offload.bundle_file import open_source


def test_a_file_whose_mount_is_gone_closes_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    source = open_source(path, True)
    os.close(source.descriptor)  # closing it again fails, as closing does on a network mount that is gone
    source.close()
    source.close()


def test_a_closed_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    source = open_source(path, False)
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        source.read_into(memoryview(bytearray(4096)), 0)
