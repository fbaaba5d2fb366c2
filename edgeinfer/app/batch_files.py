"""The files of a batch: prompts, one per line, and their answers, one JSON object per line.

In: lines of text, each a plain question or a JSON object with its own options, images and sounds; answers, as they
finish. Out: `BatchEntry`s, or why a line cannot be used, with its line number; lines on stdout or appended to a file,
in ASCII, so that no encoding can reject them. A resumed batch skips what its file has answered; if a prompt has several
lines, the last one counts. Knows no models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from edgeinfer.app.image_files import data_of_url, is_data_url
from edgeinfer.app.sound_files import data_of_sound
from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.errors import BadImage, BadSetting, BadSound, EdgeInferError
from edgeinfer.text_values import user_path

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.batcher import BatchAnswer, Prompt

CONTENTS = ("prompt", "messages", "text")
"""A question, a conversation, or a text to continue verbatim."""
NUMBERS: Mapping[str, str] = {
    "temp": "temperature",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
WHOLE: Mapping[str, str] = {name: name for name in ("top_k", "seed", "max_tokens", "max_thought_tokens")}
THINKING, EFFORT = "enable_thinking", "reasoning_effort"
LORA = "lora"
IMAGES, SOUNDS = "images", "sounds"
"""Paths or data URLs of images and sounds that stand before a question."""
LONGEST_PATH = 4096
"""Characters; a longer text is base64 without its head."""
KEYS = (*CONTENTS, IMAGES, SOUNDS, "id", "system", "stop", THINKING, EFFORT, LORA, *NUMBERS, *WHOLE)


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One line of a batch: its index from 0, its name (the number, if it has none), and its prompt."""

    index: int
    name: str | int
    prompt: Prompt


def read_entries(lines: Iterable[str], system: str | None, folder: Path | None = None) -> list[BatchEntry]:
    """Parse all lines that are not blank. `system`: system prompt for questions without their own.

    `folder`: where paths of images and sounds begin, else in the working folder; these are read when their prompt is
    answered.
    Raises BadSetting for the first line that cannot be used, with its number.
    """
    entries: list[BatchEntry] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                entries.append(_entry(len(entries), line, system, folder or Path.cwd()))
            except (BadSetting, BadImage, BadSound) as reason:
                raise BadSetting(f"line {number}: {reason}") from None
    return entries


def _entry(index: int, line: str, system: str | None, folder: Path) -> BatchEntry:
    from edgeinfer.engine.scheduler.batcher import Prompt

    if not line.lstrip().startswith("{"):
        return BatchEntry(index, index, Prompt(_question(line.strip(), system)))
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise BadSetting(f"it begins like a JSON object and is none ({reason})") from None
    for key in found:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise BadSetting(f"there is no key {key!r}{hint} There are: {', '.join(KEYS)}")
    name = found.get("id", index)
    if not isinstance(name, str | int):
        raise BadSetting(f"id must be a text or a whole number, not {name!r}")
    return BatchEntry(index, name, Prompt(_content(found, system, folder), _options(found)))


def _content(found: Mapping[str, object], system: str | None, folder: Path) -> str | list[Mapping[str, object]]:
    given = [key for key in CONTENTS if key in found]
    if len(given) != 1:
        raise BadSetting(f"give one of {', '.join(CONTENTS)}, not {' and '.join(given) or 'none of them'}")
    content = found[given[0]]
    media = [key for key in (IMAGES, SOUNDS) if key in found]
    if media and given[0] != "prompt":
        raise BadSetting(f"{media[0]} stand before a prompt; in messages they are parts, and a text has none")
    if given[0] == "messages":
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content) or not content:
            raise BadSetting('messages must be a list: [{"role": "user", "content": "…"}]')
        return [_with_media(message, folder) for message in content]
    if not isinstance(content, str) or not content:
        raise BadSetting(f"{given[0]} must be a text")
    if given[0] == "text":
        return content
    own = found.get("system", system)
    if own is not None and not isinstance(own, str):
        raise BadSetting(f"system must be a text, not {own!r}")
    images = [{"type": "image", "image": _image(path, folder)} for path in _paths(found, IMAGES, "photo.jpg")]
    sounds = [{"type": "audio", "audio": _sound(path, folder)} for path in _paths(found, SOUNDS, "talk.wav")]
    return _question(content, own, [*images, *sounds])


