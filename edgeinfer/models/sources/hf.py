"""Models from the Hugging Face hub, through its own client and shared cache.

In: ``hf:USER/REPO[:QUANT]``, the address of its page, or a USER/REPO that is not a local path. Out: a delivery of the
cached file(s), in place, or the list of what a repository offers. The projector file of a model that reads images is
fetched with it, and lies beside it in the cache. Cached models are used without network access. Large files are fetched
by our own downloader, which can resume, and handed to the client as blobs of its cache.
"""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeinfer.errors import BadGGUF, ModelNotFound
from edgeinfer.models.delivery import Delivery, ListedModel, Pull, Received, SourceKind
from edgeinfer.models.download.header import file_header, read_header
from edgeinfer.models.download.http import open_ranged
from edgeinfer.models.download.part import DownloadPart, part_path
from edgeinfer.models.download.policy import DownloadPolicy, shifted
from edgeinfer.models.download.transfer import receive
from edgeinfer.models.file_names import model_name_at, quant_of, safe_file_name
from edgeinfer.models.gguf import Header, HeaderIncomplete
from edgeinfer.models.hub_client import client, hub_api, progress_bar_class, readable, require_client
from edgeinfer.models.projector_choice import projector_in
from edgeinfer.models.repository_files import PREFERRED_QUANTS, choose_files, in_order, models_among
from edgeinfer.models.sources.path import names_repository
from edgeinfer.temporary import put_in_place

PREFIX = "hf:"
PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[\w.\-]+/[\w.\-]+(?::[\w.\-]+)?)"
    r"(?:/(?:tree|blob)/main(?:/(?:[\w.\-]+/)*(?P<part>[\w.\-]+))?)?/?(?:[?#].*)?"
)
"""The address of a page of a repository, a folder or a file in it, or the name by which Ollama pulls from the hub."""
REPO = re.compile(r"(?P<repo>[\w.\-]+/[\w.\-]+)(?::(?P<quant>[\w.\-]+))?")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A model in a repository of the hub."""

    repo: str
    quant: str | None

    @property
    def text(self) -> str:
        """The source as written."""
        return f"{PREFIX}{self.repo}" + (f":{self.quant}" if self.quant else "")

    @property
    def key(self) -> str:
        """The source in lower case."""
        return self.text.lower()

    def fetch(self, pull: Pull) -> Delivery:
        """Use the cached file(s), or download them to the cache. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        require_client()
        paths = self._cached(pull) or self._download(pull)
        file_header(paths[0])
        files = tuple(Received(path, path.name, path.stat().st_size, _blob_sha256(path)) for path in paths)
        name = model_name_at(paths[0].as_posix())
        return Delivery(name, self._resolved(name), files, in_place=True)

    def _resolved(self, name: str) -> str:
        return f"{PREFIX}{self.repo}:{quant_of(name) or name}"

    def _cached(self, pull: Pull) -> tuple[Path, ...] | None:
        """The files of the model if the cache has all of them; otherwise None."""
        hub, errors = client()
        try:
            folder = Path(hub.snapshot_download(self.repo, local_files_only=True))
            found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
            chosen = choose_files(found, self.quant, self.repo)
        except (errors.LocalEntryNotFoundError, ModelNotFound):
            return None
        name = model_name_at(chosen[0])
        if self.quant is None and quant_of(name) != PREFERRED_QUANTS[0]:
            return None  # the repository may offer a better choice than the cache
        pull.claim(name, self._resolved(name))
        return tuple(folder / file for file in chosen)

    def _download(self, pull: Pull) -> tuple[Path, ...]:
        with hub_api(self.text, self.repo, pull.policy) as api:
            there = api.list_repo_files(self.repo)
            files = choose_files(there, self.quant, self.repo)
            return self._download_files(api, files, projector_in(there, files[0]), pull)

    def _download_files(self, api: Any, models: tuple[str, ...], projector: str | None, pull: Pull) -> tuple[Path, ...]:
        """Download the files of a model, its projector first: so a model that is cached has its projector beside it."""
        hub, _ = client()
        files = models if projector is None else (*models, projector)
        safe_file_name(files[0], self.repo)
        name = model_name_at(files[0])
        pull.claim(name, self._resolved(name))
        known = [hub.get_hf_file_metadata(self._url(api, file), token=hub.get_token()) for file in files]
        total_bytes = sum(entry.size or 0 for entry in known)
        locations = {file: str(entry.location) for file, entry in zip(files, known, strict=True)}
        self._approve(api, locations, projector, total_bytes, pull)
        pull.begin_body(self.text)
        cache = Path(hub.constants.HF_HUB_CACHE)
        cache.mkdir(parents=True, exist_ok=True)
        takes_bar = "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters
        later_bytes = total_bytes
        paths, done_bytes = [], 0
        for file, entry in sorted(zip(files, known, strict=True), key=lambda each: each[0] != projector):
            later_bytes -= entry.size or 0
            if entry.etag is not None and SHA256.fullmatch(entry.etag):
                here = replace(pull, progress=shifted(pull.progress, done_bytes, total_bytes))
                self._receive(api, file, entry.etag, here, later_bytes)
            bar = {"tqdm_class": progress_bar_class(pull.progress, done_bytes, total_bytes)} if takes_bar else {}
            paths.append(Path(hub.hf_hub_download(self.repo, file, endpoint=api.endpoint, **bar)))
            done_bytes += paths[-1].stat().st_size
        return tuple(paths[-len(models) :])

    def _receive(self, api: Any, file: str, sha256: str, pull: Pull, later_bytes: int) -> None:
        """Download a large file to the cache as the blob that the client expects there.

        The client discards downloads that end early; our part files can be resumed.
        """
        hub, _ = client()
        blobs = Path(hub.constants.HF_HUB_CACHE) / f"models--{self.repo.replace('/', '--')}" / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        if (blobs / sha256).exists():
            return
        remote = readable(self._url(api, file), str(api.endpoint), pull.policy)
        path = part_path(blobs, sha256, remote.url)
        pull.parted(path)
        with DownloadPart(path, remote, sha256) as part:
            receive(remote, part, pull.policy, pull.progress, expected_sha256=sha256, besides_bytes=later_bytes)
            put_in_place(part.finish(), blobs / sha256)

    def _approve(self, api: Any, locations: dict[str, str], projector: str | None, n_bytes: int, pull: Pull) -> None:
        """Fetch the headers of the first file and of the projector, and ask for approval. `locations`: by file."""
        file = next(iter(locations))
        header = self._header(api, file, locations[file], pull)
        if header is None:
            return
        if projector is not None:
            with suppress(BadGGUF):  # such a model reads texts at least
                header = replace(header, projector=self._header(api, projector, locations[projector], pull))
        pull.approve(header, n_bytes)

    def _header(self, api: Any, file: str, location: str, pull: Pull) -> Header | None:
        """The header of a file; None if its server gives no parts of files. Raises BadGGUF."""
        remote = readable(location, str(api.endpoint), pull.policy)
        if not (remote.ranged and remote.nbytes):
            return None
        where = f"{self.text}: {file}"
        with open_ranged(remote, pull.policy) as stream:
            try:
                return read_header(stream, remote.nbytes, where)
            except HeaderIncomplete:
                raise BadGGUF(f"{where} ends inside its header; choose another file") from None

    def _url(self, api: Any, file: str) -> str:
        hub, _ = client()
        return str(hub.hf_hub_url(self.repo, file, endpoint=api.endpoint))


