"""Pulling from a web server that behaves, and from ones that do not."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from edgeinfer.errors import BadGGUF, DoesNotFit, DownloadFailed
from edgeinfer.models.download.part import part_path
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import ModelStore
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model

ROOT = Path(__file__).resolve().parents[3]
LOOK_BYTES = 1 << 18  # what a look at a header may fetch beyond it: one buffer


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A model file of half a mebibyte."""
    return write_model(tmp_path / "source.gguf")


def left_behind(store: ModelStore) -> list[str]:
    """Names of all files in the store's folder."""
    return sorted(path.name for path in store.root.iterdir())


def refuse(header: Header, nbytes: int) -> None:
    """An `approve` that says no."""
    raise DoesNotFit(f"{nbytes} bytes are too many")


def test_a_download_arrives_whole_and_is_listed(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/m/tiny-Q4_0.gguf"] = Served(data)
    reports: list[tuple[int, int | None]] = []
    model = store.pull(
        server.url("/m/tiny-Q4_0.gguf"), progress=lambda done, total, rate: reports.append((done, total))
    )
    assert model.path.read_bytes() == data
    assert model.sha256 == hashlib.sha256(data).hexdigest()
    assert (model.name, model.nbytes) == ("tiny-Q4_0", len(data))
    assert reports[-1] == (len(data), len(data))
    assert reports == sorted(reports)
    assert store.models() == [model]
    assert left_behind(store) == ["tiny-Q4_0.gguf", "tiny-Q4_0.json"]


def test_a_second_pull_asks_nobody(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data)
    first = store.pull(server.url("/tiny.gguf"))
    asked = len(server.log)
    assert store.pull(server.url("/tiny.gguf")) == first
    assert len(server.log) == asked
    first.path.write_bytes(b"cut")
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == data


@pytest.mark.parametrize("tokens", [0, 100_000])
def test_the_header_is_approved_before_the_body(
    server: FileServer, store: ModelStore, tmp_path: Path, tokens: int
) -> None:
    data = write_model(tmp_path / "large.gguf", kib=6144, tokens=tokens)
    header_bytes = len(data) - 6144 * 1024
    server.files["/large.gguf"] = Served(data)
    seen: list[tuple[int, int, int]] = []

    def approve(header: Header, nbytes: int) -> None:
        seen.append((len(header.tensors), nbytes, server.body_bytes()))

    store.pull(server.url("/large.gguf"), approve=approve)
    assert [(count, nbytes) for count, nbytes, _ in seen] == [(1, len(data))]
    assert seen[0][2] <= 2 * max(header_bytes, 1 << 20) + LOOK_BYTES + 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_refused_model_is_not_fetched(server: FileServer, store: ModelStore, tmp_path: Path, ranges: bool) -> None:
    data = write_model(tmp_path / "large.gguf", kib=16384)
    server.files["/large.gguf"] = Served(data, ranges=ranges)
    with pytest.raises(DoesNotFit, match=str(len(data))):
        store.pull(server.url("/large.gguf"), approve=refuse)
    assert left_behind(store) == []
    if ranges:
        assert server.body_bytes() < len(data) // 8
    assert store.pull(server.url("/large.gguf"), approve=refuse, force=True).nbytes == len(data)


@pytest.mark.parametrize("announce_length", [True, False])
def test_a_server_without_ranges(server: FileServer, store: ModelStore, data: bytes, announce_length: bool) -> None:
    server.files["/tiny.gguf"] = Served(data, ranges=False, announce_length=announce_length)
    sizes: list[int] = []
    model = store.pull(server.url("/tiny.gguf"), approve=lambda header, nbytes: sizes.append(nbytes))
    assert model.path.read_bytes() == data
    assert sizes == [len(data)]


@pytest.mark.parametrize("ranges", [True, False])
def test_cut_connections_are_taken_up_again(server: FileServer, store: ModelStore, data: bytes, ranges: bool) -> None:
    served = Served(data, ranges=ranges, cut_after=100_000, cuts=2)
    server.files["/tiny.gguf"] = served
    model = store.pull(server.url("/tiny.gguf"))
    assert model.path.read_bytes() == data
    if ranges:
        resumed = [request for request in server.log if request.if_range == '"v1"']
        assert [request.range for request in resumed] == ["bytes=100000-", "bytes=200000-"]


def test_a_server_that_keeps_cutting_is_given_up_and_the_part_kept(
    server: FileServer, store: ModelStore, data: bytes
) -> None:
    served = Served(data, cut_after=300_000, cuts=1)
    server.files["/tiny.gguf"] = served
    original = served.data

    def fail_after_first(done: int, total: int | None, rate: float) -> None:
        if done >= 300_000:
            served.statuses = [503] * 50

    with pytest.raises(DownloadFailed, match="are saved"):
        store.pull(server.url("/tiny.gguf"), progress=fail_after_first)
    part = part_path(store.root, "tiny.gguf", server.url("/tiny.gguf"))
    assert part.read_bytes() == original[: part.stat().st_size]
    assert part.stat().st_size >= 250_000
    assert store.models() == []

    served.statuses = []
    kept, before = part.stat().st_size, len(server.log)
    model = store.pull(server.url("/tiny.gguf"))
    assert model.path.read_bytes() == original
    assert f"bytes={kept}-" in [request.range for request in server.log[before:]]
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_a_changed_file_is_started_afresh(server: FileServer, store: ModelStore, tmp_path: Path) -> None:
    old, new = (write_model(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    served = Served(old, cut_after=200_000)
    served.cuts = 1
    server.files["/tiny.gguf"] = served

    def stop(done: int, total: int | None, rate: float) -> None:
        if done:
            served.statuses = [503] * 3

    with pytest.raises(DownloadFailed):
        store.pull(server.url("/tiny.gguf"), progress=stop)
    served.statuses, served.data, served.etag = [], new, '"v2"'
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == new


def test_a_file_that_changes_during_the_download_is_refused(
    server: FileServer, store: ModelStore, tmp_path: Path
) -> None:
    old, new = (write_model(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    served = Served(old, cut_after=200_000, cuts=1)
    server.files["/tiny.gguf"] = served

    def change(done: int, total: int | None, rate: float) -> None:
        if done:
            served.data, served.etag = new, '"v2"'

    with pytest.raises(DownloadFailed, match="changed on the server"):
        store.pull(server.url("/tiny.gguf"), progress=change)
    assert left_behind(store) == []


def test_without_validators_nothing_is_resumed(server: FileServer, store: ModelStore, data: bytes) -> None:
    served = Served(data, etag=None, cut_after=200_000, cuts=1)
    server.files["/tiny.gguf"] = served

    def stop(done: int, total: int | None, rate: float) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(server.url("/tiny.gguf"), progress=stop)
    before = len(server.log)
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == data
    assert all(not (request.range or "").endswith("-") for request in server.log[before:])


def test_an_interrupt_keeps_the_part_and_says_so(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data)

    def stop(done: int, total: int | None, rate: float) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        store.pull(server.url("/tiny.gguf"), progress=stop)
    assert any("are saved" in note for note in stopped.value.__notes__)
    assert any(name.endswith(".part") for name in left_behind(store))
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == data


def test_a_wrong_checksum_leaves_nothing(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data)
    with pytest.raises(DownloadFailed, match="wrong checksum"):
        store.pull(server.url("/tiny.gguf") + "#sha256=" + "0" * 64)
    assert left_behind(store) == []
    digest = hashlib.sha256(data).hexdigest()
    assert store.pull(f"{server.url('/tiny.gguf')}#sha256={digest}").sha256 == digest


def test_a_body_that_stalls_is_given_up(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data, stall=threading.Event(), ranges=False)
    with pytest.raises(DownloadFailed, match="stopped sending"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


@pytest.mark.parametrize(
    ("status", "message"), [(404, "no such file"), (403, "access is refused"), (401, "credentials")]
)
def test_a_refusal_says_why(server: FileServer, store: ModelStore, data: bytes, status: int, message: str) -> None:
    server.files["/tiny.gguf"] = Served(data, statuses=[status] * 9)
    with pytest.raises(DownloadFailed, match=message):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


def test_a_busy_server_is_asked_again(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data, statuses=[503, 429])
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == data


def test_redirects_are_followed_without_credentials(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/old/tiny.gguf"] = Served(b"", redirect=server.url("/new/other.gguf"))
    server.files["/new/other.gguf"] = Served(data)
    address = server.url("/old/tiny.gguf").replace("http://", "http://me:secret@")
    model = store.pull(address)
    assert (model.name, model.path.read_bytes()) == ("tiny", data)
    by_path = {request.path: request.authorization for request in server.log}
    assert by_path["/old/tiny.gguf"] == "Basic bWU6c2VjcmV0"
    assert by_path["/new/other.gguf"] is None
    assert "secret" not in model.source
    assert "secret" not in (store.root / "tiny.json").read_text(encoding="utf-8")


def test_a_redirect_loop_ends(server: FileServer, store: ModelStore) -> None:
    server.files["/tiny.gguf"] = Served(b"", redirect=server.url("/tiny.gguf"))
    with pytest.raises(DownloadFailed):
        store.pull(server.url("/tiny.gguf"))


def test_no_network_leaves_nothing(server: FileServer, store: ModelStore) -> None:
    address = server.url("/tiny.gguf")
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        store.pull(address)
    assert left_behind(store) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_what_is_no_model_is_refused(server: FileServer, store: ModelStore, data: bytes, ranges: bool) -> None:
    server.files["/page.gguf"] = Served(b"<!doctype html>" + b" " * 400_000, ranges=ranges)
    server.files["/cut.gguf"] = Served(data[: len(data) // 2], ranges=ranges)
    server.files["/empty.gguf"] = Served(b"", ranges=ranges)
    for name in ("page", "cut", "empty"):
        with pytest.raises(BadGGUF):
            store.pull(server.url(f"/{name}.gguf"))
    assert left_behind(store) == []


def test_every_shard_is_fetched(server: FileServer, store: ModelStore, tmp_path: Path) -> None:
    shards = [f"big-0000{index}-of-00003.gguf" for index in (1, 2, 3)]
    contents = [write_model(tmp_path / shard, seed=index) for index, shard in enumerate(shards)]
    for shard, content in zip(shards, contents, strict=True):
        server.files[f"/m/{shard}"] = Served(content)
    approved: list[int] = []
    reports: list[int] = []
    model = store.pull(
        server.url(f"/m/{shards[1]}"),
        approve=lambda header, nbytes: approved.append(nbytes),
        progress=lambda done, total, rate: reports.append(done),
    )
    assert [path.read_bytes() for path in model.paths] == contents
    assert model.name == "big"
    assert approved == [sum(map(len, contents))] == [model.nbytes]
    assert reports == sorted(reports)
    assert store.remove("big") == model
    assert left_behind(store) == []


def test_a_missing_shard_leaves_nothing(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/big-00001-of-00002.gguf"] = Served(data)
    with pytest.raises(DownloadFailed, match="00002-of-00002"):
        store.pull(server.url("/big-00001-of-00002.gguf"))
    assert left_behind(store) == []


def test_another_model_of_the_same_name_is_not_overwritten(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/a/tiny.gguf"] = Served(data)
    server.files["/b/tiny.gguf"] = Served(data)
    model = store.pull(server.url("/a/tiny.gguf"))
    with pytest.raises(DownloadFailed, match="edgeinfer rm tiny"):
        store.pull(server.url("/b/tiny.gguf"))
    assert store.models() == [model]


def test_the_environments_proxy_is_used(
    server: FileServer, store: ModelStore, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["http://models.invalid/tiny.gguf"] = Served(data)
    monkeypatch.setenv("http_proxy", server.url(""))
    assert store.pull("http://models.invalid/tiny.gguf").path.read_bytes() == data
