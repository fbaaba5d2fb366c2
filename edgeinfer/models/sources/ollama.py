"""A model that Ollama has pulled: read in place from its blob store, never written.

In: ``ollama:NAME[:TAG]``. Out: a delivery of the model's blob, in place. Looks in $OLLAMA_MODELS, else in the folders
Ollama uses by itself. Layout: ``manifests/REGISTRY/NAMESPACE/NAME/TAG`` (an OCI manifest in JSON) names the layer of
media type ``application/vnd.ollama.image.model``, whose blob is ``blobs/sha256-HEX``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgeinfer.errors import BadGGUF, ModelNotFound
from edgeinfer.models.delivery import Delivery, Pull, Received, SourceKind
from edgeinfer.models.download.header import file_header
from edgeinfer.text_values import user_path

MODEL_LAYER = "application/vnd.ollama.image.model"
PREFIX = "ollama:"
DEFAULT_REGISTRY, DEFAULT_NAMESPACE = "registry.ollama.ai", "library"
SYSTEM_FOLDERS = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models"))
NAME = re.compile(r"(?:[\w][\w.\-]*/){0,3}[\w][\w.\-]*(?::[\w][\w.\-]*)?")
DIGEST = re.compile(r"sha256[:\-]([0-9a-f]{64})")
MANIFEST_CAP_BYTES = 1 << 20
MANIFESTS_CAP = 5000


def ollama_folders() -> tuple[Path, ...]:
    """The folders in which Ollama may keep models, the likeliest first."""
    chosen = os.environ.get("OLLAMA_MODELS")
    if chosen:
        return (user_path(chosen),)
    return (Path.home() / ".ollama" / "models", *SYSTEM_FOLDERS)


@dataclass(frozen=True, slots=True)
class OllamaSource:
    """A model in Ollama's blob store."""

    name: str
    tag: str

    @property
    def text(self) -> str:
        """The source, with its tag."""
        return f"{PREFIX}{self.name}:{self.tag}"

    @property
    def key(self) -> str:
        """The same as `text`."""
        return self.text

    def fetch(self, pull: Pull) -> Delivery:
        """Find the model's blob. Raises ModelNotFound, BadGGUF."""
        folder, manifest = self._manifest()
        digest = model_digest(manifest)
        blob = blob_path(folder, digest)
        if not blob.is_file():
            raise ModelNotFound(f"{manifest} names {blob}, which is not there; pull {self.name} with Ollama again")
        file_header(blob)
        name = ollama_name(*manifest.parts[-4:])
        pull.claim(name, self.text)
        files = (Received(blob, blob.name, blob.stat().st_size, digest),)
        return Delivery(name, self.text, files, in_place=True)

    def _manifest(self) -> tuple[Path, Path]:
        parts = self.name.split("/")
        parts = [DEFAULT_REGISTRY, DEFAULT_NAMESPACE][: max(0, 3 - len(parts))] + parts
        for folder in ollama_folders():
            path = folder.joinpath("manifests", *parts, self.tag)
            if path.is_file():
                return folder, path
        places = ", ".join(str(folder) for folder in ollama_folders())
        raise ModelNotFound(f"Ollama has no model {self.name}:{self.tag} in {places}; {_what_there_is()}")


def ollama_name(registry: str, namespace: str, name: str, tag: str) -> str:
    """Ollama's name of a model: llama3.2:3b, somebody/model:latest, hf.co/user/repo:Q4_K_M."""
    parts = [namespace, name] if registry == DEFAULT_REGISTRY else [registry, namespace, name]
    return f"{'/'.join(parts).removeprefix(f'{DEFAULT_NAMESPACE}/')}:{tag}"


def blob_path(folder: Path, digest: str) -> Path:
    """The path of the blob with this SHA-256."""
    return folder / "blobs" / f"sha256-{digest}"


def model_digest(manifest: Path) -> str:
    """The SHA-256 of the model in a manifest. Raises BadGGUF, OSError."""
    digests = [digest for kind, digest in layers_of(manifest) if kind == MODEL_LAYER]
    matched = DIGEST.fullmatch(digests[0]) if digests else None
    if matched is None:
        raise BadGGUF(f"{manifest} is no manifest of Ollama with a model in it")
    return matched[1]


def layers_of(manifest: Path) -> list[tuple[str, str]]:
    """The layers of a manifest: their media types and digests. Raises BadGGUF, OSError."""
    if manifest.stat().st_size > MANIFEST_CAP_BYTES:
        raise BadGGUF(f"{manifest} is too large for a manifest of Ollama")
    try:
        return [(str(each["mediaType"]), str(each["digest"])) for each in json.loads(manifest.read_bytes())["layers"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadGGUF(f"{manifest} is no manifest of Ollama with a model in it") from None


def manifests_in(folder: Path) -> Iterator[Path]:
    """The manifests in one of Ollama's folders, MANIFESTS_CAP at most: REGISTRY/NAMESPACE/NAME/TAG."""
    with suppress(OSError):
        yield from islice((folder / "manifests").glob("*/*/*/*"), MANIFESTS_CAP)


def _what_there_is() -> str:
    names = []
    for folder in ollama_folders():
        for path in sorted((folder / "manifests").glob("*/*/*/*")):
            names.append(f"{PREFIX}{ollama_name(*path.parts[-4:])}")
    return f"it has: {', '.join(names[:10])}" if names else "it has none there; set OLLAMA_MODELS to its folder"


def _parse(text: str) -> OllamaSource:
    rest = text[len(PREFIX) :]
    if not NAME.fullmatch(rest) or ".." in rest:
        raise ModelNotFound(f"{text!r} is not a model of Ollama; use a form such as ollama:llama3.2:1b")
    name, _, tag = rest.partition(":")
    return OllamaSource(name, tag or "latest")


SOURCE = SourceKind("ollama:NAME[:TAG]", lambda text: text.startswith(PREFIX), _parse)
