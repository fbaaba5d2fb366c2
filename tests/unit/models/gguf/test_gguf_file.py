"""Opening, views of the mapping, closing, split files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, EngineClosed, ModelNotFound
from edgeinfer.models.gguf import GGUFFile


def test_raw_is_a_read_only_view(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    with GGUFFile.open(stored(small_bytes)) as file:
        raw = file.raw("output.weight")
        assert (raw.dtype, raw.shape) == (np.uint8, (40,))
        assert raw.tolist() == list(range(40))
        assert not raw.flags.owndata
        assert not raw.flags.writeable
        assert np.shares_memory(raw, file.raw("output.weight"))
        assert file.nbytes == len(small_bytes)
        assert file.paths == (file.path,)
        del raw


def test_release_gives_pages_back_and_they_return(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    with GGUFFile.open(stored(small_bytes)) as file:
        raw = file.raw("output.weight")
        file.release()
        assert raw.tolist() == list(range(40))
        del raw
    file.release()


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be cut there")
def test_a_file_that_another_program_cuts_short_is_an_error(
    small_bytes: bytes, stored: Callable[[bytes], Path]
) -> None:
    """Its bytes would end the process (SIGBUS)."""
    with GGUFFile.open(stored(small_bytes)) as file:
        file.check_whole("output.weight")
        os.truncate(file.path, len(small_bytes) - 1)
        for read in (file.raw, file.check_whole):
            with pytest.raises(BadGGUF, match=f"cut short by another program: it had {len(small_bytes)} bytes"):
                read("output.weight")
        lazy = next(key for key in file.metadata if file.metadata._is_lazy(file.metadata._spans[key]))
        file.release()
        with pytest.raises(BadGGUF, match="cut short"):
            file.metadata[lazy]


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be replaced there")
def test_a_file_that_another_program_writes_to_is_an_error_and_one_that_it_replaces_is_none(
    small_bytes: bytes, stored: Callable[[bytes], Path]
) -> None:
    with GGUFFile.open(stored(small_bytes)) as file:
        status = os.stat(file.path)
        os.utime(file.path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))  # as some disks round it
        file.check_whole("output.weight")
        os.utime(file.path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**10))
        with pytest.raises(BadGGUF, match="was changed by another program while it was open"):
            file.raw("output.weight")
    with GGUFFile.open(stored(small_bytes)) as file:
        other = file.path.with_name("other")
        other.write_bytes(bytes(7))
        os.replace(other, file.path)
        assert file.raw("output.weight").tolist() == list(range(40))
        os.unlink(file.path)
        assert file.raw("output.weight").tolist() == list(range(40))


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages in /proc/self/smaps")
def test_release_empties_the_mapping(tmp_path: Path) -> None:
    path = tmp_path / "resident.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", np.ones((1024, 1024), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def resident_kib() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        start = next(index for index, line in enumerate(lines) if line.endswith(path.name))
        return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))

    with GGUFFile.open(path) as file:
        assert file.raw("w").sum() > 0
        assert resident_kib() >= 4096
        file.release()
        assert resident_kib() < 256


def test_a_closed_file_refuses(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    file = GGUFFile.open(stored(small_bytes))
    file.close()
    file.close()
    with pytest.raises(EngineClosed, match="open it again"):
        file.raw("output.weight")


def test_views_outlive_close(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    with GGUFFile.open(stored(small_bytes)) as file:
        raw = file.raw("output.weight")
    del file
    assert raw.tolist() == list(range(40))


def test_an_unknown_tensor_is_named(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    with GGUFFile.open(stored(small_bytes)) as file, pytest.raises(BadGGUF, match=r"no tensor 'blk\.9\.x'"):
        file.raw("blk.9.x")


def test_files_are_not_left_open(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    path = stored(small_bytes)
    file = GGUFFile.open(path)
    file.close()
    path.unlink()
    path.write_bytes(b"GGUF")
    for _ in range(200):
        with pytest.raises(BadGGUF):
            GGUFFile.open(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no\.gguf does not exist"):
        GGUFFile.open(tmp_path / "no.gguf")


def test_path_through_a_file(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    with pytest.raises(ModelNotFound, match="cannot be read"):
        GGUFFile.open(stored(small_bytes) / "inside.gguf")


def test_path_with_a_zero_byte() -> None:
    with pytest.raises(ModelNotFound):
        GGUFFile.open("a\0b.gguf")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match="is a directory"):
        GGUFFile.open(tmp_path)


def test_empty_file(stored: Callable[[bytes], Path]) -> None:
    with pytest.raises(BadGGUF, match="is empty"):
        GGUFFile.open(stored(b""))


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes in the file system are POSIX")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(BadGGUF, match="not a regular file"):
        GGUFFile.open(path)


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_them_all(split_files: list[Path], opened: int) -> None:
    references = [gguf.GGUFReader(path) for path in split_files]
    assert len(references) == 3
    with GGUFFile.open(split_files[opened]) as file:
        assert list(file.paths) == split_files
        assert file.path == split_files[0]
        assert file.nbytes == sum(path.stat().st_size for path in split_files)
        assert file.metadata.text("general.architecture") == "llama"
        assert list(file.tensors) == [tensor.name for reference in references for tensor in reference.tensors]
        for shard, reference in enumerate(references):
            for tensor in reference.tensors:
                assert file.tensors[tensor.name].shard == shard
                assert file.raw(tensor.name).tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(split_files: list[Path], missing: int) -> None:
    split_files[missing].unlink()
    with pytest.raises(ModelNotFound, match=rf"{split_files[missing].name} is missing; .* needs all 3 shards"):
        GGUFFile.open(split_files[(missing + 1) % 3])


def test_a_renamed_shard_says_what_it_should_be_called(split_files: list[Path]) -> None:
    renamed = split_files[1].rename(split_files[1].with_name("model.gguf"))
    with pytest.raises(BadGGUF, match=r"shard 2 of 3; name its files .*-00002-of-00003\.gguf"):
        GGUFFile.open(renamed)


def test_swapped_shards_are_found_out(split_files: list[Path]) -> None:
    first, second = split_files[0].read_bytes(), split_files[1].read_bytes()
    split_files[0].write_bytes(second)
    split_files[1].write_bytes(first)
    with pytest.raises(BadGGUF, match="says it is shard 2 of 3, but its name says 1 of 3"):
        GGUFFile.open(split_files[0])


def test_a_foreign_shard_is_found_out(split_files: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    writer = gguf.GGUFWriter(other / "split.gguf", "llama", split_max_tensors=1)
    for name in ("x", "y", "z"):
        writer.add_tensor(name, np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    split_files[1].write_bytes((other / split_files[1].name).read_bytes())
    with pytest.raises(BadGGUF, match="tensors, not"):
        GGUFFile.open(split_files[0])


def test_a_tensor_in_two_shards_is_found_out(split_files: list[Path]) -> None:
    content = split_files[2].read_bytes()
    assert b"blk.0.Q6_K" in content
    split_files[2].write_bytes(content.replace(b"blk.0.Q6_K", b"blk.0.Q4_1"))
    with pytest.raises(BadGGUF, match=r"00003\.gguf: tensor 'blk\.0\.Q4_1' is in an earlier shard too"):
        GGUFFile.open(split_files[2])


def test_a_split_name_alone_makes_no_split(small_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(small_bytes)
    with GGUFFile.open(path) as file:
        assert file.paths == (path,)
