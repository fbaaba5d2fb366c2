"""Pulls in the background: paused, resumed, cancelled, refused, and found again by the next run of the program."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.pulling import PullQueue, PullStatus
from edgeinfer.errors import DoesNotFit
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import ModelStore
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model
from tests.waiting import until


def state(queue: PullQueue, source: str) -> str:
    status = queue.status(source)
    return "" if status is None else status.state


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return write_model(tmp_path / "source.gguf", kib=4096)


@pytest.fixture
def held(server: FileServer, data: bytes) -> Served:
    """A file of which the server sends a part only, until it is let go."""
    server.files["/tiny.gguf"] = Served(data, stall=threading.Event())
    return server.files["/tiny.gguf"]


def begin(queue: PullQueue, source: str) -> int:
    """Start a pull, wait until some of it is there; gives how much."""
    queue.add(source)
    until(lambda: (found := queue.status(source)) is not None and found.done_bytes > 0)
    found = queue.status(source)
    return 0 if found is None else found.done_bytes


def release(served: Served) -> None:
    assert served.stall is not None
    served.stall.set()


def test_a_pull_lands(server: FileServer, store: ModelStore, data: bytes) -> None:
    server.files["/tiny.gguf"], source = Served(data), server.url("/tiny.gguf")
    queue = PullQueue(store)
    queue.add(source)
    until(lambda: state(queue, source) == "done")
    assert queue.status(source) == PullStatus(source, "done", len(data), len(data), name="tiny")
    assert store.find("tiny").path.read_bytes() == data
    queue.forget(source)
    assert queue.statuses() == ()
    queue.close()


def test_a_paused_pull_keeps_its_part_and_goes_on(
    server: FileServer, store: ModelStore, data: bytes, held: Served
) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf")
    begin(queue, source)
    queue.pause(source)
    until(lambda: state(queue, source) == "paused")
    (kept,) = store.unfinished()
    assert (kept.source, kept.name, kept.nbytes) == (source, "tiny", len(data))
    assert 0 < kept.done_bytes < len(data)
    assert kept.parts[0].read_bytes() == data[: kept.done_bytes]
    asked, arrived = len(server.log), kept.done_bytes
    release(held)
    queue.add(source)
    until(lambda: state(queue, source) == "done")
    assert f"bytes={arrived}-" in [request.range for request in server.log[asked:]]
    assert store.find("tiny").path.read_bytes() == data
    assert sorted(path.name for path in store.root.iterdir()) == ["tiny.gguf", "tiny.json"]


def test_the_next_run_finds_what_was_left(server: FileServer, store: ModelStore, data: bytes, held: Served) -> None:
    first, source = PullQueue(store), server.url("/tiny.gguf")
    begin(first, source)
    first.close()
    until(lambda: state(first, source) == "paused")
    second = PullQueue(store)
    second.find_unfinished()
    (status,) = second.statuses()
    assert (status.state, status.total_bytes) == ("paused", len(data))
    assert 0 < status.done_bytes < len(data)
    release(held)
    second.add(source)
    until(lambda: state(second, source) == "done")
    assert store.unfinished() == ()


@pytest.mark.parametrize("when", ["running", "paused", "later"])
def test_a_cancelled_pull_leaves_nothing(server: FileServer, store: ModelStore, held: Served, when: str) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf")
    begin(queue, source)
    if when != "running":
        queue.pause(source)
        until(lambda: state(queue, source) == "paused")
    if when == "later":
        queue = PullQueue(store)
        queue.find_unfinished()
    queue.cancel(source)
    until(lambda: state(queue, source) == "cancelled")
    assert list(store.root.glob("*")) == []
    assert store.unfinished() == ()


def test_an_address_with_a_secret_is_not_written_down(
    server: FileServer, store: ModelStore, data: bytes, held: Served
) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf?key=hidden")
    begin(queue, source)
    queue.pause(source)
    until(lambda: state(queue, source) == "paused")
    assert store.unfinished() == ()
    assert not any(b"hidden" in path.read_bytes() for path in store.root.iterdir())
    queue.cancel(source)
    assert list(store.root.glob("*")) == []


def test_one_at_a_time_in_order(server: FileServer, store: ModelStore, data: bytes, held: Served) -> None:
    server.files["/other.gguf"] = Served(data)
    queue, first, second = PullQueue(store), server.url("/tiny.gguf"), server.url("/other.gguf")
    begin(queue, first)
    queue.add(second)
    assert state(queue, second) == "waiting"
    queue.pause(first)
    until(lambda: state(queue, second) == "done")
    assert state(queue, first) == "paused"


def test_a_paused_one_that_waits_does_not_start(
    server: FileServer, store: ModelStore, data: bytes, held: Served
) -> None:
    server.files["/other.gguf"] = Served(data)
    queue, first, second = PullQueue(store), server.url("/tiny.gguf"), server.url("/other.gguf")
    begin(queue, first)
    queue.add(second)
    queue.pause(second)
    release(held)
    until(lambda: state(queue, first) == "done")
    assert state(queue, second) == "paused"


def test_a_pull_that_is_wanted_again_while_it_stops_goes_on(
    server: FileServer, store: ModelStore, data: bytes, held: Served
) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf")
    begin(queue, source)
    queue.pause(source)
    queue.add(source)
    release(held)
    until(lambda: state(queue, source) == "done")
    assert store.find("tiny").path.read_bytes() == data


def test_without_a_model_named_the_only_pull_is_meant(server: FileServer, store: ModelStore, held: Served) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf")
    assert queue.meant("") is None
    begin(queue, source)
    found = queue.meant("")
    assert found is not None
    assert found.source == source
    queue.cancel(source)
    until(lambda: queue.meant("") is None)


def test_a_refused_model_can_be_forced(server: FileServer, store: ModelStore, data: bytes) -> None:
    def refuse(header: Header, nbytes: int) -> None:
        raise DoesNotFit(f"{nbytes} bytes are too many")

    server.files["/tiny.gguf"], source = Served(data), server.url("/tiny.gguf")
    queue = PullQueue(store, refuse)
    queue.add(source)
    until(lambda: state(queue, source) == "refused")
    status = queue.status(source)
    assert status is not None
    assert str(len(data)) in status.message
    queue.add(source, force=True)
    until(lambda: state(queue, source) == "done")


def test_a_failure_is_told_and_can_be_tried_again(server: FileServer, store: ModelStore, data: bytes) -> None:
    queue, source = PullQueue(store), server.url("/tiny.gguf")
    queue.add(source)
    until(lambda: state(queue, source) == "failed")
    status = queue.status(source)
    assert status is not None
    assert "no such file" in status.message
    server.files["/tiny.gguf"] = Served(data)
    queue.add(source)
    until(lambda: state(queue, source) == "done")


def test_time_left_is_told_while_bytes_arrive() -> None:
    assert PullStatus("s", "running", 25, 100, 5.0).eta_s == 15.0
    assert PullStatus("s", "running", 25, None, 5.0).eta_s is None
    assert PullStatus("s", "paused", 25, 100, 5.0).eta_s is None
