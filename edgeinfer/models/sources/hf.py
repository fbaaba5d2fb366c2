"""A model of the Hugging Face hub, through its own client and its shared cache.

In: ``hf:USER/REPO[:QUANT]``. Out: a delivery of the cached file(s), in place. What is in the cache already is used
without asking the network; the token is the client's ($HF_TOKEN or its login). The client is an extra and is imported
here only.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edgeinfer.errors import BadGGUF, DownloadFailed, ModelNotFound
from edgeinfer.models.delivery import Delivery, Pull, Received, SourceKind
from edgeinfer.models.download.header import file_header, read_header
from edgeinfer.models.download.http import ConnectionCutError, Refused, Remote, probe
from edgeinfer.models.download.policy import Policy
from edgeinfer.models.download.ranged import open_ranged
from edgeinfer.models.download.space import FULL, disk_full, require_space
from edgeinfer.models.download.transfer import ask
from edgeinfer.models.file_names import model_name, quant_of, safe_file_name, shard_names
from edgeinfer.models.gguf import HeaderIncomplete
from edgeinfer.models.hub_progress import progress_bar_class

PREFIX = "hf:"
REPO = re.compile(r"(?P<repo>[\w.\-]+/[\w.\-]+)(?::(?P<quant>[\w.\-]+))?")
# Asked for no quant, take the first of these that there is: small enough for most machines, good enough for most uses.
PREFERRED_QUANTS = ("Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q8_0", "BF16", "F16")
SHA256 = re.compile(r"[0-9a-f]{64}")
MISSING_CLIENT = (
    "hf: sources need the client of the Hugging Face hub; run: python -m pip install 'edgeinfer[hub]' - "
    "or give the path or the address of a .gguf file"
)


def choose_files(files: list[str], quant: str | None, repo: str) -> tuple[str, ...]:
    """The files of one model among those of a repository, in the order of shards.

    Without `quant` the first of `PREFERRED_QUANTS`, else the only model there is. Raises ModelNotFound, listing them.
    """
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        base = PurePosixPath(file).name
        if base.lower().endswith(".gguf") and not base.lower().startswith("mmproj"):
            models.setdefault(model_name(base), []).append(file)
    by_quant = {(quant_of(name) or name).upper(): name for name in reversed(models)}
    wanted = [quant.upper()] if quant else [*PREFERRED_QUANTS, *(by_quant if len(by_quant) == 1 else ())]
    for candidate in wanted:
        if candidate in by_quant:
            chosen = models[by_quant[candidate]]
            names = shard_names(PurePosixPath(chosen[0]).name)
            by_name = {PurePosixPath(file).name: file for file in chosen}
            if all(name in by_name for name in names):
                return tuple(by_name[name] for name in names)
    if not models:
        raise ModelNotFound(f"{repo} holds no .gguf file; look for a repository with GGUF in its name")
    asked = f"has no complete {quant}" if quant else "leaves several to choose from"
    raise ModelNotFound(f"{repo} {asked}; there are: {', '.join(f'hf:{repo}:{key}' for key in sorted(by_quant))}")


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
        """Use the cached file(s), or download them into the cache. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        if importlib.util.find_spec("huggingface_hub") is None:
            raise DownloadFailed(MISSING_CLIENT)
        paths = self._cached(pull) or self._download(pull)
        file_header(paths[0])
        files = tuple(Received(path, path.name, path.stat().st_size, _blob_sha256(path)) for path in paths)
        return Delivery(model_name(paths[0].name), self._resolved(paths[0].name), files, in_place=True)

    def _resolved(self, file_name: str) -> str:
        return f"{PREFIX}{self.repo}:{quant_of(file_name) or model_name(file_name)}"

    def _cached(self, pull: Pull) -> tuple[Path, ...] | None:
        """The files of the model that the cache holds whole; None when it does not."""
        hub, errors = _client()
        try:
            folder = Path(hub.snapshot_download(self.repo, local_files_only=True))
            found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
            chosen = choose_files(found, self.quant, self.repo)
        except (errors.LocalEntryNotFoundError, ModelNotFound):
            return None
        if self.quant is None and quant_of(chosen[0]) != PREFERRED_QUANTS[0]:
            return None  # the repository may hold a better choice than the cache does
        name = model_name(PurePosixPath(chosen[0]).name)
        pull.claim(name, self._resolved(chosen[0]))
        return tuple(folder / file for file in chosen)

    def _download(self, pull: Pull) -> tuple[Path, ...]:
        hub, errors = _client()
        api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        if not hub.constants.HF_HUB_OFFLINE:
            self._check_reachable(str(api.endpoint), pull.policy)
        try:
            files = choose_files(api.list_repo_files(self.repo), self.quant, self.repo)
            return self._download_files(api, files, pull)
        except errors.GatedRepoError:
            raise DownloadFailed(f"{self.repo} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except errors.RepositoryNotFoundError:
            raise ModelNotFound(f"the hub has no repository {self.repo}, or it is private: then set HF_TOKEN") from None
        except errors.OfflineModeIsEnabled:
            raise DownloadFailed(f"{self.text} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it") from None
        except errors.HfHubHTTPError as error:
            raise DownloadFailed(f"{self.text}: the hub answered: {str(error).splitlines()[0]}") from None
        except OSError as error:
            if error.errno in FULL:
                raise disk_full(Path(hub.constants.HF_HUB_CACHE), None, self.text) from None
            raise self._unreachable(error) from None
        except Exception as error:
            if not type(error).__module__.startswith(("httpx", "requests", "urllib3", "huggingface_hub", "httpcore")):
                raise
            raise self._unreachable(error) from None

    def _check_reachable(self, endpoint: str, policy: Policy) -> None:
        """Ask once, quickly: without a network the client itself would try for half a minute."""
        try:
            probe(endpoint, policy)
        except Refused:
            return
        except ConnectionCutError as cut:
            if not cut.answered:
                raise self._unreachable(cut) from None

    def _unreachable(self, error: Exception) -> DownloadFailed:
        return DownloadFailed(f"{self.text}: the hub could not be reached ({error}); check the network, or give a path")

    def _download_files(self, api: Any, files: tuple[str, ...], pull: Pull) -> tuple[Path, ...]:
        hub, _ = _client()
        name = model_name(safe_file_name(files[0], self.repo))
        pull.claim(name, self._resolved(files[0]))
        total_bytes = self._approve(api, files, pull)
        cache = Path(hub.constants.HF_HUB_CACHE)
        cache.mkdir(parents=True, exist_ok=True)
        require_space(cache, total_bytes, self.text)
        paths, done_bytes = [], 0
        takes_bar = "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters
        for file in files:
            bar = {"tqdm_class": progress_bar_class(pull.progress, done_bytes, total_bytes)} if takes_bar else {}
            paths.append(Path(hub.hf_hub_download(self.repo, file, endpoint=api.endpoint, **bar)))
            done_bytes += paths[-1].stat().st_size
        return tuple(paths)

    def _approve(self, api: Any, files: tuple[str, ...], pull: Pull) -> int:
        """Ask for the header of the first file, then for approval; gives the size of the whole model."""
        hub, _ = _client()
        urls = [hub.hf_hub_url(self.repo, file, endpoint=api.endpoint) for file in files]
        known = [hub.get_hf_file_metadata(url, token=hub.get_token()) for url in urls]
        total_bytes = sum(entry.size or 0 for entry in known)
        remote = _readable(known[0].location, str(api.endpoint), pull.policy)
        if remote.ranged and remote.nbytes:
            where = f"{self.text}: {files[0]}"
            with open_ranged(remote, pull.policy) as stream:
                try:
                    header = read_header(stream, remote.nbytes, where)
                except HeaderIncomplete:
                    raise BadGGUF(f"{where} ends inside its header; choose another file") from None
            pull.approve(header, total_bytes)
        return total_bytes


def _readable(location: str, endpoint: str, policy: Policy) -> Remote:
    """The file as our own reader asks for it; the token goes to the hub itself, never to where it redirects."""
    hub, _ = _client()
    token = hub.get_token() if location.startswith(endpoint) else None
    return ask(location, policy, (("Authorization", f"Bearer {token}"),) if token else ())


def _client() -> tuple[Any, Any]:
    """The client's package and its errors. It is an extra, so nothing can be imported from it by name."""
    hub = importlib.import_module("huggingface_hub")
    importlib.import_module("huggingface_hub.constants")
    return hub, importlib.import_module("huggingface_hub.errors")


def _blob_sha256(path: Path) -> str | None:
    """The SHA-256 by which the cache names the blob behind `path`; None when it is no large file of the hub."""
    blob = path.resolve().name
    return blob if SHA256.fullmatch(blob) else None


def _parse(text: str) -> HubSource:
    matched = REPO.fullmatch(text[len(PREFIX) :])
    if matched is None or ".." in text:
        raise ModelNotFound(
            f"{text!r} is not a repository; a form such as hf:user/repo or hf:user/repo:Q4_K_M is wanted"
        )
    return HubSource(matched["repo"], matched["quant"])


SOURCE = SourceKind("hf:USER/REPO[:QUANT]", lambda text: text.startswith(PREFIX), _parse)
