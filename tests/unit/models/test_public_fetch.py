"""Fetching what others name: public addresses alone, redirects checked, within limits of size and time."""

from __future__ import annotations

import math
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download import public
from edgeinfer.models.download.public import FetchedFile, fetch_public, is_public, public_places
from tests.file_server import FileServer, Served, serving

PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808"]
SPECIAL = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.9.9", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::808:808"),
    *("no address", ""),
]


@pytest.mark.parametrize(
    ("address", "expected"), [*((each, True) for each in PUBLIC), *((each, False) for each in SPECIAL)]
)
def test_addresses_that_anybody_may_ask(address: str, expected: bool) -> None:
    assert is_public(address) == expected


@pytest.fixture
def files() -> Iterator[FileServer]:
    with serving() as server:
        yield server


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets 127.0.0.1 count as public, and nothing else of this computer."""
    monkeypatch.setattr(public, "is_public", lambda text: text == "127.0.0.1" or is_public(text))
    monkeypatch.setattr("psutil.net_if_addrs", dict)


def fetched(url: str, most_bytes: int = 1000, limit_s: float = 60.0, go_on: Callable[[], None] = lambda: None) -> bytes:
    return fetch_public(url, most_bytes, limit_s, go_on).data


def image(data: bytes, **more: Any) -> Served:
    return Served(data, ranges=False, **{"content_type": "image/png", **more})


@pytest.mark.usefixtures("near")
def test_a_file_is_fetched_with_what_it_redirects_to(files: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which would resolve names itself
    files.files |= {"/a": image(b"", redirect="/b?c=d"), "/b": image(b"picture", announce_length=False)}
    files.files["/octets"] = image(b"octets", content_type="application/octet-stream")
    assert fetched(files.url("/a")) == b"picture"
    assert fetched(files.url("/octets")) == b"octets"
    assert [each.path for each in files.log] == ["/a", "/b?c=d", "/octets"]


@pytest.mark.parametrize(
    ("told", "keep_s"),
    [
        (None, math.inf),
        ("max-age=30", 30),
        ("public, Max-Age=0", 0),
        ("max-age=30, no-cache", 0),
        ("no-store", 0),
        ("max-age=soon, max-stale", math.inf),
    ],
)
@pytest.mark.usefixtures("near")
def test_a_server_says_how_long_its_file_may_be_kept(files: FileServer, told: str | None, keep_s: float) -> None:
    files.files["/a"] = image(b"picture", cache_control=told)
    assert fetch_public(files.url("/a"), 1000, 60, lambda: None) == FetchedFile(b"picture", keep_s)


@pytest.mark.parametrize(
    ("served", "named"),
    [
        (image(b"x" * 1001), "more than 0 MB"),
        (image(b"x" * 1001, announce_length=False), "more than 0 MB"),
        (image(b"x" * 900, cut_after=10), "the connection broke"),
        (image(b"<html>", content_type="text/html; charset=utf-8"), "no image"),
        (image(b"", statuses=[503]), "the server answered 503"),
        (image(b"", statuses=[403]), "the server answered 403"),
        (image(b"", redirect="file:///etc/passwd"), "not allowed"),
        (image(b"", redirect="ftp://127.0.0.1/x"), "which is not followed"),
        (image(b"", redirect="http://127.0.0.2/x"), "127.0.0.2 is no public address"),
        (image(b"", redirect="/x"), "redirect"),
    ],
)
@pytest.mark.usefixtures("near")
def test_what_is_not_fetched(files: FileServer, served: Served, named: str) -> None:
    files.files["/x"] = served
    with pytest.raises(DownloadFailed, match=named):
        fetched(files.url("/x"))


def drip(listener: socket.socket) -> None:
    """Send a header to one client, byte by byte, until it leaves."""
    connected, _ = listener.accept()
    with connected, suppress(OSError):
        connected.sendall(b"HTTP/1.1 200 OK\r\nName: ")
        while True:
            connected.sendall(b"x")
            time.sleep(0.02)


@pytest.mark.usefixtures("near")
def test_a_server_that_sends_slowly_is_cut_off(files: FileServer) -> None:
    """One that stops in the middle, and one whose header never ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sending = threading.Thread(target=drip, args=(listener,))
        sending.start()
        with pytest.raises(DownloadFailed, match="took longer than 1 s"):
            fetched(f"http://127.0.0.1:{listener.getsockname()[1]}/", limit_s=0.6)
        sending.join(60)
        assert not sending.is_alive()  # the connection is gone
    files.files["/x"] = image(b"x" * 900, stall=threading.Event())
    with pytest.raises(DownloadFailed, match="took longer than 1 s"):
        fetched(files.url("/x"), limit_s=0.6)


@pytest.mark.usefixtures("near")
def test_who_leaves_ends_the_download(files: FileServer) -> None:
    def left() -> None:
        raise InterruptedError

    files.files["/x"] = image(b"x" * 900)
    with pytest.raises(InterruptedError):
        fetched(files.url("/x"), go_on=left)


def test_a_name_is_resolved_once_and_all_its_addresses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolved(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        place = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*place, (address, port)) for address in (["8.8.8.8", "10.0.0.1"] if host == "two" else ["8.8.8.8"])]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert [place[4] for place in public_places("one", 80)] == [("8.8.8.8", 80)]
    with pytest.raises(DownloadFailed, match="two is no public address"):
        public_places("two", 80)
    connected: list[object] = []

    def connect(self: socket.socket, address: object) -> None:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    for url in ("http://one/x", "https://one/x"):
        with pytest.raises(DownloadFailed, match="cannot be fetched"):
            fetched(url)
    assert connected == [("8.8.8.8", 80), ("8.8.8.8", 443)]
    assert asked == ["one", "two", "one", "one"]


def test_this_computers_own_addresses_are_refused_though_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [SimpleNamespace(address="8.8.8.8")]})
    with pytest.raises(DownloadFailed, match="no public address"):
        fetched("http://8.8.8.8/x")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_an_encrypted_server_must_be_who_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "is_public", lambda text: text in ("127.0.0.1", "::1"))
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    making = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    paths = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*making, *paths], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving() as files:
        files.socket = context.wrap_socket(files.socket, server_side=True)
        files.files["/x"] = image(b"picture")
        address = f"https://localhost:{files.server_port}/x"
        with pytest.raises(DownloadFailed, match="certificate verify failed"):
            fetched(address)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetched(address) == b"picture"
        with pytest.raises(DownloadFailed, match="certificate verify failed"):
            fetched(address.replace("localhost", "127.0.0.1"))
        files.files["/x"] = image(b"", redirect=files.url("/x"))
        with pytest.raises(DownloadFailed, match="which is not followed"):  # to one that is not encrypted
            fetched(address)
