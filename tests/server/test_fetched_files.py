"""What was fetched for requests is kept for a short time, within limits, and only where its server allows it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from edgeinfer.app.server import fetched_files
from edgeinfer.app.server.fetched_files import KEPT_S, FetchedFiles
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.models.download import public
from edgeinfer.models.download.public import FetchedFile
from tests.file_server import Served, serving
from tests.server.conftest import Running, served
from tests.server.test_images import ENGINE_IMAGE, LOADING, PHOTO, SEEING, TEXT, asked_for, post, same_text

pytest.importorskip("PIL")


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(fetched_files, "time", found)
    return found


@pytest.mark.parametrize(("keep_s", "kept_s"), [(math.inf, KEPT_S), (KEPT_S * 2, KEPT_S), (30, 30)])
def test_files_are_kept_for_a_time(clock: Clock, keep_s: float, kept_s: float) -> None:
    files, file = FetchedFiles(), FetchedFile(b"one", keep_s)
    files.keep("a", file)
    clock.now_s += kept_s / 2
    assert files.get("a") == file
    files.keep("a", FetchedFile(b"two"))  # of a request that began at the same time
    clock.now_s += kept_s / 2 - 1
    assert files.get("a") == file
    clock.now_s += 1
    assert files.get("a") is None
    files.keep("a", FetchedFile(b"two"))
    assert files.get("a") == FetchedFile(b"two")


def test_what_may_not_be_kept_is_not() -> None:
    files = FetchedFiles()
    files.keep("a", FetchedFile(b"one", 0))
    assert files.get("a") is None


def test_files_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_files, "KEPT_BYTES", 10)
    files = FetchedFiles()
    for address in "abc":
        files.keep(address, FetchedFile(address.encode() * 4))
        assert files.get("a") is not None  # and so the one that was used last
    assert [files.get(address) is not None for address in "abc"] == [True, False, True]
    files.keep("d", FetchedFile(b"d" * 11))
    assert [files.get(address) is not None for address in "abcd"] == [False] * 4


@pytest.fixture(scope="module")
def fetching() -> Iterator[Running]:
    with served(SEEING, ServerOptions(port=0, fetches_images=True), drafting=LOADING) as running:
        yield running


@pytest.mark.parametrize(("told", "n_fetched"), [(None, 1), ("max-age=60", 1), ("no-cache", 3)])
def test_a_conversation_fetches_its_images_once(
    fetching: Running, monkeypatch: pytest.MonkeyPatch, told: str | None, n_fetched: int
) -> None:
    monkeypatch.setattr(public, "is_public", lambda text: True)
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    with serving() as files:
        files.files["/a.png"] = Served(PHOTO, content_type="image/png", ranges=False, cache_control=told)
        files.files["/bad.png"] = Served(b"GIF89a", content_type="image/png", ranges=False)
        for _ in range(3):
            found = post(fetching, asked_for(files.url("/a.png"))).json()["choices"][0]["message"]["content"]
            assert found == same_text(fetching, TEXT, ENGINE_IMAGE)
        assert len(files.log) == n_fetched
        for _ in range(2):  # what is no image may be one later
            assert post(fetching, asked_for(files.url("/bad.png"))).status_code == 400
        assert len(files.log) == n_fetched + 2
