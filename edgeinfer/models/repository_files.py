"""Which of the files of a repository are a model, and which model is meant by a quant.

In: paths in a repository, a quant as people copy it. Out: the files of one model, all shards. Projectors, drafters and
importance matrices are never a model. Touches no files and no network.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.file_names import (
    SHARD,
    is_model_file,
    model_name,
    model_name_at,
    quant_of,
    shard_names,
    without_quant,
)

# Without a requested quant, the first of these that exists: small enough for most machines, good enough for most uses.
PREFERRED_QUANTS = (
    *("Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "Q4_0", "Q4_1", "Q4_K_S", "MXFP4", "MXFP4_MOE"),
    *("Q5_K_M", "Q8_0", "BF16", "F16"),
)


def models_among(files: list[str]) -> dict[str, list[str]]:
    """The files of each model in a repository, by quant, or by name if the name states no quant."""
    models: dict[tuple[str, str], list[str]] = {}
    for file in sorted(_without_assistants(list(filter(is_model_file, files)))):
        path = PurePosixPath(file)
        models.setdefault((path.parent.as_posix(), model_name(path.name)), []).append(file)
    named = ((model_name_at(found[0]), found) for found in reversed(models.values()))
    return {(quant_of(name) or name).upper(): found for name, found in named}


def _without_assistants(files: list[str]) -> list[str]:
    """The files but drafters named after a model beside them: gemma-4-31b-it-assistant beside gemma-4-31b-it."""
    bases = {file: without_quant(PurePosixPath(file).name).casefold() for file in files}
    known = set(bases.values())
    drafters = {base for base in known if "-assistant" in base and base.replace("-assistant", "") in known}
    return [file for file, base in bases.items() if base not in drafters]


def in_order(files: list[str]) -> tuple[str, ...]:
    """The shards of a model in order; none if some are missing. Only the whole file of one that is there both ways."""
    if whole := [file for file in files if not SHARD.fullmatch(PurePosixPath(file).name)]:
        return (whole[0],)
    names = shard_names(PurePosixPath(files[0]).name)
    by_name = {PurePosixPath(file).name: file for file in files}
    return tuple(by_name[name] for name in names) if all(name in by_name for name in names) else ()


def choose_files(files: list[str], quant: str | None, repo: str) -> tuple[str, ...]:
    """The files of one model in a repository, in shard order.

    `quant` may also be the end of a file's name (i1-Q4_K_M), the whole name, or lack the prefix UD- of a single model.
    Without it: the first of `PREFERRED_QUANTS`, else the only model there is. Raises ModelNotFound, listing the models.
    """
    by_quant = models_among(files)
    keys = _asked(quant, by_quant) if quant else [*PREFERRED_QUANTS, *(by_quant if len(by_quant) == 1 else ())]
    for key in keys:
        if key in by_quant and (chosen := in_order(by_quant[key])):
            return chosen
    if not by_quant:
        raise ModelNotFound(f"{repo} holds no .gguf file of a model; look for a repository with GGUF in its name")
    asked = f"has no complete {quant}" if quant else "leaves several to choose from"
    raise ModelNotFound(f"{repo} {asked}; there are: {', '.join(f'hf:{repo}:{key}' for key in sorted(by_quant))}")


def _asked(quant: str, by_quant: dict[str, list[str]]) -> list[str]:
    """The keys that a requested quant may mean, the likeliest first."""
    asked = model_name(quant).upper()
    ends = re.compile(rf"(?:.*[.\-_])?{re.escape(asked)}", re.IGNORECASE)
    by_name = [key for key, found in by_quant.items() if ends.fullmatch(model_name_at(found[0]))]
    return [asked, f"UD-{asked}", *(by_name if len(by_name) == 1 else ())]
