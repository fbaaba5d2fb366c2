"""Models in the Hugging Face hub cache, which the hub client and other programs fill.

In: the cache's folder. Out: its models, in place. Layout: ``models--USER--REPO/snapshots/REVISION/FILE``, links to
blobs; ``refs/main`` names the preferred revision. Does not need the client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgeinfer.models.elsewhere import FoundModel, OtherProgram
from edgeinfer.models.elsewhere.walking import entries_of, model_files
from edgeinfer.models.file_names import model_name_at, quant_of
from edgeinfer.text_values import user_path

REVISION_CAP_BYTES = 256


def hub_folders() -> tuple[Path, ...]:
    """The cache's folder, located as the client does."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(variable):
            return (user_path(chosen),)
    if home := os.environ.get("HF_HOME"):
        return (user_path(home) / "hub",)
    cache = os.environ.get("XDG_CACHE_HOME")
    return ((user_path(cache) if cache else Path.home() / ".cache") / "huggingface" / "hub",)


def _models(folder: Path) -> Iterator[FoundModel]:
    for entry in entries_of(folder):
        kind, *parts = entry.name.split("--")
        if kind == "models" and len(parts) == 2 and all(parts):
            yield from _models_of(Path(entry.path), "/".join(parts))


def _models_of(folder: Path, repo: str) -> Iterator[FoundModel]:
    """The models of a repository; a name present in two revisions refers to the preferred one."""
    seen: set[str] = set()
    for revision in _revisions(folder):
        for files in model_files(revision):
            first = files.paths[0]
            within = first.relative_to(revision).as_posix()
            if within not in seen:
                seen.add(within)
                name = model_name_at(within)
                yield FoundModel(name, f"hf:{repo}:{quant_of(name) or name}", files.paths, files.nbytes)


def _revisions(folder: Path) -> list[Path]:
    """The folders of revisions, that of the main branch first."""
    found = [Path(entry.path) for entry in entries_of(folder / "snapshots")]
    main = folder / "refs" / "main"
    named = ""
    try:
        if main.is_file():
            with main.open("rb") as file:
                named = file.read(REVISION_CAP_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        pass
    return sorted(found, key=lambda path: path.name != named)


PROGRAM = OtherProgram("HF cache", hub_folders, _models)