def _blob_sha256(path: Path) -> str | None:
    """The SHA-256 by which the cache names the blob behind `path`; None if it is not a large file of the hub."""
    blob = path.resolve().name
    return blob if SHA256.fullmatch(blob) else None


def _listed(text: str, policy: DownloadPolicy) -> tuple[ListedModel, ...]:
    """What a repository offers, smallest first; a single quant if the text names one."""
    source = _parse(text)
    require_client()
    with hub_api(source.text, source.repo, policy) as api:
        sizes = {
            entry.path: int(getattr(entry, "size", 0) or 0) for entry in api.list_repo_tree(source.repo, recursive=True)
        }
    if source.quant is not None:
        chosen = choose_files(list(sizes), source.quant, source.repo)
    found = []
    for quant, files in models_among(list(sizes)).items():
        if not (shards := in_order(files)) or (source.quant is not None and shards != chosen):
            continue
        name = model_name_at(files[0])
        projector = projector_in(list(sizes), files[0])
        nbytes = sum(sizes[file] for file in (*shards, *(() if projector is None else (projector,))))
        found.append(ListedModel(f"{PREFIX}{source.repo}:{quant}", name, quant_of(name), nbytes, len(shards)))
    if not found:
        choose_files(list(sizes), None, source.repo)
    return tuple(sorted(found, key=lambda each: each.nbytes))


def _repository(text: str) -> str | None:
    """The USER/REPO[:QUANT] of a source; None if it is not a hub source."""
    if text.startswith(PREFIX):
        return text[len(PREFIX) :]
    if (page := PAGE.fullmatch(text)) is not None:
        repo = page["repo"].removesuffix(":latest")
        return f"{repo}:{page['part']}" if page["part"] and ":" not in repo else repo
    return text if names_repository(text) else None


def _parse(text: str) -> HubSource:
    matched = REPO.fullmatch(_repository(text) or "")
    if matched is None or ".." in text:
        raise ModelNotFound(f"{text!r} is not a repository; use a form such as hf:user/repo or hf:user/repo:Q4_K_M")
    return HubSource(matched["repo"], matched["quant"])


SOURCE = SourceKind("hf:USER/REPO[:QUANT]", lambda text: _repository(text) is not None, _parse, _listed)
