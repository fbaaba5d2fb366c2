"""Models in the folders of LM Studio: PUBLISHER/REPOSITORY/FILE.gguf below one folder.

In: that folder. Out: its models, in place. LM Studio's home may have been moved (a small file in the user's home says
where), and so may the models (its settings say where).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.elsewhere import FoundModel, OtherProgram
from edgeinfer.models.elsewhere.walking import model_files
from edgeinfer.models.file_names import model_name, model_name_at
from edgeinfer.models.json_config import JsonConfig

HOMES = (".lmstudio", ".cache/lm-studio")
"""In the user's home; the second one is used by older versions."""
POINTER = ".lmstudio-home-pointer"
POINTER_CAP_BYTES = 4096
PREFIX = "lmstudio:"


def lm_studio_folders() -> tuple[Path, ...]:
    """The folders in which LM Studio may keep models."""
    home = Path.home()
    homes = [home / name for name in HOMES]
    moved = _pointed(home / POINTER)
    if moved is not None and moved not in homes:
        homes.append(moved)
    folders = [each / "models" for each in homes]
    folders += [chosen for each in homes if (chosen := _chosen(each / "settings.json")) is not None]
    return tuple(dict.fromkeys(folders))


def _chosen(settings: Path) -> Path | None:
    """The models folder named in the settings."""
    try:
        text = JsonConfig.read(settings).text("downloadsFolder")
    except UnsupportedModel:
        return None
    return _absolute(text or "")


def _pointed(path: Path) -> Path | None:
    """The folder named in a file; None if there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(POINTER_CAP_BYTES).decode("utf-8").strip()
    except (OSError, ValueError):
        return None
    return _absolute(text)


def _absolute(text: str) -> Path | None:
    return Path(text) if "\0" not in text and Path(text).is_absolute() else None


def _models(folder: Path) -> Iterator[FoundModel]:
    for files in model_files(folder):
        first = files.paths[0]
        within = (first.parent / model_name(first.name)).relative_to(folder).as_posix()
        yield FoundModel(
            model_name_at(first.relative_to(folder).as_posix()), f"{PREFIX}{within}", files.paths, files.nbytes
        )


PROGRAM = OtherProgram("LM Studio", lm_studio_folders, _models)