def _paths(found: Mapping[str, object], key: str, example: str) -> Sequence[str]:
    paths = found.get(key, ())
    if not isinstance(paths, Sequence) or isinstance(paths, str) or not all(isinstance(path, str) for path in paths):
        raise BadSetting(f'{key} must be a list of paths or data URLs, ["{example}"], not {paths!r}')
    return paths


def _question(text: str, system: str | None, media: Sequence[Mapping[str, object]] = ()) -> list[Mapping[str, object]]:
    instructions: list[Mapping[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*instructions, {"role": "user", "content": [*media, {"type": "text", "text": text}] if media else text}]


def _with_media(message: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """A message whose parts that are images or sounds have a path or the bytes of a file."""
    parts = message.get("content")
    return {**message, "content": [_part(part, folder) for part in parts]} if isinstance(parts, list) else message


def _part(part: object, folder: Path) -> object:
    """A part of a message: an image has a `path`, or `image_url` as over the API; a sound `path` or `input_audio`."""
    if isinstance(part, dict) and part.get("type") in ("audio", "input_audio"):
        return {"type": "audio", "audio": _sound_of(part, folder)}
    if not isinstance(part, dict) or part.get("type") not in ("image", "image_url", "input_image"):
        return part
    source = part.get("path", part.get("image_url", part.get("image")))
    source = source.get("url") if isinstance(source, dict) else source
    if not isinstance(source, str):
        raise BadSetting(
            'an image needs a path, {"type": "image", "path": "photo.jpg"}, or an image_url with a data URL'
        )
    return {"type": "image", "image": _image(source, folder)}


def _image(source: str, folder: Path) -> str | bytes:
    """The path of an image, or its bytes in a data URL. Raises BadImage."""
    return data_of_url(source) if is_data_url(source) else _path(source, folder, BadImage, "image/png")


def _path(source: str, folder: Path, refused: type[EdgeInferError], media_type: str) -> str:
    """A path, the same from whatever folder. Raises `refused` for what is none."""
    if len(source) > LONGEST_PATH:
        raise refused(f"{source[:20]}… is no path; before base64 stands data:{media_type};base64,")
    if "://" in source:
        raise refused(f"{source} is an address, and nothing is fetched; give the path of a file")
    return str((folder / user_path(source)).absolute())


def _sound_of(part: Mapping[str, object], folder: Path) -> str | bytes:
    embedded = part.get("input_audio")
    if isinstance(embedded, dict) and isinstance(embedded.get("data"), str):
        return data_of_sound(embedded["data"])
    source = part.get("path", part.get("audio"))
    if not isinstance(source, str):
        raise BadSetting('a sound needs a path, {"type": "audio", "path": "talk.wav"}, or input_audio with its data')
    return _sound(source, folder)


def _sound(source: str, folder: Path) -> str | bytes:
    """The path of a sound, or its bytes in a data URL. Raises BadSound."""
    return data_of_sound(source) if is_data_url(source) else _path(source, folder, BadSound, "audio/wav")


def _options(found: Mapping[str, object]) -> Options:
    from edgeinfer.engine.requests.request import thinking_variables

    wanted: dict[str, object] = {}
    for key, name in (*NUMBERS.items(), *WHOLE.items()):
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if key in WHOLE else int | float):
            raise BadSetting(f"{key} must be a {'whole number' if key in WHOLE else 'number'}, not {value!r}")
        try:
            wanted[name] = value if key in WHOLE else float(value)
        except OverflowError:
            raise BadSetting(f"{key} is too large") from None
    stop = found.get("stop")
    if stop is not None:
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
            raise BadSetting(f"stop must be a text or a list of texts, not {stop!r}")
        wanted["stop"] = tuple(texts)
    if (scales := found.get(LORA)) is not None:
        if not isinstance(scales, dict):
            raise BadSetting(f'{LORA} must be scales by an adapter\'s name or number, {{"name": 0.5}}, not {scales!r}')
        wanted[LORA] = {int(name) if name.isdecimal() else name: scale for name, scale in scales.items()}
    thinks, effort = found.get(THINKING), found.get(EFFORT)
    if not isinstance(thinks, bool | None):
        raise BadSetting(f"{THINKING} must be true or false, not {thinks!r}")
    if not isinstance(effort, str | None):
        raise BadSetting(f"{EFFORT} must be a text, not {effort!r}")
    if variables := thinking_variables(thinks, effort):
        wanted["template_variables"] = variables
    return wanted  # type: ignore[return-value]


ENDED = ("stop", "length")
"""Finish reasons of answers that are not generated again."""


RECORD = b'{"index": '
"""The beginning of each line."""


def record(entry: BatchEntry, answer: BatchAnswer, approx: Approximation = EXACT) -> dict[str, object]:
    """An answer as a JSON object; keys may be added, never renamed. `digest`: of the prompt and its options.

    `approx`: how a model is approximate; its keys are absent for others. So is `n_shifted` where all is exact.
    """
    found: dict[str, object] = {"index": entry.index, "id": entry.name, "digest": digest(entry)}
    found |= {} if approx.threshold is None else {"approx": approx.threshold}
    found |= {} if approx.kv is None else {"kv_budget": approx.kv}
    found |= {} if approx.prefill is None else {"prefill_budget": approx.prefill}
    if answer.error is not None or answer.stats is None:
        return found | {"error": str(answer.error)}
    stats = answer.stats
    return found | {
        "text": answer.content,
        **({"reasoning": answer.reasoning} if answer.reasoning else {}),
        **({"n_shifted": stats.n_shifted} if stats.n_shifted else {}),
        "tokens": list(answer.tokens),
        "n_prompt": stats.n_prompt,
        "n_generated": stats.n_generated,
        "finish_reason": stats.finish_reason,
        "truncated": stats.truncated,
        "notices": list(stats.notices),
        "ttft_s": stats.ttft_s,
        "seed": stats.seed,
    }


def digest(entry: BatchEntry) -> str:
    """Distinguishes entries by their prompts and options."""
    options: dict[str, object] = {**entry.prompt.options}
    if isinstance(scales := options.get(LORA), dict):
        options[LORA] = {str(name): scale for name, scale in scales.items()}  # names and numbers have no common order
    asked = json.dumps([entry.prompt.content, options], sort_keys=True, default=_digest_of_bytes)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _digest_of_bytes(file: bytes) -> str:
    return hashlib.sha256(file).hexdigest()


def is_kept(line: Mapping[str, object], out: Path | None) -> bool:
    """Whether a record is written to the file: a cancelled answer is not, so a resumed batch generates it again."""
    return out is None or line.get("finish_reason") != "cancelled"


def write_line(stream: TextIO, line: Mapping[str, object]) -> None:
    """Write a record and flush it, so that finished answers survive a later failure. Raises EdgeInferError."""
    try:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as reason:
        raise EdgeInferError(
            f"{stream.name} cannot be written: {reason.strerror or reason}; what it has already is whole"
        ) from None


def answered(path: Path, entries: list[BatchEntry]) -> set[int]:
    """Indices of the entries that a file already answers; truncates an incomplete last line left by a crash.

    Raises EdgeInferError for a file of anything else, which is left unchanged.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device
        return set()
    try:
        data = path.read_bytes() if path.exists() else b""
        whole, newline, rest = data.rpartition(b"\n")
        lines = whole.decode("utf-8").split("\n") if whole else []
        found = {index for line in lines if (index := _index(line, entries)) is not None}
        if rest:
            if not rest.startswith(RECORD[: len(rest)]):
                raise ValueError("no line of ours")
            with path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        return found
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise EdgeInferError(
            f"{path} is there and does not have answers of this batch; give another file with --out"
        ) from None


def _index(line: str, entries: list[BatchEntry]) -> int | None:
    """The entry that a line answers; None if it was cancelled or failed. Raises ValueError for another batch's line."""
    found = json.loads(line)
    index = found["index"]
    entry = entries[index]
    if index < 0 or (found["id"], found["digest"]) != (entry.name, digest(entry)):
        raise ValueError("another batch")
    return int(index) if found.get("finish_reason") in ENDED else None
