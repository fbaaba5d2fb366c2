"""Where downloads of models follow a redirect, and where not: no further in, and to nothing less protected."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from collections.abc import Iterator
from email.message import Message
from io import BytesIO
from typing import Any

import pytest

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download import addresses
from edgeinfer.models.download.addresses import is_inside
from edgeinfer.models.download.http import ConnectionCutError, _OutwardRedirects, open_url
from edgeinfer.models.download.policy import DownloadPolicy
from tests.file_server import FileServer, Served, serving

NAMES = {
    "hub.example": "93.184.216.34",
    "mirror.example": "10.1.2.3",
    "mixed.example": "8.8.8.8",
    "files.example": "8.8.4.4",
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of hosts, without asking anybody."""
    real = socket.getaddrinfo

    def resolved(host: str, port: object, *arguments: Any, **options: Any) -> list[Any]:
        if options.get("flags") == socket.AI_NUMERICHOST and host in NAMES:
            raise socket.gaierror
        if host in NAMES:
            found = [NAMES[host], *(["192.168.0.9"] if host == "mixed.example" else [])]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]
        return real(host, None, flags=socket.AI_NUMERICHOST)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolved)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def followed(old: str, new: str) -> urllib.request.Request | None:
    return _OutwardRedirects().redirect_request(urllib.request.Request(old), BytesIO(), 302, "Found", Message(), new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("https://hub.example/a", "https://files.example/b"),
        ("http://hub.example/a", "https://files.example/b"),
        ("http://mirror.example/a", "http://10.9.9.9/b"),
        ("http://127.0.0.1:8000/a", "http://127.0.0.1:8001/b"),
        ("http://localhost/a", "http://hub.example/b"),
    ],
)
@pytest.mark.usefixtures("names")
def test_redirects_that_are_followed(old: str, new: str) -> None:
    request = followed(old, new)
    assert request is not None
    assert request.full_url == new


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("https://hub.example/a", "http://files.example/b", "not encrypted"),
        ("https://mirror.example/a", "http://mirror.example/a", "not encrypted"),
        ("https://hub.example/a", "https://mirror.example/b", "not public"),
        ("https://hub.example/a", "https://mixed.example/b", "not public"),
        ("http://hub.example/a", "http://169.254.169.254/latest/meta-data", "not public"),
        ("http://hub.example/a", "http://127.0.0.1:8080/v1/models", "not public"),
        ("http://hub.example/a", "http://localhost:8080/", "not public"),
        ("http://hub.example/a", "http://0x7f.1/", "not public"),
        ("http://hub.example/a", "http://2130706433/", "not public"),
        ("http://hub.example/a", "http://[::1]/", "not public"),
        ("http://hub.example/a", "http://[::ffff:10.0.0.1]/", "not public"),
        ("http://hub.example/a", "http://[fd00::1]/", "not public"),
        ("http://hub.example/a", "http://user:secret@10.0.0.1/b?token=secret", "not public"),
    ],
)
@pytest.mark.usefixtures("names")
def test_redirects_that_are_not(old: str, new: str, why: str) -> None:
    with pytest.raises(DownloadFailed, match=why) as failure:
        followed(old, new)
    assert "secret" not in str(failure.value)


@pytest.mark.usefixtures("names")
def test_names_are_left_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It resolves them, and here they may mean nothing; addresses are what they are."""
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert followed("https://hub.example/a", "https://mirror.example/b") is not None
    for host in ("10.0.0.1", "localhost", "LOCALHOST."):
        with pytest.raises(DownloadFailed, match="not public"):
            followed("https://hub.example/a", f"https://{host}/b")


@pytest.mark.parametrize("host", ["", "x" * 300, "a..b", "\udcff"])
def test_what_is_no_host_is_nowhere(host: str) -> None:
    assert not is_inside(host, resolves=False)


@pytest.fixture
def files() -> Iterator[FileServer]:
    with serving() as server:
        yield server


@pytest.mark.parametrize(("scheme", "named"), [("ftp", "ftp"), ("file", "not allowed")])
def test_other_schemes_are_not_followed(files: FileServer, scheme: str, named: str) -> None:
    files.files["/a"] = Served(b"", redirect=f"{scheme}://127.0.0.1/etc/passwd")
    with (
        pytest.raises((DownloadFailed, ConnectionCutError), match=named),
        open_url(files.url("/a"), {}, DownloadPolicy()),
    ):
        pass


def test_a_key_is_told_to_nobody_but_its_own_host(files: FileServer) -> None:
    files.files |= {"/a": Served(b"", redirect="/b"), "/b": Served(b"found")}
    url = files.url("/a").replace("http://", "http://user:secret@")
    with open_url(url, {}, DownloadPolicy()) as response:
        assert isinstance(response, http.client.HTTPResponse)
        assert response.read() == b"found"
    assert [bool(request.authorization) for request in files.log] == [True, False]
