"""Files of prefixes: what is found is what was written; damaged, foreign and half-written files are deleted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.prefixes.folders import CHECKPOINT, PAGES, clear_prefixes, n_bytes_kept
from edgeinfer.engine.prefixes.keys import key_of, n_before_modules, page_keys, page_names, root_key, words, words_of
from edgeinfer.engine.prefixes.parts_file import PartsReader, checksum
from edgeinfer.engine.prefixes.store import PrefixStore
from edgeinfer.engine.requests.module_prompts import Module
from edgeinfer.engine.requests.prompt_rows import PromptRows
from edgeinfer.temporary import remove_leftovers
from tests.unit.engine.prefixes.stored import PAGE_BYTES, Usage, checkpoint, contents, keys_of, pages_of

pytestmark = pytest.mark.usefixtures("roomy_disk")


def test_a_key_names_all_that_comes_before_it() -> None:
    tokens = list(range(64 * 3 + 5))
    root = root_key({"model": "m", "kv": "f16"}, (1.0,))
    keys, before = page_keys(root, tokens), root
    assert (
        root
        == hashlib.blake2b(
            json.dumps(["edgeinfer prefix 3", {"kv": "f16", "model": "m"}, [1.0]]).encode(), digest_size=20
        ).digest()
    )
    for number, key in enumerate(keys):
        page = b"".join(token.to_bytes(8, "little") for token in tokens[64 * number : 64 * (number + 1)])
        before = hashlib.blake2b(before + page, digest_size=20).digest()
        assert key == before.hex()
    assert len(keys) == 3
    changed = page_keys(root, [9, *tokens[1:]])
    assert not set(keys) & set(changed)
    assert page_keys(root, [*tokens[:100], 7, *tokens[101:]])[:1] == keys[:1]
    others = [{"model": "m", "kv": "q8"}, {"model": "n", "kv": "f16"}]
    assert len({root, *(root_key(other, (1.0,)) for other in others), root_key({"model": "m", "kv": "f16"}, ())}) == 4


def test_a_name_has_the_key_and_the_tokens_of_a_page() -> None:
    root, tokens = root_key({"model": "m"}, ()), [*range(100_000, 100_000 + 64 * 2 + 5)]
    names = page_names(root, tokens)
    assert [key_of(name) for name in names[:2]] == page_keys(root, tokens)
    assert [words_of(name) for name in names] == [tokens[:64], tokens[64:128], tokens[128:]]
    assert key_of(names[2]) not in page_keys(root, [*tokens, *range(64)])
    assert words_of("no tokens") == words_of("key.xyz") == words_of("key.00") == []


def test_rows_count_by_their_whole_names() -> None:
    root, number = root_key({"model": "m"}, ()), 1 << 100
    one = [*range(60), *range(-1 - (number << 32), -1 - (number << 32) - 4, -1)]
    other = [*range(60), *range(-1 - (number + 1 << 32), -1 - (number + 1 << 32) - 4, -1)]
    assert page_keys(root, one) != page_keys(root, other)
    content = b"".join(word.to_bytes(8, "little", signed=True) for word in words(one))
    content += b"".join((-1 - token).to_bytes(20, "little") for token in one[60:])
    assert page_keys(root, one) == [hashlib.blake2b(root + content, digest_size=20).hexdigest()]
    (name,) = page_names(root, one)
    assert words_of(name) == words(one)
    assert words(one)[:60] == one[:60]
    assert len({*words(one), *words(other)[60:]}) == 68
    assert all(-(1 << 63) <= word < 0 for word in words(one)[60:])


def test_what_modules_have_is_not_for_others() -> None:
    module, rows = Module("menu", (5, 6, 7)), PromptRows(np.ones((2, 4), np.float32))
    assert n_before_modules([1, *rows.names, 2, *module.names, 3]) == 4
    assert n_before_modules([1, *rows.names, 2]) == 4


def test_of_the_page_where_a_text_leaves_it_has_the_beginning(store: PrefixStore) -> None:
    root, tokens, pages = root_key({}, ()), list(range(64 * 3 + 20)), pages_of(0, 4)
    assert store.write_pages(page_names(root, tokens), pages)

    def found_of(text: list[int]) -> tuple[int, int]:
        parts = [text[start : start + 64] for start in range(0, len(text), 64)]
        with store.find(page_keys(root, text), parts) as found:
            if found.next_page is not None:
                with PartsReader([found.next_page]) as reading:
                    assert [bytes(page) for page in reading] == [pages[len(found)]]
            return len(found), found.n_next

    assert found_of(tokens) == (3, 20)
    assert found_of([*tokens, 5]) == (3, 20)
    assert found_of([*tokens, *range(64)]) == (3, 20)
    assert found_of(tokens[: 64 * 2 + 7]) == (2, 7)
    assert found_of([*tokens[: 64 * 2 + 7], *range(500)]) == (2, 7)
    assert found_of(tokens[: 64 * 2]) == (2, 0)
    assert found_of(tokens[:30]) == (0, 0)  # the first page is found by its key alone


@pytest.mark.parametrize("n_bytes", [0, 1, 4095, 4096, 4097, 3 * 4096, 70_001])
def test_any_changed_bit_and_any_moved_part_changes_the_checksum(n_bytes: int) -> None:
    draw = np.random.default_rng(n_bytes)
    data = draw.bytes(n_bytes)
    expected = checksum(memoryview(data))
    assert expected == checksum(memoryview(bytearray(data)))
    for place in draw.integers(0, n_bytes, 50) if n_bytes else []:
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            assert checksum(memoryview(changed)) != expected
    assert checksum(memoryview(data + b"\0")) != expected
    for size in (8, 4096):
        if n_bytes >= 2 * size:
            moved = data[size : 2 * size] + data[:size] + data[2 * size :]
            assert checksum(memoryview(moved)) != expected


def test_texts_share_what_they_have_in_common(store: PrefixStore, folder: Path) -> None:
    pages, others = pages_of(0, 6), pages_of(1, 3)
    assert store.write_pages(keys_of(*"abcd"), pages[:4])
    assert store.write_pages(keys_of(*"ef"), pages[4:])  # the same text went on
    assert store.write_pages(keys_of(*"xyz"), others)  # another one left it after two pages
    assert contents(store, keys_of(*"abcdef")) == pages
    assert contents(store, keys_of(*"abcdefg")) == pages
    assert contents(store, keys_of(*"abxyz")) == [*pages[:2], *others]
    assert contents(store, keys_of(*"abc")) == pages[:3]
    assert contents(store, keys_of(*"xbc")) == others[:1]
    assert contents(store, keys_of(*"nothing")) == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name * 40}{PAGES}" for name in "aex")


def test_files_are_the_users_alone(store: PrefixStore, folder: Path) -> None:
    assert store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    assert store.write_checkpoint(keys_of("b")[0], pages_of(1, 1)[0])
    if os.name == "posix":
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_fewer_pages_make_a_shorter_file(store: PrefixStore, folder: Path) -> None:
    pages = pages_of(0, 4)
    assert store.write_pages(keys_of(*"abcdef"), iter(pages))
    assert contents(store, keys_of(*"abcdef")) == pages
    assert not store.write_pages(keys_of(*"xyz"), iter(()))
    assert [path.name for path in folder.iterdir()] == [f"{'a' * 40}{PAGES}"]


def test_what_fails_while_it_is_written_leaves_nothing(store: PrefixStore, folder: Path) -> None:
    def failing() -> object:
        yield from pages_of(0, 2)
        raise OSError(28, "no space left on device")

    assert not store.write_pages(keys_of(*"abc"), failing())  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", [PAGES, CHECKPOINT])
def test_a_changed_byte_anywhere_is_noticed(store: PrefixStore, folder: Path, kind: str) -> None:
    """Every place of the header, and some of each part; what was before it is still read."""
    pages = pages_of(0, 3)
    path = folder / f"{'a' * 40}{kind}"

    def write() -> bytes:
        if kind == PAGES:
            assert store.write_pages(keys_of(*"abc"), pages)
        else:
            assert store.write_checkpoint(keys_of("a")[0], pages[0])
        return path.read_bytes()

    whole = write()
    header = len(b"EDGEINFER PARTS 1\n") + 4 + int.from_bytes(whole[18:22], "little") + 16
    starts = [whole.index(bytes(page)) for page in (pages if kind == PAGES else pages[:1])]
    for place in [*range(header), *starts, starts[-1] + PAGE_BYTES - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if kind == CHECKPOINT:
            assert checkpoint(store, keys_of("a")[0]) is None
        else:
            n_intact = 0 if place < header else next(n for n, start in enumerate(starts) if place < start + PAGE_BYTES)
            assert contents(store, keys_of(*"abc")) == pages[:n_intact]
        assert not path.exists()
    assert write() == whole
    assert (
        (contents(store, keys_of(*"abc")) == pages) if kind == PAGES else checkpoint(store, keys_of("a")[0]) == pages[0]
    )


def test_files_cut_short_and_foreign_files_are_deleted(store: PrefixStore, folder: Path) -> None:
    assert store.write_pages(keys_of(*"abc"), pages_of(0, 3))
    path = folder / f"{'a' * 40}{PAGES}"
    whole = path.read_bytes()
    for data in (
        *(whole[:size] for size in range(0, len(whole), 997)),
        b"\0" * len(whole),
        whole + b"\0",
        b"GGUF" * 99,
    ):
        path.write_bytes(data)
        assert contents(store, keys_of(*"abc")) == []
        assert not path.exists()
    path.write_bytes(whole)
    other = path.rename(folder / f"{'x' * 40}{PAGES}")  # it holds another text than its name says
    assert contents(store, keys_of(*"xyz")) == []
    assert not other.exists()
    wrong = PrefixStore(folder, 10**8, PAGE_BYTES + 1)
    path.write_bytes(whole)
    assert contents(wrong, keys_of(*"abc")) == []
    assert not path.exists()


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    root = tmp_path / "prefixes"
    one, other = (PrefixStore(root / name, 100_000, PAGE_BYTES) for name in ("one", "other"))
    for store, name in ((one, "a"), (other, "b"), (one, "c")):
        assert store.write_pages([f"{name}{n}" for n in range(3)], pages_of(0, 3))
        for path in root.rglob(f"{name}0*"):
            os.utime(path, (ord(name), ord(name)))
    assert len(contents(one, ["a0"])) == 1  # it is used
    assert one.write_pages([f"d{n}" for n in range(4)], pages_of(0, 4))
    assert sorted(path.name[0] for path in root.rglob(f"*{PAGES}")) == ["a", "c", "d"]
    assert n_bytes_kept(root) <= 100_000
    assert not one.write_checkpoint("e0", memoryview(bytes(60_000)))  # more than one text may take
    assert one.write_pages([f"f{n}" for n in range(40)], pages_of(0, 40))
    assert len(contents(one, [f"f{n}" for n in range(40)])) == 6  # half of the space
    kept = n_bytes_kept(root)
    assert clear_prefixes(root) == kept > 0
    assert not root.exists()


def test_a_full_disk_is_left_alone(store: PrefixStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for total, free in ((1_000_000, 50_000), (10**12, 5 * 10**9)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, sizes=(total, total - free, free): Usage(*sizes))
        assert not store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000_000, 900_000, 100_000))
    assert store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    assert contents(store, keys_of(*"ab")) == pages_of(0, 2)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = PrefixStore(tmp_path / "file" / "model", 10**8, PAGE_BYTES)
    assert not store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    assert not store.write_checkpoint(keys_of("a")[0], pages_of(0, 1)[0])
    assert contents(store, keys_of(*"ab")) == []
    assert checkpoint(store, keys_of("a")[0]) is None


WRITER = """
import shutil, sys, time
from pathlib import Path
from types import SimpleNamespace
shutil.disk_usage = lambda _: SimpleNamespace(total=10**12, free=9 * 10**11)
from edgeinfer.engine.prefixes.store import PrefixStore

