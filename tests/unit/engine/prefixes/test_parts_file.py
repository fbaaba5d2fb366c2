"""Files of parts: what is damaged, foreign, hostile or taken away meanwhile is never trusted nor waited for."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.prefixes.folders import CHECKPOINT, PAGES
from edgeinfer.engine.prefixes.parts_file import DamagedFile, PartsFile, PartsReader, write_parts
from edgeinfer.engine.prefixes.store import MOST_FILES, PrefixStore
from tests.unit.engine.prefixes.stored import checkpoint, contents, keys_of, pages_of
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("roomy_disk")


def test_parts_of_several_files_are_read_in_order(tmp_path: Path) -> None:
    sizes = [1, 4096, 70_000, 0, 4097]
    parts = [memoryview(np.random.default_rng(n).bytes(size)) for n, size in enumerate(sizes)]
    for name in "ab":
        assert write_parts(tmp_path / name, list("vwxyz"), parts) == 5
    with PartsFile(tmp_path / "a") as one, PartsFile(tmp_path / "b") as other:
        assert one.names == list("vwxyz")
        asked = [(file, number) for number in range(5) for file in (one, other)] * 3
        for ahead_bytes in (0, 10**9):
            with PartsReader(asked, ahead_bytes) as reading:
                assert [bytes(part) for part in reading] == [bytes(parts[number]) for _, number in asked]
        with PartsReader([]) as reading:
            assert list(reading) == []
            assert reading.is_ahead
        with PartsReader(asked, 10**9) as reading:  # whoever takes them may give up early
            until(lambda: reading.is_ahead)
            next(iter(reading))
        reading.close()  # the caller may give up early
    with pytest.raises(OSError, match="nothing"):
        PartsFile(tmp_path / "nothing")
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(DamagedFile):
        PartsFile(tmp_path / "c")


def test_a_text_in_very_many_files_is_read_as_far_as_files_may_be_open(store: PrefixStore) -> None:
    keys, pages = [f"{number:040}" for number in range(MOST_FILES + 3)], pages_of(0, MOST_FILES + 3)
    for number, key in enumerate(keys):
        assert store.write_pages([key], pages[number : number + 1])
    with store.find(keys) as found:
        assert len(found.files) == len(found) == MOST_FILES
        assert found.is_scattered
    assert contents(store, keys) == pages[:MOST_FILES]
    assert store.write_pages(keys, pages)  # as one
    with store.find(keys) as found:
        assert (len(found.files), len(found), found.is_scattered) == (1, len(keys), False)
    assert contents(store, keys) == pages


def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the page cache, so files are opened for direct reads."""
    monkeypatch.setattr(PartsFile, "_read_cached", lambda *_: 0)


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_another_process_takes_away_is_read_to_its_end(
    store: PrefixStore, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    uncached(monkeypatch)
    keys, pages = [f"{number:040}" for number in range(60)], pages_of(0, 60)
    assert store.write_pages(keys[:2], pages[:2])
    with store.find(keys) as found:
        if change == "replaced":  # by a longer run of the same text, whose pages lie elsewhere
            assert store.write_pages(keys, pages)
        else:
            (folder / f"{keys[0]}{PAGES}").unlink()
        with PartsReader(found.pages) as reading:
            assert [bytes(page) for page in store.verified(iter(reading))] == pages[:2]
    assert contents(store, keys) == (pages if change == "replaced" else [])


def sealed(header: object, n_bytes: int) -> bytes:
    """A file with a header of its own, whose checksum is right: as somebody would write it who means harm."""
    text = json.dumps(header).encode()
    start = b"EDGEINFER PARTS 2\n" + len(text).to_bytes(4, "little") + text
    start += hashlib.blake2b(start, digest_size=16).digest()
    return start + bytes(n_bytes - len(start))


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": 5000},
        {"sizes": "5000"},
        {"sizes": [5000.0]},
        {"sizes": [[5000]]},
        {"sizes": None},
        {"sizes": [-(10**30)]},
        {"sizes": [5000, -8192], "names": "a b", "sums": "x y"},
        {"sizes": {"5000": 5000}},
        {"names": 7},
        {"names": ""},
        {"sums": ""},
        {"start": -4096},
        {"start": 1e400},
        {"start": "9" * 5000},
        {"start": None},
    ],
    ids=str,
)
def test_headers_that_mean_harm_are_damaged(store: PrefixStore, folder: Path, changes: dict[str, object]) -> None:
    name = keys_of("a")[0]
    for suffix in (PAGES, CHECKPOINT):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}{suffix}"
        header = {"start": 4096, "names": name, "sizes": [5000], "sums": "0" * 32, **changes}
        path.write_bytes(sealed(header, 4096 + 8192))
        assert contents(store, [name]) == []
        assert checkpoint(store, name) is None
        assert not path.exists()


@pytest.mark.parametrize("header", [[], 5, None, "text", [[[]]] * 9, {}], ids=str)
def test_headers_of_other_kinds_are_damaged(store: PrefixStore, folder: Path, header: object) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{keys_of('a')[0]}{PAGES}"
    path.write_bytes(sealed(header, 12288))
    assert contents(store, keys_of("a")) == []
    assert not path.exists()


def test_headers_without_end_are_damaged(store: PrefixStore, folder: Path) -> None:
    """Nested ones, and those of a size that nobody has memory for: such a file takes no room on the disk."""
    folder.mkdir(parents=True)
    path = folder / f"{keys_of('a')[0]}{PAGES}"
    text = b"[" * 100_000
    start = b"EDGEINFER PARTS 2\n" + len(text).to_bytes(4, "little") + text
    path.write_bytes(start + hashlib.blake2b(start, digest_size=16).digest())
    assert contents(store, keys_of("a")) == []
    assert not path.exists()
    with path.open("wb") as file:
        file.write(b"EDGEINFER PARTS 2\n" + b"\xff" * 4)
        file.truncate(1 << 33)
    tracemalloc.start()
    try:
        assert contents(store, keys_of("a")) == []
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
def test_what_is_no_ordinary_file_is_not_waited_for(store: PrefixStore, folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{keys_of('a')[0]}{PAGES}"
    os.mkfifo(path)
    assert contents(store, keys_of("a")) == []
    assert store.write_pages(keys_of("a"), pages_of(0, 1))
    assert contents(store, keys_of("a")) == pages_of(0, 1)
    path.unlink()
    victim = tmp_path / "letter"
    victim.write_text("dear friend")
    path.symlink_to(victim)
    assert contents(store, keys_of("a")) == []
    assert store.write_pages(keys_of("a"), pages_of(0, 1))
    assert victim.read_text() == "dear friend"
    assert not path.is_symlink()
