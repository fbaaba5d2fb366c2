"""Names of model files: shards, model names, quant suffixes, and the files beside models that are no models.

In: file names, or paths in a repository. Out: the names of all shards of a split model, the name a model is listed
under, that name without its quant format. Touches no files.
"""

from __future__ import annotations

import re

from edgeinfer.errors import DownloadFailed

SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
QUANT_NAME = r"(?:UD[\-_])?(?:(?:IQ|TQ|Q)\d+(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|FP32|(?:MX|NV)FP4(?:_MOE)?)"
"""UD: mixtures of formats that unsloth chooses by layer."""
QUANT = re.compile(rf"[.\-_](?P<quant>{QUANT_NAME})(?:[.\-_]imat)?$", re.IGNORECASE)
QUANT_FOLDER = re.compile(rf"(?:.*?[.\-_])??(?P<quant>{QUANT_NAME})", re.IGNORECASE)
NO_MODEL = re.compile(
    r"(?:.*[.\-_])?mmproj(?:[.\-_].*)?|(?:imatrix|mtp|eagle\d?|dflash|drafter)(?:[.\-_].*)?"
    rf"|.*[.\-_]imatrix(?:[.\-_](?!{QUANT_NAME}$).*)?",
    re.IGNORECASE,
)
"""Projectors, statistics of quantisation, and parts that draft for a model: stems of files, or their folders. A model
whose quant stands behind "imatrix" was quantised with such statistics."""
SAFE_NAME = re.compile(r"[^\W_][\w.+\-@ ()]{0,180}\.gguf", re.IGNORECASE)
SHARD_CAP = 999


def shard_names(file_name: str) -> tuple[str, ...]:
    """The file names of all shards of the model that `file_name` is a shard of; itself if the model is not split."""
    matched = SHARD.fullmatch(file_name)
    if matched is None:
        return (file_name,)
    count = int(matched["count"])
    if not 1 <= count <= SHARD_CAP:
        raise DownloadFailed(f"{file_name} says it is one of {count} parts; 1 to {SHARD_CAP} are possible")
    suffix = file_name[-len(".gguf") :]
    return tuple(f"{matched['stem']}-{index:05d}-of-{count:05d}{suffix}" for index in range(1, count + 1))


def model_name(file_name: str) -> str:
    """The name of the model in `file_name`: without `.gguf` and without the shard number."""
    matched = SHARD.fullmatch(file_name)
    if matched is not None:
        return matched["stem"]
    return file_name[: -len(".gguf")] if file_name.lower().endswith(".gguf") else file_name


def quant_of(name: str) -> str | None:
    """The quant format at the end of a model's name, in capitals; None if there is none."""
    matched = QUANT.search(model_name(name))
    return _quant(matched) if matched else None


def _quant(matched: re.Match[str]) -> str:
    return re.sub(r"^FP(?=16|32)", "F", re.sub("^UD_", "UD-", matched["quant"].upper()))


def is_model_file(path: str) -> bool:
    """Whether a path in a repository or folder is that of a model, by its names alone."""
    *folders, base = re.split(r"[/\\]", path)
    if not base.lower().endswith(".gguf") or base.startswith("."):
        return False
    return not any(NO_MODEL.fullmatch(part) for part in (*folders[-1:], model_name(base)))


def model_name_at(path: str) -> str:
    """The name of the model at a path; a quant that only its folder states is added (Q8_0/model.gguf: model-Q8_0)."""
    *folders, base = re.split(r"[/\\]", path)
    name = model_name(base)
    matched = QUANT_FOLDER.fullmatch(folders[-1]) if folders else None
    return name if matched is None or QUANT.search(name) else f"{name}-{_quant(matched)}"


def without_quant(name: str) -> str:
    """A model's name without the quant format at its end."""
    return QUANT.sub("", model_name(name))


def safe_file_name(name: str, where: str) -> str:
    """The last part of `name` as a file name. Raises DownloadFailed if it is not a valid model file name."""
    last = re.split(r"[/\\]", name)[-1]
    if not SAFE_NAME.fullmatch(last):
        raise DownloadFailed(f"{where}: {name!r} is not the name of a model file; use a name such as model.gguf")
    return last