def pages():
    for number in range(8):
        if number == 3:
            print("half", flush=True)
            time.sleep(600)
        yield memoryview(bytes([number]) * 5000)

PrefixStore(Path(sys.argv[1]), 10**8, 5000).write_pages([str(number) * 40 for number in range(8)], pages())
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_a_process_killed_while_it_writes_leaves_nothing_to_read(store: PrefixStore, folder: Path) -> None:
    keys = keys_of(*"01234567")
    with subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        (left,) = folder.iterdir()
        process.kill()
    assert contents(store, keys) == []
    assert [path for path in folder.iterdir() if path.suffix == PAGES] == []
    assert left.exists()
    assert store.write_pages(keys, pages_of(0, 8))
    assert contents(store, keys) == pages_of(0, 8)
    assert not left.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_disk_that_fills_up_while_it_is_written_to(tmp_path: Path) -> None:
    """However much room it claims to have: `roomy_disk` says so here."""
    root = tmp_path / "prefixes"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", root], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        store = PrefixStore(root / "model", 10**8, PAGE_BYTES)
        assert store.write_pages(keys_of(*"ab"), pages_of(0, 2))
        many = [f"{number:040}" for number in range(100)]
        assert not store.write_pages(many, pages_of(1, 100))
        assert not store.write_checkpoint("c" * 40, memoryview(bytes(300_000)))
        assert [path.name for path in (root / "model").iterdir()] == [f"{'a' * 40}{PAGES}"]
        assert contents(store, keys_of(*"ab")) == pages_of(0, 2)
        assert store.write_pages(keys_of(*"cd"), pages_of(2, 2))  # what did not fit takes no room
    finally:
        subprocess.run(["umount", root], check=True)


