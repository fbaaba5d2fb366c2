"""What of a batch can be sent to other computers: settings without what belongs to this one, files, images and sounds.

In: settings, the model, entries. Out: settings whose files are named by their absolute paths, those files; entries with
the bytes of their images and sounds. Refuses what only one computer can do. Sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.batch_files import BatchEntry
from edgeinfer.errors import BadSetting
from edgeinfer.models.download.header import file_header

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.batcher import Prompt
    from edgeinfer.models.store import LocalModel
    from edgeinfer.settings import Settings

MEDIA_BYTES = 64 << 20
"""Larger files of images and sounds are left to the node, which says what is wrong with them."""
MOST_MEDIA_BYTES = 2 << 30
"""Files of images and sounds of one round, which are in memory together."""
MEDIA = ("image", "audio")


def settings_for_nodes(
    settings: Settings, model: LocalModel, entries: Sequence[BatchEntry]
) -> tuple[Settings, list[Path]]:
    """Settings for any node, and the files that they name. Raises BadSetting for what cannot be done on several.

    Nodes take the cpu where a device would be chosen by its speed, so that all of them compute the same.
    """
    from edgeinfer.app.opening.loading import load_options
    from edgeinfer.models.decoder_folder import is_decoder_folder
    from edgeinfer.models.ollama_params import OllamaParams, ollama_params

    load = load_options(settings)
    if is_decoder_folder(model.path):
        raise BadSetting(f"{model.path} is a folder, and nodes get GGUF files; name a GGUF file with -m")
    if ollama_params(model.path, model.source) != OllamaParams():
        raise BadSetting(
            f"{model.name} is Ollama's, with a template or parameters that nodes do not get; name its file with -m, "
            "and these as options"
        )
    if load.small_model is not None:
        raise BadSetting("--small-model and --ray do not go together: nodes get the files of one model")
    if load.isolate or len(load.device_names) > 1:
        raise BadSetting("--ray answers with one device on each node: leave --isolate and further devices out")
    lora = tuple(f"{Path(choice.path).absolute()}:{choice.scale!r}" for choice in load.adapters)
    template = None if load.chat_template_file is None else str(Path(load.chat_template_file).absolute())
    mmproj = _projector(str(load.mmproj), model, entries)
    files = [Path(choice.path).absolute() for choice in load.adapters]
    files += [Path(each) for each in (template, mmproj if mmproj not in ("auto", "off") else None) if each]
    device = "cpu" if load.device == "auto" else load.device
    load = replace(load, device=device, lora=lora, mmproj=mmproj, chat_template_file=template)
    load = replace(load, draft_from=(), history=False, prefix_cache=False)
    return replace(settings, load=load, origins=dict(settings.origins)), files


def _projector(chosen: str, model: LocalModel, entries: Sequence[BatchEntry]) -> str:
    """The projector's path, if one is named or lines have images or sounds and one is beside the model."""
    from edgeinfer.models.projector_choice import projectors_beside

    if chosen == "off":
        return chosen
    if chosen != "auto":
        return str(Path(chosen).absolute())
    found = projectors_beside(model.path) if any(map(has_media, entries)) else []
    return str(found[0].absolute()) if found else chosen


def has_media(entry: BatchEntry) -> bool:
    """Whether a line has images or sounds."""
    return any(True for _ in _media_parts(entry.prompt))


def with_media(entry: BatchEntry) -> BatchEntry:
    """An entry with the bytes of its images and sounds in place of their paths, where they can be read here."""
    content = entry.prompt.content
    if isinstance(content, str) or not has_media(entry):
        return entry
    messages: list[Any] = []
    for message in content:
        if isinstance(message, Mapping) and isinstance(parts := message.get("content"), list):
            messages.append({**message, "content": [_read(part) for part in parts]})
        else:
            messages.append(message)
    return replace(entry, prompt=replace(entry.prompt, content=messages))


def first_within(entries: Iterable[BatchEntry], most_bytes: int = MOST_MEDIA_BYTES) -> list[BatchEntry]:
    """The first entries whose images and sounds have so many bytes together; at least one."""
    found: list[BatchEntry] = []
    for entry in entries:
        most_bytes -= sum(_file_bytes(part) for part in _media_parts(entry.prompt))
        if most_bytes < 0 and found:
            break
        found.append(entry)
    return found


def _file_bytes(part: Mapping[str, Any]) -> int:
    source = part.get(str(part.get("type")))
    try:
        return len(source) if isinstance(source, bytes) else Path(str(source)).stat().st_size
    except (OSError, ValueError):
        return 0


def _media_parts(prompt: Prompt) -> Iterator[Mapping[str, Any]]:
    for message in () if isinstance(prompt.content, str) else prompt.content:
        parts = message.get("content") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") in MEDIA:
                yield part


def _read(part: Any) -> Any:
    """A part with the bytes of its file; as it is where that cannot be read, as the node will say."""
    key = part.get("type") if isinstance(part, dict) else None
    path = part.get(key) if key in MEDIA else None
    if not isinstance(path, str):
        return part
    try:
        found = Path(path)
        is_small = found.is_file() and found.stat().st_size <= MEDIA_BYTES
        return {**part, key: found.read_bytes()} if is_small else part
    except (OSError, ValueError):
        return part


def main_form(path: Path) -> str:
    """The format of most bytes of a model's weights. Raises BadGGUF."""
    sizes: Counter[str] = Counter()
    for tensor in file_header(path).tensors.values():
        sizes[tensor.type_name] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else ""
