"""Compiled graphs cached on disk, so that a second start builds and compiles nothing.

In: compiled models and a key of everything they depend on. Out: the same models later, or None. A file that is damaged,
truncated or of another version is ignored. The least recently used files are deleted if all together are too large.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import openvino as ov
import platformdirs

from edgeinfer.backends.openvino.runtime import Properties
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.private_files import readable_folder, readably
from edgeinfer.temporary import temporary_folder

MAGIC = b"EDGEINFER OPENVINO 1\n"
SUM_BYTES = 4
SAMPLE_BYTES = 4096
MOST_BYTES = 8 << 30
"""Most bytes of all files together; a graph is as large as its weights."""
THREAD_PROPERTIES = {"INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING"}
"""Properties set each time a graph is read."""


def default_folder() -> Path:
    """Where compiled graphs are cached."""
    return Path(platformdirs.user_cache_dir("edgeinfer")) / "openvino"


def key_of(fragment: Fragment, file: GGUFFile, properties: Properties, processor: str) -> str:
    """A key for a compiled graph: derived from its ops and weights, compile properties, target, and edgeinfer's code.

    Some 8 KB of each tensor are read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in _sources():
        digest.update(path.read_bytes())
    lasting = sorted((name, value) for name, value in properties.items() if name not in THREAD_PROPERTIES)
    digest.update(f"{ov.__version__}|{processor}|{lasting}|{fragment}".encode())
    names = {weight.tensor for weight in fragment.spec.weights()}
    names |= {op.table.factors for op in fragment.spec.ops() if isinstance(op, Rope) and op.table.factors}
    for name in sorted(names):
        info, raw = file.tensors[name], file.raw(name).reshape(-1)
        digest.update(f"{name} {info.shape} {info.ggml_type}\n".encode())
        digest.update(raw[:SAMPLE_BYTES].tobytes())
        digest.update(raw[len(raw) // 2 :][:SAMPLE_BYTES].tobytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    """Source files that a graph depends on."""
    here = Path(__file__).parent
    yield here.parent / "weights.py"
    yield from sorted(here.glob("*.py"))
    yield from sorted((here.parent.parent / "models" / "quants").glob("*.py"))


class KeptGraphs:
    """A folder of compiled graphs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, core: ov.Core, key: str, target: str, properties: Properties) -> ov.CompiledModel | None:
        """The graph cached under a key."""
        path = self._path(key)
        try:
            with path.open("rb") as kept:
                head, body = kept.read(len(MAGIC) + SUM_BYTES), kept.read()
            os.utime(path)
        except OSError:
            return None
        if head != MAGIC + _sum_of(body):
            return None
        try:
            return core.import_model(body, target, properties)
        except RuntimeError:  # written by another OpenVINO build with the same version string
            return None

    def keep(self, key: str, compiled: ov.CompiledModel) -> None:
        """Write a graph if possible; other processes see all of it or nothing."""
        try:
            body = compiled.export_model().getbuffer()
        except RuntimeError:  # a processor that cannot export
            return
        with contextlib.suppress(OSError):  # a read-only or full disk
            readable_folder(self._folder)
            self._make_room(len(body))
            with temporary_folder("", self._folder) as beside:
                whole = Path(beside) / "graph"
                with open(whole, "wb", opener=readably) as out:
                    out.write(MAGIC + _sum_of(body))
                    out.write(body)
                os.replace(whole, self._path(key))

    def _make_room(self, n_bytes: int) -> None:
        """Delete the least recently used files until this many more bytes fit."""
        found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in self._folder.glob("*.graph"))
        total = n_bytes + sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= MOST_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.graph"


def _sum_of(body: bytes | memoryview) -> bytes:
    return zlib.crc32(body).to_bytes(SUM_BYTES, "little")
