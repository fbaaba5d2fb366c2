"""A model on this machine, and how a name selects one of several.

In: paths, names, lists of models. Out: `LocalModel`s, or ModelNotFound with suggestions. Independent of where lists
come from.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.decoder_folder import folder_bytes, is_decoder_folder
from edgeinfer.models.file_names import model_name, without_quant
from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.sources.path import shard_paths
from edgeinfer.text_values import user_path

OWN, LINKED = "edgeinfer", "linked"
"""Places of pulled models: the store's folder, or the original location of the file."""
LATEST = "latest"
"""Ollama's default tag."""
NAMES_TOLD = 10
HUB_FORM = re.compile(r"[\w-][\w.-]*/(?!.*\.gguf$)[\w.-]+(:[\w.-]+)?", re.IGNORECASE)
"""A model of the hub, with or without a quantisation."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine; `paths` are its shards, `path` the first of them.

    `place`: OWN, LINKED, or the program whose folder it is in; "" for a path that is in no list.
    """

    name: str
    path: Path
    nbytes: int  # of all shards
    source: str
    sha256: str | None  # of the first shard; None if it was never computed
    paths: tuple[Path, ...]
    place: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is listed only because it is in another program's folder."""
        return self.place not in (OWN, LINKED, "")

    @property
    def adapters(self) -> tuple[Path, ...]:
        """The LoRA adapters that belong to its name, as names of Ollama's may have them."""
        return ollama_params(self.path, self.source).adapters


def path_model(path: Path) -> LocalModel:
    """The model at a path: a file with all of its shards, or a decoder folder. Raises ModelNotFound."""
    if is_decoder_folder(folder := user_path(path).absolute()):
        return LocalModel(folder.name, folder, folder_bytes(folder), str(folder), None, (folder,))
    paths = shard_paths(user_path(path).absolute())
    nbytes = sum(part.stat().st_size for part in paths)
    return LocalModel(model_name(paths[0].name), paths[0], nbytes, str(paths[0]), None, paths)


def named_model(text: str, models: Sequence[LocalModel]) -> LocalModel:
    """The model that a name refers to, with or without `.gguf`, quant or Ollama's tag, ignoring case.

    Pulled models take precedence over those of other programs. Raises ModelNotFound.
    """
    wanted = model_name(text).casefold()
    for reduced in (_whole, without_quant, _without_tag):
        for pool in (False, True):
            matches = [
                model for model in models if model.is_elsewhere == pool and reduced(model.name).casefold() == wanted
            ]
            if reduced is _without_tag and len(matches) > 1:
                matches = [model for model in matches if model.name.endswith(f":{LATEST}")] or matches
            if len(matches) == 1:
                return matches[0]
            if matches:
                names = ", ".join(model.name for model in matches)
                raise ModelNotFound(f"{text!r} could be any of {names}; name one of them in full")
    raise _not_found(text, models)


def _whole(name: str) -> str:
    return name


def _without_tag(name: str) -> str:
    """A name in Ollama's form, without the part after the colon."""
    return name.partition(":")[0]


def _not_found(text: str, models: Sequence[LocalModel]) -> ModelNotFound:
    if text.lower().endswith(".gguf") or os.sep in text:
        there = f"there is no file {text}"
    else:
        there = f"no model is called {text!r}"
    names = {model.name.casefold(): model.name for model in models}
    shorter: dict[str, str] = {}
    reductions: tuple[Callable[[str], str], ...] = (without_quant, _without_tag)
    for reduced in reductions:
        shorter |= {reduced(name).casefold(): name for name in names.values()}
    near = difflib.get_close_matches(text.casefold(), {**shorter, **names}, n=3, cutoff=0.5)
    meant = list(dict.fromkeys({**shorter, **names}[name] for name in near))
    if meant:
        hint = f"did you mean {' or '.join(meant)}?"
    elif models:
        hint = f"there are: {', '.join(sorted(names.values())[:NAMES_TOLD])}."
    else:
        hint = "the store is empty."
    source = f"it: edgeinfer pull {text}" if HUB_FORM.fullmatch(text) else "one: edgeinfer pull SOURCE"
    return ModelNotFound(f"{there}; {hint} Give a name, the path of a .gguf file, or pull {source}")