def test_files_that_may_not_be_read_or_written_are_not_there(store: PrefixStore, folder: Path) -> None:
    assert store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    (folder / f"{'c' * 40}{PAGES}").mkdir()  # something else has the name
    assert contents(store, keys_of(*"cd")) == []
    assert not store.write_pages(keys_of(*"cd"), pages_of(1, 2))
    if os.name != "posix" or os.geteuid() == 0:
        return  # permissions hold nobody up
    path = folder / f"{'a' * 40}{PAGES}"
    path.chmod(0o000)
    folder.chmod(0o500)
    try:
        assert contents(store, keys_of(*"ab")) == []
        assert not store.write_pages(keys_of(*"ef"), pages_of(0, 2))
    finally:
        folder.chmod(0o700)
    assert path.exists()
    path.chmod(0o600)
    assert contents(store, keys_of(*"ab")) == pages_of(0, 2)


def test_what_a_killed_process_left_is_swept(store: PrefixStore, folder: Path) -> None:
    assert store.write_pages(keys_of(*"ab"), pages_of(0, 2))
    own = next(iter(folder.iterdir()))
    import edgeinfer.temporary as temporary

    left = folder / f".{own.name}.tmp-{temporary._host()}-999999999-1-abcd"
    left.write_bytes(b"half")
    assert store.write_pages(keys_of(*"cd"), pages_of(0, 2))
    assert not left.exists()
    assert remove_leftovers(folder) == 0


def test_two_write_and_read_the_same_files(store: PrefixStore, folder: Path) -> None:
    """Whoever comes first, each finds whole files or none."""
    pages, keys, seen = pages_of(0, 8), [f"{n}" * 40 for n in range(8)], list[list[bytes]]()

    def use() -> None:
        own = PrefixStore(folder, 10**8, PAGE_BYTES)
        for _ in range(20):
            own.write_pages(keys, pages)
            seen.append(contents(own, keys))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 60
    assert all(each == pages for each in seen)
    assert [path.name for path in folder.iterdir()] == [keys[0] + PAGES]
